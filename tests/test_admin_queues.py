"""Paused queues in the admin: pause, change, resume, who may; and why a run waits, on its page."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth import get_user_model
from django.contrib.auth.models import Permission
from django.contrib.messages import get_messages
from django.db.models.functions import Now
from django.test import Client
from django.urls import reverse

from django_dispatch import pause_queue
from django_dispatch.models import PausedQueue, Run
from tests.wakeups import Ear

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("any_database")]

LIST = "admin:django_dispatch_pausedqueue_changelist"
ADD = "admin:django_dispatch_pausedqueue_add"
CHANGE = "admin:django_dispatch_pausedqueue_change"
OPEN_END = {"paused_until_0": "", "paused_until_1": ""}


def pause(client: Client, **fields: Any) -> Any:
    return client.post(reverse(ADD), {"name": "mail", "reason": "", **OPEN_END, **fields})


def test_a_queue_is_paused_in_the_name_of_who_is_logged_in(admin_client: Client) -> None:
    end = {"paused_until_0": "2060-01-31", "paused_until_1": "18:00"}
    assert pause(admin_client, reason="the relay moves", **end).status_code == 302
    paused = PausedQueue.objects.get()
    assert (paused.name, paused.reason, paused.paused_by) == ("mail", "the relay moves", "admin")
    assert paused.paused_until is not None
    assert paused.paused_until.year == 2060
    page = admin_client.get(reverse(LIST)).content.decode()
    assert all(text in page for text in ("mail", "the relay moves", "admin", "paused"))


def test_reason_and_end_are_changed_and_since_when_stays(admin_client: Client) -> None:
    pause_queue("mail", reason="a", until=timedelta(hours=1))
    before = PausedQueue.objects.get()
    address = reverse(CHANGE, args=["mail"])
    assert admin_client.get(address).status_code == 200
    assert admin_client.post(address, {"reason": "b", **OPEN_END}).status_code == 302
    after = PausedQueue.objects.get()
    assert (after.paused_at, after.reason, after.paused_until) == (before.paused_at, "b", None)


def test_pausing_a_paused_queue_replaces_its_reason(admin_client: Client) -> None:
    pause_queue("mail", reason="a")
    assert pause(admin_client, reason="b").status_code == 302
    assert PausedQueue.objects.get().reason == "b"


@pytest.mark.parametrize(
    "fields",
    [
        {"name": ""},
        {"name": "q" * 101},
        {"name": "lease:x"},
        {"reason": "x" * 1001},
        {"paused_until_0": "2001-01-31", "paused_until_1": "18:00"},
        {"paused_until_0": "soon", "paused_until_1": ""},
    ],
)
def test_nonsense_is_refused_beside_its_field(admin_client: Client, fields: dict[str, str]) -> None:
    response = pause(admin_client, **fields)
    assert response.status_code == 200
    assert response.context["errors"]
    assert not PausedQueue.objects.exists()


@pytest.fixture
def ear(transactional_db: None) -> Iterator[Ear]:
    ear = Ear()
    yield ear
    ear.close()


def test_selected_queues_are_resumed_and_dispatchers_woken(ear: Ear, admin_client: Client) -> None:
    for name in ("mail", "reports", "other"):
        pause_queue(name)
    ear.heard()
    data = {"action": "resume", "_selected_action": ["mail", "reports"]}
    response = admin_client.post(reverse(LIST), data)
    assert [str(message) for message in get_messages(response.wsgi_request)] == ["2 resumed."]
    assert [paused.name for paused in PausedQueue.objects.all()] == ["other"]
    assert sorted(ear.heard()) == ["ready:mail", "ready:reports"]


def test_one_that_ended_by_itself_says_so(admin_client: Client) -> None:
    pause_queue("mail", until=timedelta(hours=1))
    PausedQueue.objects.update(paused_until=Now() - timedelta(seconds=1))
    assert "resumed" in admin_client.get(reverse(LIST)).content.decode().split("result_list")[1]


def test_who_may_only_view_cannot_pause_or_resume() -> None:
    pause_queue("mail")
    user = get_user_model()._default_manager.create(username="limited", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename="view_pausedqueue"))
    client = Client()
    client.force_login(user)
    assert client.get(reverse(LIST)).status_code == 200
    assert pause(client, name="reports").status_code == 403
    client.post(reverse(LIST), {"action": "resume", "_selected_action": ["mail"]})
    assert PausedQueue.objects.get().name == "mail"


def test_the_page_of_a_run_says_why_it_waits(admin_client: Client) -> None:
    pause_queue("mail", reason="<the relay moves>", by="ann")
    run = Run.objects.create(task="shop.add", queue="mail")
    page = admin_client.get(reverse("admin:django_dispatch_run_change", args=[run.pk])).content.decode()
    assert "is paused by ann since" in page
    assert "&lt;the relay moves&gt;" in page
