"""Occurrences of tasks with limits, and what becomes of those that would be duplicates."""

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.db import OperationalError
from django.db.models.functions import Now

from django_dispatch.models import Run, Schedule
from django_dispatch.store.base import Store
from django_dispatch.store.values import NewRun

from .tables import LONG_AGO, acquire, add_run, add_running, claim, finish, seconds_from_now, stored, success
from .test_schedules import NEXT, SLOT, a_schedule, firing, now_as, see

AT_KEY = {"concurrency_key": "key:k", "concurrency_limit": 1}
HOUR = timedelta(hours=1)


def unique(word: str = "discard", **changes: Any) -> dict[str, Any]:
    return {"unique_key": "k", "on_duplicate": word} | changes


def fire(store: Store, *slots: Any, limited_queues: tuple[str, ...] = (), **changes: Any) -> Any:
    (fired,) = store.fire([firing(see(store)[0], *(slots or (SLOT,)), **changes)], limited_queues=limited_queues)
    return fired


def test_an_occurrence_waits_at_its_key(store: Store) -> None:
    a_schedule()
    fired = fire(store, SLOT, SLOT + HOUR, **AT_KEY, rate_amount=5, rate_seconds=1.0, expires_seconds=60.0)
    runs = Run.objects.all()
    assert {(run.status, run.blocked_by, run.concurrency_limit) for run in runs} == {("BLOCKED", "key:k", 1)}
    assert {(run.rate_amount, run.rate_seconds) for run in runs} == {(5, 1.0)}
    assert (fired.blocked_by, sorted(fired.run_ids)) == ("key:k", sorted(run.pk for run in runs))
    assert 50 < seconds_from_now("expires_at", fired.run_ids[0]) <= 60


def test_it_takes_its_turn(store: Store) -> None:
    for _ in range(3):
        add_run(fair_key="a")
    a_schedule()
    fired = fire(store, fair_key="b")
    assert stored(fired.run_ids[0]).fair_key == "b"
    assert [stored(run.id).fair_key for run in claim(store, acquire(store), limit=2)] == ["a", "b"]


def test_in_a_queue_with_a_limit_it_waits_there(store: Store) -> None:
    a_schedule(queue="mail")
    fired = fire(store, limited_queues=("mail",))
    assert (stored(fired.run_ids[0]).status, fired.blocked_by) == ("BLOCKED", "queue:mail")


@pytest.mark.parametrize("status", ["READY", "SUCCESSFUL"])
def test_a_duplicate_is_let_go_and_the_schedule_moves_on(store: Store, status: str) -> None:
    schedule = a_schedule()
    there = add_run(unique_key="k", status=status, unique_until=Now() + HOUR, on_duplicate="discard")
    assert fire(store, **unique()).run_ids == []
    assert (list(Run.objects.values_list("pk", flat=True)), now_as(schedule).next_at) == ([there], NEXT)


def test_one_whose_time_is_over_gives_way(store: Store) -> None:
    a_schedule()
    there = add_run(unique_key="k", status="SUCCESSFUL", unique_until=LONG_AGO, on_duplicate="discard")
    fired = fire(store, **unique(unique_seconds=60.0))
    assert (stored(there).unique_key, stored(fired.run_ids[0]).unique_key) == (None, "k")
    assert 50 < seconds_from_now("unique_until", fired.run_ids[0]) <= 60


def test_of_several_occurrences_that_are_duplicates_one_is_enqueued(store: Store) -> None:
    a_schedule()
    fired = fire(store, SLOT, SLOT + HOUR, **unique())
    assert [stored(run_id).scheduled_for for run_id in fired.run_ids] == [SLOT]


def test_an_occurrence_takes_the_place_of_the_one_that_waits(store: Store) -> None:
    a_schedule()
    waiting = add_run(unique_key="k", on_duplicate="replace")
    fired = fire(store, **unique("replace"))
    assert stored(waiting).status == "CANCELLED"
    assert stored(fired.run_ids[0]).status == "READY"


def test_who_comes_second_takes_the_place_of_nobody(store: Store, other: Store) -> None:
    a_schedule()
    (seen,) = see(other)
    fired = fire(store, **unique("replace"))
    assert other.fire([firing(seen, SLOT, **unique("replace"))]) == []
    assert stored(fired.run_ids[0]).status == "READY"


@pytest.mark.parametrize("columns", [{"scheduled_for": None}, {"scheduled_for": SLOT}], ids=["overlap", "slot"])
def test_an_occurrence_that_is_skipped_takes_the_place_of_nobody(store: Store, columns: Any) -> None:
    schedule = a_schedule(overlap="allow" if columns["scheduled_for"] else "skip")
    waiting = add_run(unique_key="k", on_duplicate="replace", schedule_id=schedule.pk, **columns)
    assert fire(store, **unique("replace")).run_ids == []
    assert stored(waiting).status == "READY"


def test_a_key_that_was_made_of_other_arguments_is_not_used(store: Store) -> None:
    schedule = a_schedule(args=[1])
    (seen,) = see(store)
    Schedule.objects.filter(pk=schedule.pk).update(args=[2])
    wanted = firing(seen, SLOT, **unique(), seen_args=seen.args, seen_kwargs=seen.kwargs)
    assert store.fire([wanted]) == []
    assert store.fire([wanted._replace(seen_args="[2]")])[0].run_ids != []


def test_a_run_of_its_key_that_is_not_committed_is_not_waited_for_long(store: Store, database_url: str) -> None:
    schedule = a_schedule()
    with psycopg.connect(database_url) as holder:
        holder.execute("INSERT INTO django_dispatch_run (task, unique_key) VALUES ('shop.add', 'k')")
        with pytest.raises(OperationalError, match="lock timeout"):
            fire(store, **unique())
        assert now_as(schedule).next_at == SLOT
    assert fire(store, **unique()).run_ids == []


def test_a_start_keeps_to_limits_too(store: Store) -> None:
    new = NewRun("shop.warm", queue="mail", is_limited=True, expires_seconds=60.0, unique_key="k")
    (first,) = store.enqueue_at_start([new._replace(uuid="start:1:shop.warm")])
    assert (first.status, first.blocked_by) == ("BLOCKED", "queue:mail")
    assert 50 < seconds_from_now("expires_at", first.id) <= 60
    assert store.enqueue_at_start([new._replace(uuid="start:2:shop.warm")]) == []


class TestAnotherQueue:
    """A body asks to be tried again in another queue."""

    def test_it_waits_at_the_limit_there_and_holds_no_place_where_it_was(self, store: Store) -> None:
        lease = acquire(store)
        run = add_running(store, lease, places=2)
        waiting = add_run(queue="added", status="BLOCKED", blocked_by="queue:added")
        finish(store, lease, success(run, status="SCHEDULED", delay_seconds=0.0, queue="b"))
        promoted = store.promote(limit=10, limited_queues=["added", "b"])
        assert (promoted.blocked_keys, stored(run.id).status, stored(run.id).blocked_by) == (
            *(["queue:b"], "BLOCKED", "queue:b"),
        )
        limits = '{"added": {"concurrency": 1}, "b": {"concurrency": 1}}'
        assert store.admit(["queue:added"], most=10, queue_limits=limits).queues == ["added"]
        assert stored(waiting).status == "READY"
        add_run(queue="b", places=2)
        assert store.admit(["queue:b"], most=10, queue_limits=limits).queues == []
