"""Schedules with real dispatchers: on time, each occurrence once whatever dies, and nothing stops the others."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import cycle, islice, pairwise
from typing import Any

import pytest
from django.db.models.functions import Now

from django_dispatch.control import ask
from django_dispatch.models import Run, Schedule
from tests.kit.fixtures import Kit
from tests.kit.runs import wait_until_final
from tests.kit.waiting import wait_for

SECOND = timedelta(seconds=1)
# The poll is too far away to help.
FAR_AWAY = {"lease_ttl": 60, "poll_interval": 50}
SCHEDULED = {"KIT_APPS": "tests.kit.scheduled"}
NEWER = SCHEDULED | {"KIT_CODE": "newer"}
QUICK = "tests.kit.tasks.quick"


def a_schedule(name: str = "each second", **columns: Any) -> Schedule:
    return Schedule.objects.create(**{"name": name, "task": QUICK, "cron": "* * * * * *"} | columns)


def slots(schedule: Schedule) -> list[datetime]:
    """Return the occurrences that were enqueued, in the order of their times."""
    found = Run.objects.filter(schedule=schedule).order_by("scheduled_for").values_list("scheduled_for", flat=True)
    return [slot for slot in found if slot is not None]


def wait_for_slots(schedule: Schedule, count: int, seconds: float = 20) -> list[datetime]:
    __tracebackhide__ = True
    wait_for(lambda: len(slots(schedule)) >= count, seconds, what=f"{count} occurrences")
    return slots(schedule)


@pytest.mark.slow
def test_occurrences_start_at_their_time_and_bodies_are_told_it(kit: Kit) -> None:
    kit.dispatchers(env=SCHEDULED, **FAR_AWAY)
    schedule = a_schedule(task="tests.kit.scheduled.tasks.when")
    wait_for_slots(schedule, 6)
    runs = wait_until_final(*Run.objects.filter(schedule=schedule).order_by("scheduled_for")[:6])
    assert [run.result for run in runs] == [run.scheduled_for.isoformat() for run in runs if run.scheduled_for]
    delays = [run.started_at - run.scheduled_for for run in runs if run.started_at and run.scheduled_for]
    assert all(delay >= timedelta(0) for delay in delays)
    assert sorted(delays)[1] < timedelta(milliseconds=50)


def test_what_is_saved_now_and_due_in_a_moment_is_not_waited_for_until_a_poll(kit: Kit) -> None:
    a = kit.dispatchers(**FAR_AWAY)
    schedule = a_schedule("soon", cron=None, once_at=datetime.now(UTC) + SECOND)
    (run,) = wait_for(lambda: list(Run.objects.filter(schedule=schedule)), 10)
    (run,) = wait_until_final(run)
    assert (run.status, run.source, run.scheduled_for) == ("SUCCESSFUL", "schedule", schedule.once_at)
    a.wait_for_log("Schedule soon: run")
    schedule.refresh_from_db()
    assert (schedule.next_at, schedule.last_at, schedule.problem) == (None, schedule.once_at, "")


@pytest.mark.slow
def test_each_occurrence_is_enqueued_once_while_dispatchers_are_killed(kit: Kit) -> None:
    # A run may be among what is killed again and again.
    how: dict[str, Any] = {"lease_ttl": 3, "is_awaited": False, "settings": {"MAX_INTERRUPTIONS": 100}}
    fleet = [kit.dispatchers(node, **how) for node in "abcd"]
    for dispatcher in fleet:
        dispatcher.wait_until_ready()
    schedule = a_schedule(catch_up="all", overlap="allow")
    for number, place in enumerate(islice(cycle(range(4)), 8), 1):
        wait_for_slots(schedule, number, seconds=60)
        fleet[place].kill9()
        fleet[place] = kit.dispatchers("abcd"[place], **how)
    wait_for_slots(schedule, 12, seconds=60)
    Schedule.objects.update(enabled=False)
    found = slots(schedule)
    assert {later - earlier for earlier, later in pairwise(found)} == {SECOND}
    runs = wait_until_final(*Run.objects.filter(schedule=schedule), seconds=60)
    assert {run.status for run in runs} == {"SUCCESSFUL"}


@pytest.mark.slow
def test_after_three_hours_without_dispatchers(kit: Kit) -> None:
    minute = (datetime.now(UTC).minute + 3) % 5  # so that no time comes while we look
    due_at = datetime.now(UTC).replace(second=0, microsecond=0) - timedelta(hours=3)
    due_at -= timedelta(minutes=(due_at.minute - minute) % 5)
    policies = {
        catch_up: a_schedule(catch_up, cron=f"{minute}-59/5 * * * *", catch_up=catch_up, planned_revision=1)
        for catch_up in ("none", "last", "all")
    }
    Schedule.objects.update(next_at=due_at)
    for node in "ab":
        kit.dispatchers(node)
    wait_for(lambda: not Schedule.objects.filter(next_at__lte=Now()).exists(), what="all moved on")
    missed = slots(policies["all"])
    assert (missed[0], len(missed)) == (due_at, 37)
    assert {later - earlier for earlier, later in pairwise(missed)} == {timedelta(minutes=5)}
    assert slots(policies["last"]) == missed[-1:]
    assert slots(policies["none"]) == []


def test_bad_rows_are_flagged_and_never_stop_the_others(kit: Kit) -> None:
    good = a_schedule()
    bad = {
        "31 February": "('0 0 30 2 *', 'UTC', %(task)s)",
        "no weekday": "('* * * * MON#9', 'UTC', %(task)s)",
        "empty": "('', 'UTC', %(task)s)",
        "no minute": "('61 * * * *', 'UTC', %(task)s)",
        "no zone": "('* * * * * *', 'Mars/Olympus', %(task)s)",
    }
    for name, values in bad.items():
        columns = f"({values[1:-1]}, '{name}')"
        kit.sql.execute(
            f"INSERT INTO django_dispatch_schedule (cron, time_zone, task, name) VALUES {columns}", {"task": QUICK}
        )
    kit.sql.execute(
        "INSERT INTO django_dispatch_schedule (name, task, cron, priority) VALUES ('refused', %s, '* * * * * *', 500)",
        [QUICK],
    )
    kit.sql.execute(
        "INSERT INTO django_dispatch_schedule (name, task, cron, start_at)"
        " VALUES ('endless', %s, '@daily', 'infinity')",
        [QUICK],
    )
    gone = a_schedule("gone", task="shop.tasks.gone")
    a_schedule("broadcast", task="tests.kit.tasks.note_everywhere")
    a = kit.dispatchers()
    wait_for_slots(good, 3)
    flagged = Schedule.objects.exclude(problem="").order_by("name").values_list("name", flat=True)
    wait_for(
        lambda: list(flagged) == sorted([*bad, "refused", "endless", "gone", "broadcast"]),
        what=lambda: str(list(flagged)),
    )
    assert "does not" not in Schedule.objects.get(name="refused").problem
    assert "priority" in Schedule.objects.get(name="refused").problem
    assert a.log.count("Schedule no minute stands still: '61 * * * *' is no cron expression") == 1
    assert not Run.objects.exclude(schedule=good).exists()
    assert not slots(gone)
    seen = len(slots(good))
    wait_for_slots(good, seen + 2)


@pytest.mark.slow
def test_overlap_skip_waits_for_the_run_to_end(kit: Kit) -> None:
    schedule = a_schedule(task="tests.kit.tasks.gated", args=["gate-{attempt}"], overlap="skip")
    a = kit.dispatchers(processes=2)
    kit.gate.wait_until_reached("gate-1")
    a.wait_for_log("Schedule each second: an occurrence is skipped, a run of it has not ended.")
    assert len(slots(schedule)) == 1
    kit.gate.open("gate-1")
    first, second = wait_for_slots(schedule, 2)[:2]
    assert second - first >= 2 * SECOND


class TestTheCodesSchedules:
    @pytest.fixture
    def names(self) -> Callable[[], dict[str, Any]]:
        return lambda: dict(Schedule.objects.values_list("name", "cron"))

    @pytest.mark.slow
    def test_two_versions_side_by_side(self, kit: Kit, names: Callable[[], dict[str, Any]]) -> None:
        """The one that started last says what is; what it does not have goes on while another one has it."""
        path = "tests.kit.scheduled.tasks"
        older = kit.dispatchers("older", env=SCHEDULED)
        wait_for(lambda: names() == {f"{path}.report": "0 3 * * *", f"{path}.report#2": None, f"{path}.removed": None})
        Schedule.objects.filter(name=f"{path}.report#2").update(enabled=False)
        kit.dispatchers("newer", env=NEWER)
        wait_for(lambda: names()[f"{path}.report"] == "0 4 * * *", what="the newer rule")
        assert not Schedule.objects.get(name=f"{path}.report#2").enabled
        older.terminate()
        wait_for(lambda: older.poll() == 0)
        Schedule.objects.update(declared_at=datetime(2001, 1, 1, tzinfo=UTC))
        wait_for(lambda: Schedule.objects.filter(declared_at__year=2001).count() == 1, 40, what="one kept by nobody")
        assert Schedule.objects.get(declared_at__year=2001).name == f"{path}.removed"
        assert names()[f"{path}.report"] == "0 4 * * *"
        wait_for(lambda: self.states().get(f"{path}.removed") == "retired", 40, what="that it is seen by others")
        assert self.states() == {
            f"{path}.report": "enabled",
            f"{path}.report#2": "disabled",
            f"{path}.removed": "retired",
        }

    def states(self) -> dict[str, str]:
        """Return what a dispatcher says of the schedules."""
        (reply,) = ask("producers", timeout=20, expected_replies=1)
        return {schedule["name"]: schedule["state"] for schedule in reply["schedules"]["schedules"]}

    def test_on_start_is_one_run_for_each_start_of_a_dispatcher_of_its_queue(self, kit: Kit) -> None:
        for node in ("a", "b"):
            kit.dispatchers(node, queues="default", env=SCHEDULED)
            wait_for(lambda node=node: Run.objects.filter(meta={"on_start": node}).exists(), what="its run")  # type: ignore[misc]
        runs = wait_until_final(*Run.objects.all())
        assert {(run.task, run.meta["on_start"], run.priority) for run in runs} == {
            ("tests.kit.scheduled.tasks.warm_up", node, 5) for node in ("a", "b")
        }
        assert len(runs) == 2
