"""Schedules in the admin: edited while dispatchers write the same rows, refused where a dispatcher would flag them."""

import html
import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from django.contrib.messages import get_messages
from django.db.models.functions import Now
from django.test import Client
from django.urls import reverse

from django_dispatch.models import Run, Schedule

from .test_admin import a_client_with, text_of

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("any_database")]

TASK = "tests.kit.tasks.gated"
LIST = "admin:django_dispatch_schedule_changelist"
NEXT = datetime(2060, 1, 1, 2, tzinfo=UTC)
FORM: dict[str, Any] = {
    "name": "nightly",
    "enabled": "on",
    "cron": "0 3 * * *",
    "every": "",
    "time_zone": "Europe/Paris",
    "task": TASK,
    "args": '["never"]',
    "kwargs": "{}",
    "queue": "",
    "priority": "",
    "catch_up": "last",
    "catch_up_window": "1 00:00:00",
    "overlap": "allow",
}


def a_schedule(**columns: Any) -> Schedule:
    needed = {"name": "nightly", "task": TASK, "args": ["never"], "cron": "0 3 * * *", "time_zone": "Europe/Paris"}
    schedule = Schedule.objects.create(**needed | {"planned_revision": 1, "next_at": NEXT} | columns)
    if columns.get("source") == "code":
        Schedule.objects.filter(pk=schedule.pk).update(declared_at=columns.get("declared_at", Now()))
    return schedule


def page(client: Client, schedule: Schedule | None = None) -> str:
    address = reverse(LIST)
    if schedule is not None:
        address = reverse("admin:django_dispatch_schedule_change", args=[schedule.pk])
    response = client.get(address)
    assert response.status_code == 200
    return response.content.decode()


def post(client: Client, schedule: Schedule | None, **changes: Any) -> tuple[str, list[str]]:
    """Send the form, and return the errors on the page and the messages."""
    name = "add" if schedule is None else "change"
    address = reverse(f"admin:django_dispatch_schedule_{name}", args=[schedule.pk] if schedule else [])
    response = client.post(address, {name: value for name, value in (FORM | changes).items() if value is not None})
    errors = " ".join(re.findall(r'<ul class="errorlist[^"]*"[^>]*>(.*?)</ul>', response.content.decode()))
    return html.unescape(errors), [str(message) for message in get_messages(response.wsgi_request)]


def act(client: Client, action: str, *selected: Schedule, **more: Any) -> list[str]:
    data = {"action": action, "_selected_action": [schedule.pk for schedule in selected]} | more
    response = client.post(reverse(LIST), data)
    return [str(message) for message in get_messages(response.wsgi_request)]


def test_a_schedule_of_a_broadcast_is_refused(admin_client: Client) -> None:
    errors, _ = post(admin_client, None, task="tests.kit.tasks.note_everywhere", args="[]")
    assert "this task is a broadcast" in errors
    assert not Schedule.objects.exists()


class TestPages:
    def test_the_list_says_when_and_what_is_wrong(self, admin_client: Client) -> None:
        a_schedule()
        a_schedule(name="bad", cron="61 * * * *", problem="'61 * * * *' is no cron expression.", next_at=None)
        a_schedule(name="off", enabled=False)
        a_schedule(name="of the code", source="code", cron=None, every=timedelta(minutes=5))
        a_schedule(name="removed", source="code", declared_at=datetime(2001, 1, 1, tzinfo=UTC))
        a_schedule(name="over", cron=None, once_at=datetime(2001, 1, 1, tzinfo=UTC), next_at=None)
        text = text_of(page(admin_client))
        for expected in ("At 03:00 every day (Europe/Paris)0 3 * * *", "Every 5 minutes", "Once", "problem",
                         "disabled", "no longer in the code", "over"):  # fmt: skip
            assert expected in text

    def test_a_schedule_s_page_shows_its_next_times_in_its_zone(self, admin_client: Client) -> None:
        schedule = a_schedule()
        run = Run.objects.create(task=TASK, schedule=schedule, scheduled_for=NEXT)
        shown = page(admin_client, schedule)
        text = text_of(shown)
        for day in ("Thu 2060-01-01", "Fri 2060-01-02", "Sat 2060-01-03", "Sun 2060-01-04", "Mon 2060-01-05"):
            assert f"{day} 03:00:00 CET" in text
        assert "2060-01-06" not in text
        assert reverse("admin:django_dispatch_run_change", args=[run.pk]) in shown

    def test_the_page_of_a_bad_row_is_shown(self, admin_client: Client) -> None:
        schedule = a_schedule(cron="61 * * * *", time_zone="Mars/Olympus", problem="There is no time zone 'Mars'.")
        assert "There is no time zone &#x27;Mars&#x27;." in page(admin_client, schedule)

    def test_a_run_names_its_schedule_and_time(self, admin_client: Client) -> None:
        schedule = a_schedule()
        run = Run.objects.create(task=TASK, schedule=schedule, scheduled_for=NEXT, meta={"schedule": "nightly"})
        shown = admin_client.get(reverse("admin:django_dispatch_run_change", args=[run.pk])).content.decode()
        assert reverse("admin:django_dispatch_schedule_change", args=[schedule.pk]) in shown
        assert "2060-01-01 02:00:00" in shown

    def test_who_may_only_view_can_do_nothing(self) -> None:
        schedule = a_schedule()
        client = a_client_with("view_schedule")
        assert "_run_now" not in page(client, schedule)
        assert 'name="action"' not in page(client)
        act(client, "disable", schedule)
        assert Schedule.objects.get().enabled


class TestEditing:
    def test_a_new_one_is_saved_and_to_be_planned(self, admin_client: Client) -> None:
        assert post(admin_client, None)[0] == ""
        schedule = Schedule.objects.get()
        assert (schedule.cron, schedule.time_zone, schedule.args) == ("0 3 * * *", "Europe/Paris", ["never"])
        assert (schedule.queue, schedule.every, schedule.source) == (None, None, "admin")
        assert schedule.planned_revision != schedule.revision

    @pytest.mark.parametrize(
        ("changes", "error"),
        [
            ({"cron": "61 * * * *"}, "is no cron expression (Bad minute)"),
            ({"cron": "0 0 30 2 *"}, "is no cron expression"),
            ({"cron": ""}, "needs a cron, an interval or a single time"),
            ({"every": "00:05:00"}, "needs a cron, an interval or a single time"),
            ({"cron": "", "every": "00:00:00.5"}, "from 1 second to 100 years"),
            ({"time_zone": "Mars/Olympus"}, "not one of the available choices"),
            ({"args": '{"a": 1}'}, "must be a JSON array"),
            ({"args": "nonsense"}, "valid JSON"),
            ({"kwargs": "[1]"}, "must be a JSON object"),
            ({"args": "[1, 2, 3]"}, "cannot be called with these arguments"),
            ({"priority": "101"}, "from -100 to 100"),
            ({"catch_up_window": "-1 00:00:00"}, "catch_up_window must be"),
            ({"catch_up": "some"}, "not one of the available choices"),
            (
                {"start_at_0": "2026-01-02", "start_at_1": "0:0", "end_at_0": "2026-01-01", "end_at_1": "0:0"},
                "its start",
            ),
        ],
    )
    def test_what_a_dispatcher_would_flag_is_refused(
        self, admin_client: Client, changes: dict[str, Any], error: str
    ) -> None:
        assert error in post(admin_client, None, **changes)[0]
        assert not Schedule.objects.exists()

    def test_a_task_that_is_not_known_here_is_a_warning(self, admin_client: Client) -> None:
        errors, messages = post(admin_client, None, task="elsewhere.tasks.report", args="[1]")
        assert errors == ""
        assert "No task elsewhere.tasks.report is known here." in " ".join(messages)

    def test_an_edit_writes_what_was_changed_and_nothing_else(self, admin_client: Client, monkeypatch: Any) -> None:
        schedule = a_schedule()
        written: list[Any] = []
        save = Schedule.save
        monkeypatch.setattr(Schedule, "save", lambda self, **kwargs: (written.append(kwargs), save(self, **kwargs)))
        post(admin_client, schedule, queue="mail", overlap="skip")
        (kwargs,) = written
        # Whether args and kwargs were changed is asked by hidden fields, which a browser sends along.
        assert set(kwargs["update_fields"]) - {"args", "kwargs"} == {"overlap", "queue"}
        schedule.refresh_from_db()
        assert (schedule.queue, schedule.overlap, schedule.next_at) == ("mail", "skip", NEXT)

    def test_of_the_code_s_only_enabled_can_be_changed(self, admin_client: Client) -> None:
        schedule = a_schedule(source="code")
        post(admin_client, schedule, cron="1 1 * * *", task="another", enabled=None)
        schedule.refresh_from_db()
        assert (schedule.cron, schedule.task, schedule.enabled) == ("0 3 * * *", TASK, False)

    def test_what_a_dispatcher_has_in_its_code_cannot_be_deleted(self, admin_client: Client) -> None:
        kept, removed = (
            a_schedule(source="code"),
            a_schedule(name="removed", source="code", declared_at=datetime(2001, 1, 1, tzinfo=UTC)),
        )
        own = a_schedule(name="own")
        Run.objects.create(task=TASK, schedule=own)
        act(admin_client, "delete_selected", kept, own, post="yes")
        assert Schedule.objects.count() == 3
        act(admin_client, "delete_selected", removed, own, post="yes")
        assert list(Schedule.objects.all()) == [kept]
        assert Run.objects.count() == 1


class TestActions:
    def test_run_now_enqueues_a_run_that_is_no_occurrence(self, admin_client: Client) -> None:
        schedule = a_schedule(queue="mail", enabled=False)
        (message,) = act(admin_client, "run_now", schedule)
        run = Run.objects.get()
        assert f"run {run.pk} is enqueued" in message
        assert (run.task, run.args, run.queue, run.source) == (TASK, ["never"], "mail", "schedule")
        assert (run.schedule_id, run.scheduled_for, run.meta) == (schedule.pk, None, {"schedule": "nightly"})
        schedule.refresh_from_db()
        assert schedule.next_at == NEXT

    def test_the_button_saves_and_runs(self, admin_client: Client) -> None:
        schedule = a_schedule()
        assert 'name="_run_now"' in page(admin_client, schedule)
        post(admin_client, schedule, args='["another"]', _run_now="1")
        assert Run.objects.get().args == ["another"]

    def test_what_cannot_be_run_here_says_why(self, admin_client: Client) -> None:
        bad, unknown = a_schedule(args=[1, 2, 3]), a_schedule(name="unknown", task="elsewhere.tasks.report")
        first, second = act(admin_client, "run_now", bad, unknown)
        assert "cannot be called with these arguments" in first
        assert "No task 'elsewhere.tasks.report' is registered" in second
        assert not Run.objects.exists()

    def test_switching_off_and_on_plans_afresh(self, admin_client: Client) -> None:
        schedule = a_schedule()
        for action in ("disable", "disable", "enable"):
            said = act(admin_client, action, schedule)
        assert said == ["1 disabled.", "0 disabled.", "1 enabled."]
        schedule.refresh_from_db()
        assert (schedule.enabled, schedule.next_at, schedule.revision) == (True, None, 3)
