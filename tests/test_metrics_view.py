"""The metrics of a process of the web."""

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from django.db import transaction
from django.test import Client
from django.urls import include, path

from django_dispatch import run_again, views
from django_dispatch.metrics.enqueued import Enqueued
from django_dispatch.metrics.families import MOST_QUEUES, OTHER
from django_dispatch.models import Run
from testproject import postgres
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.relay import Relay
from tests.kit.scrape import Scrape

urlpatterns = [path("dispatch/", include("django_dispatch.urls"))]

ENQUEUED = "django_dispatch_runs_enqueued_total"
BASE_DIR = Path(__file__).resolve().parent.parent


@pytest.fixture(autouse=True)
def fresh(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.ROOT_URLCONF = __name__
    monkeypatch.setattr(views, "_database", views._Database())


def look() -> Scrape:
    response = Client().get("/dispatch/metrics")
    assert response.status_code == 200
    assert response["Content-Type"].startswith("text/plain")
    return Scrape(response.content.decode())


def count() -> int:
    return int(look().value(ENQUEUED, task=tasks.quick.path, queue="default"))


def test_what_is_committed_is_counted(kit: Kit) -> None:
    before = count()
    run = tasks.quick.delay()
    assert count() == before + 1
    with transaction.atomic():
        tasks.quick.delay()
        tasks.quick.delay_many([()] * 10)
        assert count() == before + 1
    assert count() == before + 12
    with transaction.atomic():
        tasks.quick.delay()
        transaction.set_rollback(True)
    assert count() == before + 12
    Run.objects.filter(pk=run.pk).update(status="SUCCESSFUL")
    run_again(run.pk)
    assert count() == before + 13


def test_queues_and_leases_are_those_of_the_database(kit: Kit) -> None:
    tasks.quick.delay_many([()] * 3)
    tasks.quick.apply_async(queue="mail", priority=-5)
    tasks.quick.apply_async(queue="mail", priority=5)
    tasks.quick.apply_async(queue="mail", countdown=100)
    kit.sql.execute("UPDATE django_dispatch_run SET enqueued_at = now() - interval '1 hour' WHERE priority = -5")
    kit.sql.execute(
        "INSERT INTO django_dispatch_lease (id, expires_at) VALUES (gen_random_uuid(), now() + interval '1 hour'),"
        " (gen_random_uuid(), now() - interval '1 hour')"
    )
    found = look()
    assert found.by("django_dispatch_queue_ready_runs", "queue") == {("default",): 3, ("mail",): 2}
    assert found.value("django_dispatch_queue_oldest_seconds", queue="mail") == pytest.approx(3600, abs=60)
    assert found.value("django_dispatch_queue_oldest_seconds", queue="default") < 60
    assert found.by("django_dispatch_leases", "state") == {("ACTIVE",): 1}
    tasks.quick.delay()  # is asked for again only after a while
    assert look().value("django_dispatch_queue_ready_runs", queue="default") == 3


def test_a_scrape_answers_while_the_database_says_nothing(kit: Kit, relay: Relay, settings: Any) -> None:
    from django.db import connections

    connections.settings["relayed"] = connections.settings["default"] | postgres.django_database(relay.url)
    settings.DISPATCH = {"DATABASE": "relayed"}
    try:
        relay.swallow()
        began = time.monotonic()
        found = look()
        assert time.monotonic() - began < 1
        assert "django_dispatch_queue_figures_age_seconds" not in found.names
    finally:
        relay.refuse()
        thread = views._database._thread
        assert thread is not None
        thread.join(20)
        del connections.settings["relayed"]


def test_without_prometheus_client_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(views, "can_be_exposed", lambda: False)
    response = Client().get("/dispatch/metrics")
    assert (response.status_code, 'pip install "django-dispatch[metrics]"' in response.content.decode()) == (501, True)


def test_queues_that_are_too_many_are_counted_together() -> None:
    mine = Enqueued()
    for number in range(MOST_QUEUES + 10):
        mine.count("shop.add", f"customer{number}", 1)
    samples = dict(mine.family().samples)
    assert len(samples) == MOST_QUEUES + 1
    assert samples["shop.add", OTHER] == 10


SHARED = """
import sys, django
django.setup()
from django_dispatch.metrics.enqueued import enqueued
for _ in range(int(sys.argv[1])):
    enqueued.count("shop.add", "default", 2)
from django_dispatch.metrics.exposition import render
print(render([enqueued.family()], "")[0].decode())
"""


def test_processes_that_share_a_folder_answer_for_all(tmp_path: Path) -> None:
    env = os.environ | {"PROMETHEUS_MULTIPROC_DIR": str(tmp_path), "DJANGO_SETTINGS_MODULE": "tests.settings"}
    env["DATABASE_URL"] = "postgres://nobody@localhost/nothing"
    totals = []
    for number in ("3", "4"):
        done = subprocess.run(
            [sys.executable, "-c", SHARED, number], env=env, cwd=BASE_DIR, capture_output=True, text=True, check=True
        )
        totals.append(Scrape(done.stdout).value(ENQUEUED, task="shop.add", queue="default"))
    assert totals == [6, 14]
