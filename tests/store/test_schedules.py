"""Occurrences of schedules: each enqueued once, by whoever looks; and what dispatchers say of the code's schedules."""

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest
from django.db import DataError, IntegrityError, connection, transaction
from django.db.models.functions import Now

from django_dispatch.models import Run, Schedule, Status
from django_dispatch.store.base import Store
from django_dispatch.store.schedule_rows import Declaration, DueSchedule, Firing
from django_dispatch.store.values import NewRun
from tests.wakeups import Ear

from .tables import acquire, add_run, claim

TASK = "shop.report"
SLOT = datetime(2026, 3, 1, 12, tzinfo=UTC)
NEXT = datetime(2060, 1, 1, tzinfo=UTC)


def a_schedule(*, next_at: Any = SLOT, **columns: Any) -> Schedule:
    """Add a schedule that is planned: for a time that has passed, unless said otherwise."""
    needed = {"name": "a report", "task": TASK, "cron": "0 12 * * *", "planned_revision": 1}
    schedule = Schedule.objects.create(**needed | columns)
    Schedule.objects.filter(pk=schedule.pk).update(next_at=next_at)
    return schedule


def now_as(schedule: Schedule) -> Schedule:
    return Schedule.objects.get(pk=schedule.pk)


def see(store: Store, *tasks: str) -> list[DueSchedule]:
    return list(store.due_schedules(tasks or (TASK,), limit=100)[0])


def firing(seen: DueSchedule, *slots: datetime, **changes: Any) -> Firing:
    state = Firing(seen.id, seen.revision, seen.token, slots, NEXT, "", "default", 0, "")
    return state._replace(**changes)


def a_declaration(**changes: Any) -> Declaration:
    declaration = Declaration(
        name="of the code",
        task=TASK,
        args="[1]",
        kwargs='{"a": "b"}',
        queue=None,
        priority=None,
        cron="0 3 * * *",
        every_seconds=None,
        time_zone="Europe/Paris",
        start_at=None,
        end_at=None,
        catch_up="all",
        catch_up_window_seconds=60.0,
        overlap="skip",
    )
    return declaration._replace(**changes)


class TestDue:
    def test_what_is_due_is_seen_with_its_rule(self, store: Store) -> None:
        schedule = a_schedule(time_zone="Europe/Paris", catch_up_window=timedelta(hours=2), overlap="skip")
        (seen,) = see(store)
        assert (seen.id, seen.task, seen.revision, seen.is_planned) == (schedule.pk, TASK, 1, True)
        assert (seen.next_at, seen.cron, seen.time_zone) == (SLOT, "0 12 * * *", "Europe/Paris")
        assert (seen.catch_up, seen.catch_up_window, seen.overlap) == ("last", timedelta(hours=2), "skip")
        assert seen.flaw == ""
        assert abs(seen.now - datetime.now(UTC)) < timedelta(minutes=1)

    def test_what_is_due_later_is_told_in_seconds(self, store: Store) -> None:
        a_schedule(name="the later one", next_at=NEXT)
        a_schedule(next_at=Now() + timedelta(seconds=50))
        seen, next_seconds = store.due_schedules([TASK], limit=100)
        assert seen == []
        assert next_seconds is not None
        assert 40 < next_seconds <= 50

    @pytest.mark.postgres
    def test_what_is_due_now_or_never_is_not_what_is_due_next(self, store: Store) -> None:
        a_schedule(name="now")
        a_schedule(name="never", next_at=None)
        for_ever = a_schedule(name="for ever", next_at=None)
        with connection.cursor() as cursor:
            cursor.execute("UPDATE django_dispatch_schedule SET next_at = 'infinity' WHERE id = %s", [for_ever.pk])
        seen, next_seconds = store.due_schedules([TASK], limit=100)
        assert ([one.name for one in seen], next_seconds) == (["now"], None)

    def test_a_rule_that_is_new_or_has_changed_is_seen_at_once(self, store: Store) -> None:
        Schedule.objects.create(name="new", task=TASK, cron="0 12 * * *")
        changed = a_schedule(next_at=NEXT)
        assert [seen.name for seen in see(store)] == ["new"]
        Schedule.objects.filter(pk=changed.pk).update(cron="0 13 * * *")
        assert {(seen.name, seen.is_planned) for seen in see(store)} == {("new", False), ("a report", False)}

    @pytest.mark.parametrize(
        "columns", [{"enabled": False}, {"task": "shop.unknown"}, {"source": "code", "declared_at": SLOT}]
    )
    def test_what_is_off_unknown_or_in_no_code_any_more_is_not_due(self, store: Store, columns: Any) -> None:
        a_schedule(**columns)
        assert see(store) == []

    def test_the_longest_due_come_first(self, store: Store) -> None:
        for days in (1, 3, 2):
            a_schedule(name=f"{days} days", next_at=SLOT - timedelta(days=days))
        seen, _ = store.due_schedules([TASK], limit=2)
        assert [one.name for one in seen] == ["3 days", "2 days"]

    @pytest.mark.parametrize(
        ("assignment", "flaw"),
        [
            ("start_at = 'infinity'", "out of range"),
            ("once_at = '20000-01-01'", "out of range"),
            ("catch_up_window = '2000000000 days'", "out of range"),
            ("args = '{}'", "JSON array"),
            ("kwargs = '[]'", "JSON array"),
        ],
    )
    def test_a_row_that_python_cannot_read_is_seen_with_its_flaw(
        self, store: Store, assignment: str, flaw: str
    ) -> None:
        a_schedule(name="a good one")
        bad = a_schedule(name="a bad one")
        with connection.cursor() as cursor:
            cursor.execute(f"UPDATE django_dispatch_schedule SET {assignment} WHERE id = %s", [bad.pk])
        seen = {one.name: one for one in see(store)}
        assert seen["a good one"].flaw == ""
        assert flaw in seen["a bad one"].flaw


class TestFire:
    def test_an_occurrence_becomes_a_run_and_the_schedule_moves_on(self, store: Store) -> None:
        schedule = a_schedule(args=[1, "é"], kwargs={"a": None}, queue="mail", priority=7)
        (fired,) = store.fire([firing(see(store)[0], SLOT)])
        run = Run.objects.get()
        assert (fired.id, fired.queue, fired.run_ids) == (schedule.pk, "mail", [run.pk])
        assert (run.task, run.args, run.kwargs, run.queue, run.priority) == (TASK, [1, "é"], {"a": None}, "mail", 7)
        assert (run.status, run.source, run.schedule_id, run.scheduled_for) == ("READY", "schedule", schedule.pk, SLOT)
        assert run.meta == {"schedule": "a report"}
        assert (now_as(schedule).next_at, now_as(schedule).last_at) == (NEXT, SLOT)
        assert see(store) == []

    def test_what_the_schedule_does_not_say_is_as_the_task_says(self, store: Store) -> None:
        a_schedule()
        store.fire(
            [
                firing(
                    see(store)[0],
                    SLOT,
                    task_queue="slow",
                    task_priority=-5,
                    on_lost="fail",
                    retention='{"FAILED": 60.0}',
                )
            ]
        )
        run = Run.objects.get()
        assert (run.queue, run.priority, run.on_lost, run.retention) == ("slow", -5, "fail", {"FAILED": 60.0})

    def test_a_body_is_told_its_time_by_the_rule(self, store: Store) -> None:
        a_schedule()
        store.fire([firing(see(store)[0], SLOT)])
        (claimed,) = claim(store, acquire(store))
        assert claimed.scheduled_for == SLOT.timestamp()

    def test_two_dispatchers_that_saw_the_same_enqueue_it_once(self, store: Store, other: Store) -> None:
        a_schedule()
        (first,), (second,) = see(store), see(other)
        assert store.fire([firing(first, SLOT)])
        assert other.fire([firing(second, SLOT + timedelta(hours=1))]) == []
        assert Run.objects.get().scheduled_for == SLOT

    def test_who_comes_while_another_one_fires_waits_for_nobody(self, store: Store, database_url: str) -> None:
        a_schedule()
        (seen,) = see(store)
        with psycopg.connect(database_url) as holder:
            holder.execute("SELECT FROM django_dispatch_schedule FOR NO KEY UPDATE")
            assert store.fire([firing(seen, SLOT)]) == []
        assert len(store.fire([firing(seen, SLOT)])) == 1

    def test_many_at_once_enqueue_each_occurrence_once(self, new_store: Callable[[], Store]) -> None:
        a_schedule(cron="* * * * * *")
        slots = [SLOT + timedelta(seconds=number) for number in range(60)]
        stores = [new_store() for _ in range(4)]

        def race(store: Store) -> None:
            while due := see(store):
                slot = due[0].next_at
                assert slot is not None
                following = slot + timedelta(seconds=1) if slot < slots[-1] else NEXT
                store.fire([firing(due[0], slot, next_at=following)])

        threads = [threading.Thread(target=race, args=[store]) for store in stores]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert list(Run.objects.order_by("scheduled_for").values_list("scheduled_for", flat=True)) == slots

    def test_a_rule_that_was_changed_meanwhile_is_left_alone(self, store: Store) -> None:
        schedule = a_schedule()
        (seen,) = see(store)
        Schedule.objects.filter(pk=schedule.pk).update(cron="0 13 * * *")
        assert store.fire([firing(seen, SLOT, token=None)]) == []
        assert not Run.objects.exists()

    @pytest.mark.postgres
    def test_one_that_was_switched_off_meanwhile_is_left_alone(self, store: Store) -> None:
        schedule = a_schedule()
        (seen,) = see(store)
        with connection.cursor() as cursor:  # as a restored row might be
            cursor.execute("ALTER TABLE django_dispatch_schedule DISABLE TRIGGER USER")
            Schedule.objects.filter(pk=schedule.pk).update(enabled=False)
            cursor.execute("ALTER TABLE django_dispatch_schedule ENABLE TRIGGER USER")
        assert store.fire([firing(seen, SLOT)]) == []

    def test_an_occurrence_whose_run_is_there_is_not_enqueued_again(self, store: Store) -> None:
        schedule = a_schedule()
        add_run(schedule_id=schedule.pk, scheduled_for=SLOT, status=Status.SUCCESSFUL)
        (fired,) = store.fire([firing(see(store)[0], SLOT, SLOT + timedelta(hours=1))])
        assert len(fired.run_ids) == 1
        assert Run.objects.count() == 2

    @pytest.mark.parametrize("status", [Status.READY, Status.SCHEDULED, Status.BLOCKED])
    def test_overlap_skip_enqueues_nothing_beside_a_run_that_has_not_ended(self, store: Store, status: Status) -> None:
        schedule = a_schedule(overlap="skip")
        add_run(schedule_id=schedule.pk, status=status)
        (fired,) = store.fire([firing(see(store)[0], SLOT)])
        assert fired.run_ids == []
        assert (Run.objects.count(), now_as(schedule).last_at) == (1, SLOT)

    def test_overlap_skip_looks_at_its_own_runs_that_have_not_ended(self, store: Store) -> None:
        schedule = a_schedule(overlap="skip")
        add_run(schedule_id=schedule.pk, status=Status.FAILED)
        add_run(schedule_id=schedule.pk + 1)
        (fired,) = store.fire([firing(see(store)[0], SLOT)])
        assert len(fired.run_ids) == 1

    def test_overlap_allow_enqueues_beside_it(self, store: Store) -> None:
        schedule = a_schedule()
        add_run(schedule_id=schedule.pk)
        (fired,) = store.fire([firing(see(store)[0], SLOT)])
        assert len(fired.run_ids) == 1

    def test_a_problem_stops_it_until_its_rule_is_changed(self, store: Store) -> None:
        schedule = a_schedule(cron="61 * * * *", planned_revision=0)
        store.fire([firing(see(store)[0], next_at=None, problem="No cron.")])
        assert see(store) == []
        assert now_as(schedule).problem == "No cron."
        Schedule.objects.filter(pk=schedule.pk).update(cron="1 * * * *")
        assert now_as(schedule).problem == ""
        assert len(see(store)) == 1

    def test_a_run_that_cannot_be_stored_leaves_everything_as_it_was(self, store: Store) -> None:
        schedule = a_schedule(priority=500)
        with pytest.raises((DataError, IntegrityError)):
            store.fire([firing(see(store)[0], SLOT)])
        assert now_as(schedule).next_at == SLOT


class TestWhoeverWrites:
    """What the table sees to, for the admin, for code and for psql."""

    def test_a_stale_save_does_not_put_the_times_back(self, store: Store) -> None:
        schedule = a_schedule()
        stale = now_as(schedule)
        store.fire([firing(see(store)[0], SLOT)])
        stale.args = [2]
        stale.save()
        assert (now_as(schedule).next_at, now_as(schedule).last_at, now_as(schedule).args) == (NEXT, SLOT, [2])

    def test_a_save_of_who_made_it_does_not_undo_its_plan(self, store: Store) -> None:
        schedule = Schedule.objects.create(name="a report", task=TASK, cron="0 12 * * *")
        store.fire([firing(see(store)[0])])
        schedule.args = [2]
        schedule.save()
        assert (now_as(schedule).next_at, now_as(schedule).args) == (NEXT, [2])

    def test_a_plan_of_an_unchanged_rule_does_not_go_back(self, store: Store) -> None:
        schedule = a_schedule(next_at=NEXT)
        Schedule.objects.filter(pk=schedule.pk).update(next_at=SLOT, planned_revision=0, revision=9)
        assert (now_as(schedule).next_at, now_as(schedule).revision) == (NEXT, 1)

    @pytest.mark.parametrize(
        "change",
        [
            {"cron": "1 1 * * *"},
            {"cron": None, "every": timedelta(hours=1)},
            {"time_zone": "Asia/Tokyo"},
            {"start_at": SLOT},
            {"end_at": NEXT},
            {"enabled": False},
        ],
    )
    def test_a_changed_rule_is_planned_afresh_and_wakes(self, ear: Ear, change: dict[str, Any]) -> None:
        schedule = a_schedule(problem="an old one")
        ear.heard()
        Schedule.objects.filter(pk=schedule.pk).update(**change)
        changed = now_as(schedule)
        assert (changed.revision, changed.planned_revision, changed.problem) == (2, 1, "")
        assert changed.next_at is None
        assert ear.heard() == ["schedule:changed"]

    def test_what_is_no_part_of_the_rule_wakes_nobody(self, ear: Ear) -> None:
        schedule = a_schedule()
        ear.heard()
        Schedule.objects.filter(pk=schedule.pk).update(args=[1], queue="mail", last_at=SLOT)
        assert ear.heard() == []
        assert now_as(schedule).revision == 1

    def test_a_new_one_wakes_after_its_commit(self, ear: Ear) -> None:
        with transaction.atomic():
            Schedule.objects.create(name="new", task=TASK, every=timedelta(hours=1))
            assert ear.heard() == []
        assert ear.heard() == ["schedule:changed"]

    def test_name_and_task_with_a_rule_are_a_whole_schedule_in_sql(self, store: Store, database_url: str) -> None:
        with psycopg.connect(database_url, autocommit=True) as sql:
            sql.execute("INSERT INTO django_dispatch_schedule (name, task, cron) VALUES ('n', %s, '@daily')", [TASK])
        (seen,) = see(store)
        assert (seen.name, seen.is_planned, seen.catch_up, seen.flaw) == ("n", False, "last", "")


class TestDeclare:
    def test_the_code_s_schedules_are_recorded_and_marked(self, store: Store) -> None:
        assert store.declare([a_declaration()]) == {"of the code": "recorded"}
        schedule = Schedule.objects.get()
        assert (schedule.source, schedule.task, schedule.args, schedule.kwargs) == ("code", TASK, [1], {"a": "b"})
        assert (schedule.cron, schedule.time_zone, schedule.every) == ("0 3 * * *", "Europe/Paris", None)
        assert (schedule.catch_up, schedule.catch_up_window) == ("all", timedelta(minutes=1))
        assert schedule.overlap == "skip"
        assert len(see(store)) == 1

    def test_the_same_again_changes_neither_plan_nor_what_was_switched_off(self, store: Store) -> None:
        store.declare([a_declaration()])
        Schedule.objects.update(enabled=False)
        revision = Schedule.objects.get().revision
        store.declare([a_declaration()])
        assert (Schedule.objects.get().revision, Schedule.objects.get().enabled) == (revision, False)

    def test_another_rule_of_the_same_name_takes_its_place(self, store: Store) -> None:
        store.declare([a_declaration()])
        store.declare([a_declaration(cron=None, every_seconds=90.0, args="[2]")])
        schedule = Schedule.objects.get()
        assert (schedule.cron, schedule.every, schedule.args) == (None, timedelta(seconds=90), [2])
        assert schedule.revision == 2

    def test_one_made_by_hand_keeps_its_name(self, store: Store) -> None:
        schedule = a_schedule(name="of the code")
        assert store.declare([a_declaration()]) == {"of the code": "taken"}
        assert now_as(schedule).cron == "0 12 * * *"

    def test_one_that_somebody_edits_is_not_waited_for(self, store: Store, database_url: str) -> None:
        store.declare([a_declaration()])
        with psycopg.connect(database_url) as editor:
            editor.execute("SELECT FROM django_dispatch_schedule FOR UPDATE")
            assert store.declare([a_declaration(), a_declaration(name="another")]) == {"another": "recorded"}
        assert store.declare([a_declaration()]) == {"of the code": "recorded"}

    def test_it_is_due_for_as_long_as_a_dispatcher_has_it(self, store: Store) -> None:
        store.declare([a_declaration(), a_declaration(name="removed")])
        Schedule.objects.update(declared_at=Now() - timedelta(seconds=200))
        assert see(store) == []
        store.keep_declared(["of the code", "unheard of"])
        assert [seen.name for seen in see(store)] == ["of the code"]
        states = {state.name: state.is_retired for state in store.schedule_states(limit=10)}
        assert states == {"of the code": False, "removed": True}


class TestUnknown:
    @pytest.mark.parametrize(("late", "flagged"), [(30, False), (90, True)])
    def test_what_nobody_fires_in_a_minute_is_flagged_once(self, store: Store, late: int, flagged: bool) -> None:
        schedule = a_schedule(task="shop.gone", next_at=Now() - timedelta(seconds=late))
        found = store.flag_unknown([TASK], "Not known.")
        assert found == ([("a report", "shop.gone")] if flagged else [])
        assert now_as(schedule).problem == ("Not known." if flagged else "")
        assert store.flag_unknown([TASK], "Not known.") == []

    def test_who_knows_it_fires_it_and_takes_the_flag_down(self, store: Store) -> None:
        schedule = a_schedule()
        store.flag_unknown(["another"], "Not known.")
        assert now_as(schedule).problem == "Not known."
        store.fire([firing(see(store)[0], SLOT)])
        assert now_as(schedule).problem == ""


def test_a_start_is_one_run_however_often_it_is_said(store: Store) -> None:
    run = NewRun(
        "shop.warm", queue="mail", priority=3, on_lost="fail", uuid="start:1:shop.warm", meta='{"on_start": "a node"}'
    )
    store.enqueue_at_start([run])
    store.enqueue_at_start([run])
    store.enqueue_at_start([run._replace(uuid="start:2:shop.warm")])
    found = Run.objects.values_list("task", "queue", "priority", "on_lost", "source", "meta")
    assert list(found) == [("shop.warm", "mail", 3, "fail", "schedule", {"on_start": "a node"})] * 2


def test_states_show_problems_first_and_then_what_is_due_next(store: Store) -> None:
    a_schedule(name="later", next_at=NEXT)
    a_schedule(name="sooner")
    a_schedule(name="bad", problem="No cron.")
    assert [state.name for state in store.schedule_states(limit=2)] == ["bad", "sooner"]
