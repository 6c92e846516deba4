"""Claiming: which runs a dispatcher gets, in which order, how many, and under which lease."""

import json
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest

from django_dispatch.models import Lease, OnLost, Run, Status
from django_dispatch.store.base import Store
from django_dispatch.store.values import Settlement

from .tables import (
    FAR_OFF,
    LONG_AGO,
    acquire,
    add_run,
    add_running,
    add_runs,
    claim,
    columns_of,
    expire,
    finish,
    statuses,
    stored,
)


def ids_of(runs: Any) -> list[int]:
    return [run.id for run in runs]


def test_a_claimed_run_is_running_under_the_lease(store: Store) -> None:
    lease_id = acquire(store)
    run_id = add_run()
    assert ids_of(claim(store, lease_id)) == [run_id]
    run = stored(run_id)
    assert (run.status, run.lease_id, run.epoch, run.attempt) == (Status.RUNNING, lease_id, 1, 1)
    assert run.started_at is not None
    assert run.started_at >= run.enqueued_at


def test_a_claim_brings_all_that_an_executor_needs_and_payloads_as_they_are_stored(store: Store) -> None:
    number = 123456789012345678901234567890
    run_id = add_run(
        task="shop.pay",
        queue="mail",
        priority=-7,
        args=[number, "ü"],
        kwargs={"a": None},
        attempt=4,
        epoch=8,
        failures=2,
        interruptions=1,
        max_attempts=5,
        timeout=timedelta(seconds=2.5),
        on_lost=OnLost.FAIL,
    )
    (run,) = claim(store, acquire(store), queues=["mail"])
    assert (run.id, run.task, run.queue, run.priority) == (run_id, "shop.pay", "mail", -7)
    assert (json.loads(run.args), run.kwargs) == ([number, "ü"], '{"a": null}')
    assert (run.attempt, run.epoch, run.failures, run.interruptions) == (5, 9, 2, 1)
    assert (run.max_attempts, run.timeout_seconds, run.on_lost) == (5, 2.5, "fail")


def test_what_a_run_leaves_to_its_task_is_none(store: Store) -> None:
    add_run()
    (run,) = claim(store, acquire(store))
    assert (run.max_attempts, run.timeout_seconds, run.on_lost) == (None, None, "")


def test_the_highest_priority_is_first_then_the_lowest_id(store: Store) -> None:
    low, first, high, second = (add_run(priority=priority) for priority in (-5, 0, 5, 0))
    lease_id = acquire(store)
    assert ids_of(claim(store, lease_id, limit=3)) == [high, first, second]
    assert ids_of(claim(store, lease_id)) == [low]


def test_queues_are_served_in_the_order_given(store: Store) -> None:
    mail = add_runs(2, queue="mail", priority=100)
    other = add_runs(2, queue="other")
    lease_id = acquire(store)
    assert ids_of(claim(store, lease_id, queues=["other", "mail"], limit=3)) == [*other, mail[0]]
    assert ids_of(claim(store, lease_id, queues=["other", "mail"], limit=3)) == [mail[1]]


def test_a_queue_may_have_any_name_and_a_task_too(store: Store) -> None:
    names = ["a,b", 'say "hi"', "back\\slash", "{}", "NULL", "two\nlines", "ünïcödé", " ", "%s"]
    ids = [add_run(queue=name, task=name) for name in names]
    lease_id = acquire(store)
    assert ids_of(claim(store, lease_id, queues=names, excluded_tasks=names)) == []
    claimed = claim(store, lease_id, queues=names, at_most_once_tasks=names)
    assert [(run.id, run.queue, run.on_lost) for run in claimed] == [
        (run_id, name, "fail") for run_id, name in zip(ids, names, strict=True)
    ]


def test_a_queue_that_is_not_served_is_left_alone(store: Store) -> None:
    run_id = add_run(queue="mail")
    assert claim(store, acquire(store), queues=["default"]) == []
    assert claim(store, acquire(store), queues=[]) == []
    assert stored(run_id).status == Status.READY


@pytest.mark.parametrize("limit", [0, 1, 3, 5, 7])
def test_no_more_are_claimed_than_asked_for(store: Store, limit: int) -> None:
    add_runs(3)
    add_runs(2, queue="mail")
    assert len(claim(store, acquire(store), limit=limit, queues=["mail", "default"])) == min(limit, 5)
    assert Run.objects.filter(status=Status.RUNNING).count() == min(limit, 5)


@pytest.mark.parametrize("status", [status for status in Status if status not in (Status.READY, Status.RUNNING)])
def test_only_ready_runs_are_claimed(store: Store, status: Status) -> None:
    run_id = add_run(status=status)
    before = columns_of(run_id)
    assert claim(store, acquire(store)) == []
    assert columns_of(run_id) == before


def test_excluded_tasks_stay_where_they_are_and_hide_nothing(store: Store) -> None:
    slow = add_runs(3, task="shop.slow", priority=9)
    quick = add_run(task="shop.quick")
    assert ids_of(claim(store, acquire(store), limit=1, excluded_tasks=["shop.slow", "shop.none"])) == [quick]
    assert statuses(slow) == [Status.READY] * 3


def test_runs_of_at_most_once_tasks_are_marked_when_claimed(store: Store) -> None:
    pay, add, own = add_run(task="shop.pay"), add_run(), add_run(on_lost=OnLost.FAIL)
    claimed = claim(store, acquire(store), at_most_once_tasks=["shop.pay"])
    assert [(run.id, run.on_lost) for run in claimed] == [(pay, "fail"), (add, ""), (own, "fail")]
    assert [stored(run_id).on_lost for run_id in (pay, add, own)] == ["fail", "", "fail"]


@pytest.mark.parametrize("lease", ["expired", "unknown", "reclaimed"])
def test_nothing_is_claimed_without_a_live_lease_of_ones_own(store: Store, other: Store, lease: str) -> None:
    lease_id: UUID = acquire(store) if lease != "unknown" else uuid4()
    acquire(other)
    if lease != "unknown":
        expire(lease_id)
    if lease == "reclaimed":
        other.reclaim(grace_seconds=0.0, max_interruptions=3)
    run_id = add_run()
    before = columns_of(run_id)
    assert claim(store, lease_id) == []
    assert columns_of(run_id) == before


def test_two_dispatchers_get_different_runs(store: Store, other: Store) -> None:
    run_ids = add_runs(6)
    mine, theirs = acquire(store), acquire(other)
    rounds = [(store, mine), (other, theirs)] * 3
    assert [ids_of(claim(who, lease_id, limit=1)) for who, lease_id in rounds] == [[run_id] for run_id in run_ids]
    assert claim(other, theirs) == []
    assert Run.objects.filter(lease_id=mine).count() == 3


def test_each_claim_raises_the_epoch_and_nothing_lowers_it(store: Store, other: Store) -> None:
    lease_id, others = acquire(store), acquire(other)
    run_id = add_run()
    for epoch in (1, 2):
        (run,) = claim(store, lease_id)
        assert run.epoch == epoch
        finish(store, lease_id, Settlement(run_id, epoch, "READY", was_started=False))
    claim(store, lease_id)
    expire(lease_id)
    other.reclaim(grace_seconds=0.0, max_interruptions=3)
    assert claim(other, others)[0].epoch == 4


def test_finishing_and_claiming_go_together(store: Store) -> None:
    lease_id = acquire(store)
    done = add_running(store, lease_id)
    new = add_run()
    exchange = store.exchange(lease_id, [Settlement(done.id, done.epoch, "SUCCESSFUL")], queues=["default"], limit=10)
    assert (ids_of(exchange.claimed), exchange.refused) == ([new], [])
    assert statuses([done.id, new]) == [Status.SUCCESSFUL, Status.RUNNING]


def test_a_claim_leaves_the_lease_as_it_is(store: Store) -> None:
    lease_id = acquire(store)
    before = Lease.objects.values().get()
    add_run()
    claim(store, lease_id)
    assert Lease.objects.values().get() == before


def test_what_has_expired_before_its_first_start_is_not_claimed(store: Store) -> None:
    late = add_run(expires_at=LONG_AGO, priority=5)
    in_time, begun = add_run(expires_at=FAR_OFF), add_run(expires_at=LONG_AGO, attempt=1)
    before = columns_of(late)
    assert ids_of(claim(store, acquire(store))) == [in_time, begun]
    assert columns_of(late) == before


def test_a_run_may_be_started_as_often_as_it_likes(store: Store) -> None:
    run_id = add_run(attempt=32_767)
    lease_id = acquire(store)
    (run,) = claim(store, lease_id)
    assert (run.id, run.attempt) == (run_id, 32_767)
    assert finish(store, lease_id, Settlement(run.id, run.epoch, "SCHEDULED", delay_seconds=0.0)) == []
    assert stored(run_id).attempt == 32_767
