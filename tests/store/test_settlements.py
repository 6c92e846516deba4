"""Settlements: what becomes of a claimed run, and that only who holds the claim may say so."""

import json
import random
from typing import Any
from uuid import uuid4

import pytest
from django.db import DataError, transaction

from django_dispatch.models import Run, Status
from django_dispatch.store.base import Store
from django_dispatch.store.values import ClaimedRun, Exchange, Settlement

from .tables import (
    LONG_AGO,
    acquire,
    add_run,
    add_running,
    claim,
    columns_of,
    expire,
    finish,
    seconds_from_now,
    statuses,
    stored,
    success,
)

NUL = r'"a \u0000 in it"'


def settle(run: ClaimedRun, status: str, **facts: Any) -> Settlement:
    return Settlement(run.id, run.epoch, status, **facts)


def test_a_success_keeps_its_result_and_lets_go_of_lease_and_key(store: Store) -> None:
    lease_id = acquire(store)
    run = add_running(store, lease_id, unique_key="k")
    assert finish(store, lease_id, success(run, result='{"total": 12345678901234567890}')) == []
    row = stored(run.id)
    assert (row.status, row.result, row.errors) == (Status.SUCCESSFUL, {"total": 12345678901234567890}, [])
    assert (row.lease_id, row.unique_key, row.run_after) == (None, None, None)
    assert (row.epoch, row.attempt, row.failures, row.interruptions) == (1, 1, 0, 0)
    assert row.started_at is not None
    assert row.finished_at is not None
    assert row.finished_at > row.started_at


def test_a_failure_counts_and_adds_to_the_errors(store: Store) -> None:
    lease_id = acquire(store)
    run = add_running(store, lease_id, unique_key="k", errors=[{"attempt": 1}], attempt=1)
    assert finish(store, lease_id, settle(run, "FAILED", error='{"attempt": 2}', has_failed=True)) == []
    row = stored(run.id)
    assert (row.status, row.unique_key, row.failures, row.interruptions) == (Status.FAILED, None, 1, 0)
    assert [error["attempt"] for error in row.errors] == [1, 2]
    assert row.errors[1]["at"]
    assert row.finished_at is not None


def test_a_retry_waits_its_delay_and_keeps_its_key(store: Store) -> None:
    lease_id = acquire(store)
    run = add_running(store, lease_id, unique_key="k")
    assert finish(store, lease_id, settle(run, "SCHEDULED", delay_seconds=40.0, has_failed=True)) == []
    row = stored(run.id)
    assert (row.status, row.unique_key, row.lease_id) == (Status.SCHEDULED, "k", None)
    assert (row.attempt, row.failures, row.finished_at) == (1, 1, None)
    assert 35 < seconds_from_now("run_after", run.id) <= 40


def test_a_retry_may_move_the_run_to_another_queue_and_priority(store: Store) -> None:
    lease_id = acquire(store)
    moved, queued, stays = (add_running(store, lease_id, priority=3) for _ in range(3))
    facts: dict[str, Any] = {"status": "SCHEDULED", "delay_seconds": 1.0}
    refused = finish(
        store,
        lease_id,
        Settlement(moved.id, moved.epoch, **facts, queue='a "queue"', priority=-8),
        Settlement(queued.id, queued.epoch, **facts, queue="other"),
        Settlement(stays.id, stays.epoch, **facts),
    )
    assert refused == []
    found = [(stored(run.id).queue, stored(run.id).priority) for run in (moved, queued, stays)]
    assert found == [('a "queue"', -8), ("other", 3), ("default", 3)]


def error(number: int, **more: Any) -> str:
    return json.dumps({"attempt": number} | more)


def test_of_many_errors_the_first_and_the_newest_are_kept(store: Store) -> None:
    lease_id = acquire(store)
    run = add_running(store, lease_id, errors=[{"attempt": number} for number in range(1, 101)])
    finish(store, lease_id, settle(run, "FAILED", error=error(101)))
    assert [entry["attempt"] for entry in stored(run.id).errors] == [1, *range(3, 102)]


def test_of_errors_that_are_large_few_are_kept(store: Store) -> None:
    lease_id = acquire(store)
    text = "".join(random.Random(4).choices("abcdefghijklmnopqrstuvwxyz", k=60_000))
    run = add_running(store, lease_id, errors=[{"attempt": number, "traceback": text[number:]} for number in range(9)])
    finish(store, lease_id, settle(run, "FAILED", error=error(10)))
    assert [entry["attempt"] for entry in stored(run.id).errors] == [0, 8, 10]


@pytest.mark.parametrize("odd", [{"a": 1}, "text", 7])
def test_whatever_somebody_wrote_into_the_errors_one_more_can_be_added(store: Store, odd: Any) -> None:
    lease_id = acquire(store)
    run = add_running(store, lease_id, errors=odd)
    finish(store, lease_id, settle(run, "FAILED", error=error(1)))
    first, second = stored(run.id).errors
    assert (first, second["attempt"]) == (odd, 1)


def test_an_interrupted_run_is_ready_again_and_its_attempt_counts(store: Store) -> None:
    lease_id = acquire(store)
    run = add_running(store, lease_id, unique_key="k")
    assert finish(store, lease_id, settle(run, "READY", was_interrupted=True)) == []
    row = stored(run.id)
    assert (row.status, row.unique_key, row.run_after, row.finished_at) == (Status.READY, "k", None, None)
    assert (row.attempt, row.failures, row.interruptions) == (1, 0, 1)
    assert row.started_at is not None


def test_a_run_that_never_started_gets_its_attempt_back_but_not_its_epoch(store: Store) -> None:
    lease_id = acquire(store)
    run = add_running(store, lease_id, attempt=2, epoch=5)
    assert finish(store, lease_id, settle(run, "READY", was_started=False)) == []
    row = stored(run.id)
    assert (row.status, row.attempt, row.epoch, row.started_at) == (Status.READY, 2, 6, None)


@pytest.mark.parametrize("status", ["READY", "SCHEDULED"])
def test_a_cancel_wins_over_another_attempt(store: Store, status: str) -> None:
    lease_id = acquire(store)
    run = add_running(store, lease_id, unique_key="k", cancel_requested_at=LONG_AGO)
    other = add_running(store, lease_id)
    delay_seconds = 9.0 if status == "SCHEDULED" else None
    settlements = [settle(one, status, delay_seconds=delay_seconds) for one in (run, other)]
    assert store.exchange(lease_id, settlements, queues=(), limit=0) == Exchange([], [], [], [run.id])
    assert stored(other.id).status == status
    row = stored(run.id)
    assert (row.status, row.unique_key, row.run_after) == (Status.CANCELLED, None, None)
    assert row.finished_at is not None


@pytest.mark.parametrize("status", ["SUCCESSFUL", "FAILED"])
def test_a_verdict_of_the_body_wins_over_a_cancel(store: Store, status: str) -> None:
    lease_id = acquire(store)
    run = add_running(store, lease_id, cancel_requested_at=LONG_AGO)
    assert store.exchange(lease_id, [settle(run, status)], queues=(), limit=0) == Exchange([], [], [], [])
    assert stored(run.id).status == status


def test_refused_settlements_are_named_and_the_others_of_the_batch_written(store: Store, other: Store) -> None:
    lease_id, others = acquire(store), acquire(other)
    mine = [add_running(store, lease_id) for _ in range(3)]
    theirs = add_running(other, others)
    waiting = add_run()
    refused = finish(
        store,
        lease_id,
        success(mine[0]),
        Settlement(mine[1].id, mine[1].epoch - 1, "SUCCESSFUL"),
        Settlement(mine[1].id + 1_000_000, 1, "SUCCESSFUL"),
        success(theirs),
        Settlement(waiting, 0, "SUCCESSFUL"),
        success(mine[2]),
    )
    assert sorted(refused) == sorted([mine[1].id, mine[1].id + 1_000_000, theirs.id, waiting])
    assert statuses([run.id for run in mine]) == [Status.SUCCESSFUL, Status.RUNNING, Status.SUCCESSFUL]
    assert statuses([theirs.id, waiting]) == [Status.RUNNING, Status.READY]


@pytest.mark.postgres
def test_a_run_that_a_transaction_holds_is_busy_and_the_rest_is_written_and_claimed(store: Store) -> None:
    lease_id = acquire(store)
    mine = [add_running(store, lease_id) for _ in range(3)]
    waiting = add_run()
    outcomes = [success(run) for run in mine]
    old = Settlement(mine[1].id, mine[1].epoch - 1, "SUCCESSFUL")
    with transaction.atomic():
        before = Run.objects.select_for_update().filter(pk=mine[1].id).values().get()
        exchange = store.exchange(lease_id, outcomes, queues=["default"], limit=10)
        assert ([run.id for run in exchange.claimed], exchange.refused) == ([waiting], [])
        assert exchange.busy == [mine[1].id]
        again = store.exchange(lease_id, [old], queues=(), limit=0)
        assert (again.refused, again.busy) == ([mine[1].id], []), "what is not ours is not waited for"
    assert columns_of(mine[1].id) == before
    assert statuses([mine[0].id, mine[2].id]) == [Status.SUCCESSFUL] * 2
    assert finish(store, lease_id, outcomes[1]) == []
    assert stored(mine[1].id).status == Status.SUCCESSFUL


@pytest.mark.parametrize("epoch", [-1, +1])
def test_the_outcome_of_another_claim_of_the_same_run_is_refused(store: Store, epoch: int) -> None:
    lease_id = acquire(store)
    run = add_running(store, lease_id)
    before = columns_of(run.id)
    assert finish(store, lease_id, Settlement(run.id, run.epoch + epoch, "SUCCESSFUL")) == [run.id]
    assert columns_of(run.id) == before


def test_the_outcome_of_another_lease_is_refused(store: Store, other: Store) -> None:
    run = add_running(store, acquire(store))
    before = columns_of(run.id)
    for lease_id in (acquire(other), uuid4()):
        assert finish(other, lease_id, success(run)) == [run.id]
    assert columns_of(run.id) == before


def test_an_outcome_that_is_sent_again_changes_nothing(store: Store) -> None:
    lease_id = acquire(store)
    run = add_running(store, lease_id)
    assert finish(store, lease_id, success(run, result="1")) == []
    before = columns_of(run.id)
    assert finish(store, lease_id, success(run, result="2")) == [run.id]
    assert columns_of(run.id) == before


def test_who_was_taken_for_dead_cannot_finish_what_another_took_over(store: Store, other: Store) -> None:
    lease_id, others = acquire(store), acquire(other)
    lost = add_running(store, lease_id)
    expire(lease_id)
    other.reclaim(grace_seconds=0.0, max_interruptions=3)
    assert finish(store, lease_id, success(lost)) == [lost.id]
    (again,) = claim(other, others)
    assert finish(store, lease_id, success(lost)) == [lost.id]
    assert finish(other, others, success(again)) == []


def test_an_outcome_still_counts_under_an_expired_lease_that_nobody_reclaimed(store: Store) -> None:
    lease_id = acquire(store)
    run = add_running(store, lease_id)
    waiting = add_run()
    expire(lease_id)
    exchange = store.exchange(lease_id, [success(run)], queues=["default"], limit=10)
    assert (exchange.claimed, exchange.refused) == ([], [])
    assert statuses([run.id, waiting]) == [Status.SUCCESSFUL, Status.READY]


def assert_nothing_is_written(store: Store, **unstorable: str) -> None:
    lease_id = acquire(store)
    good, bad = add_running(store, lease_id), add_running(store, lease_id)
    waiting = add_run()
    before = [columns_of(run_id) for run_id in (good.id, bad.id, waiting)]
    with pytest.raises(DataError):
        store.exchange(lease_id, [success(good), success(bad, **unstorable)], queues=["default"], limit=10)
    assert [columns_of(run_id) for run_id in (good.id, bad.id, waiting)] == before
    assert finish(store, lease_id, success(good)) == []


@pytest.mark.parametrize("name", ["result", "error", "progress"])
def test_one_settlement_that_cannot_be_stored_leaves_nothing_written(store: Store, name: str) -> None:
    assert_nothing_is_written(store, **{name: "{no JSON"})


@pytest.mark.postgres
@pytest.mark.parametrize("unstorable", [{"result": NUL}, {"error": f'{{"message": {NUL}}}'}])
def test_nor_does_a_nul(store: Store, unstorable: dict[str, str]) -> None:
    assert_nothing_is_written(store, **unstorable)


def test_the_held_runs_are_those_claimed_and_not_yet_finished(store: Store, other: Store) -> None:
    lease_id = acquire(store)
    done, running = add_running(store, lease_id), add_running(store, lease_id, epoch=4)
    add_running(other, acquire(other))
    finish(store, lease_id, success(done))
    assert store.held(lease_id) == [(running.id, 5)]


def test_cancellations_are_those_of_held_runs(store: Store, other: Store) -> None:
    lease_id = acquire(store)
    add_running(store, lease_id)
    wanted = add_running(store, lease_id, cancel_requested_at=LONG_AGO)
    add_running(other, acquire(other), cancel_requested_at=LONG_AGO)
    assert store.cancellations(lease_id) == [(wanted.id, wanted.epoch)]


def test_progress_is_stored_only_for_the_claims_that_the_lease_holds(store: Store, other: Store) -> None:
    lease_id = acquire(store)
    mine, old, done = (add_running(store, lease_id) for _ in range(3))
    theirs = add_running(other, acquire(other))
    finish(store, lease_id, success(done))
    tokens = [(mine.id, mine.epoch), (old.id, old.epoch - 1), (done.id, done.epoch), (theirs.id, theirs.epoch)]
    store.report_progress(lease_id, {token: '{"done": 3}' for token in tokens})
    assert [stored(run.id).progress for run in (mine, old, done, theirs)] == [{"done": 3}, None, None, None]
    assert stored(mine.id).status == Status.RUNNING
