"""Runs by schedules keep the limits of their tasks, and are no duplicates, under real dispatchers."""

from collections import Counter
from pathlib import Path

import psycopg
import pytest

from django_dispatch import run_again, run_now
from django_dispatch.models import Run, Schedule
from tests.kit import limited
from tests.kit.fixtures import Kit
from tests.kit.ledger import most_at_once
from tests.kit.runs import statuses, wait_for_status, wait_until_final
from tests.kit.waiting import wait_for

from .test_schedules import a_schedule, slots, wait_for_slots

LIMITED = {"KIT_APPS": "tests.kit.scheduled", "KIT_CODE": "limited"}
BY_FUNCTION = "tests.kit.scheduled.tasks.one_by_function"


@pytest.mark.slow
def test_occurrences_keep_the_limits_of_their_tasks(kit: Kit) -> None:
    limits = {"QUEUE_LIMITS": {"mail": 1}}
    a = kit.dispatchers(processes=6, env=LIMITED, settings=limits)
    of_key = a_schedule("of a key", task=limited.one.path, args=["k", "held"])
    of_queue = a_schedule("of a queue", task="tests.kit.tasks.gated", args=["held"], queue="mail")
    discarded = a_schedule("discarded", task=limited.discard.path, args=[1, "held"])
    for schedule in (of_key, of_queue):
        wait_for_slots(schedule, 3)
    kit.gate.wait_until_reached("held", times=3)
    a.wait_for_log("Schedule discarded: an occurrence is skipped, it would be a duplicate.")
    Schedule.objects.update(enabled=False)
    for schedule in (of_key, of_queue):
        found = Counter(Run.objects.filter(schedule=schedule).values_list("status", flat=True))
        assert (found["RUNNING"], set(found)) == (1, {"RUNNING", "BLOCKED"})
    assert len(slots(discarded)) == 1
    kit.gate.open("held")
    by_function = Run.objects.filter(task=BY_FUNCTION)
    for runs in (by_function.filter(schedule=None), by_function.exclude(schedule=None)):
        wait_for(runs.exists, what="runs of the start, and by its schedule")
        assert {(run.concurrency_key, run.expires_at is None) for run in runs} == {("key:by!", False)}
    wait_until_final(*Run.objects.all(), seconds=60)
    runs_of_key = set(Run.objects.filter(schedule=of_key).values_list("pk", flat=True))
    assert most_at_once(row for row in kit.ledger.rows() if row.run_id in runs_of_key) == 1


def test_a_schedule_whose_key_cannot_be_made_stands_still_and_says_so(kit: Kit) -> None:
    a_schedule("no argument", task=limited.one.path)
    a_schedule("by hand", task=BY_FUNCTION, args=["another"])
    good = a_schedule()
    kit.dispatchers(env=LIMITED)
    wait_for_slots(good, 2)
    problems = dict(Schedule.objects.exclude(problem="").values_list("name", "problem"))
    assert "missing a required argument: 'key'" in problems["no argument"]
    assert "its key is a function" in problems["by hand"]


@pytest.mark.slow
def test_a_key_that_is_being_enqueued_holds_up_its_own_schedule_only(kit: Kit, database_url: str) -> None:
    key = limited.discard.new_run((1,), {}).unique_key
    with psycopg.connect(database_url) as application:
        application.execute("INSERT INTO django_dispatch_run (task, unique_key) VALUES ('shop.add', %s)", [key])
        held = a_schedule("held", task=limited.discard.path, args=[1])
        good = a_schedule()
        kit.dispatchers()
        wait_for_slots(good, 3)
        assert not slots(held)
        application.rollback()
        wait_for_slots(held, 1)


def test_run_now_keeps_to_limits_and_is_no_duplicate(db: None) -> None:
    schedule = a_schedule(task=limited.queue_one.path, args=["k"], enabled=False)
    first, second = run_now(schedule), run_now(schedule)
    assert (first.status, first.source, first.schedule_id) == ("BLOCKED", "schedule", schedule.pk)
    assert first.meta == {"schedule": "each second"}
    assert (second.pk, second.is_duplicate) == (first.pk, True)
    Run.objects.update(status="CANCELLED", finished_at="2026-01-01T00:00Z", blocked_by=None, unique_key=None)
    assert run_again(first).blocked_by == "serial:key:k"


def test_places_of_what_expires_are_free_at_once(kit: Kit) -> None:
    """No sweep comes for a minute."""
    kit.dispatchers(processes=1, lease_ttl=120, poll_interval=60)
    busy = limited.discard.delay(1, "held")
    kit.gate.wait_until_reached("held")
    late, following = limited.one.apply_async(("k",), expires=2), limited.one.delay("k")
    wait_for_status(late, "READY")
    wait_for_status(following, "READY", seconds=30)
    assert statuses([late]) == ["CANCELLED"]
    kit.gate.open("held")
    wait_until_final(busy, following)


def test_what_ends_in_its_own_transaction_makes_room_at_once_and_stays_unique(kit: Kit, tmp_path: Path) -> None:
    """No sweep comes for a minute, and no second look."""
    (tmp_path / "sabotage").write_text("dispatcher look_once")
    kit.dispatchers(processes=2, lease_ttl=120, poll_interval=60)
    runs = limited.atomic.delay_many([(number,) for number in range(6)])
    wait_until_final(*runs, seconds=30)
    assert most_at_once(kit.ledger.rows()) == 1
    assert limited.atomic.delay(3).is_duplicate
