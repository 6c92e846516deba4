"""Two sessions at the same rows: who waits, who skips, who is refused; and that none deadlock. On PostgreSQL.

A statement is held half-way by leaving its transaction open; that another one waits is asked of the server.
"""

import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import pytest
from django.db import connection, connections, transaction

from django_dispatch import CancelAnswer, cancel, cancel_many
from django_dispatch.models import Lease, Run, Status
from django_dispatch.store import housekeeping, statements
from django_dispatch.store.base import Store
from django_dispatch.store.postgres import PostgresStore, open_store
from django_dispatch.store.values import Exchange, Settlement

from .tables import LONG_AGO, acquire, add_run, add_running, add_runs, claim, expire, finish, statuses, stored, success

PATIENCE_SECONDS = 15.0
GATE_KEY = 4711
GATE = f"""
CREATE FUNCTION pg_temp.gate() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_advisory_xact_lock({GATE_KEY}); RETURN true; END $$
"""


@pytest.fixture
def store(new_store: Callable[[], Store]) -> PostgresStore:
    store = new_store()
    assert isinstance(store, PostgresStore)
    return store


@pytest.fixture
def other(new_store: Callable[[], Store]) -> PostgresStore:
    store = new_store()
    assert isinstance(store, PostgresStore)
    return store


def begin(store: PostgresStore) -> None:
    store.session.execute("BEGIN")


def commit(store: PostgresStore) -> None:
    store.session.execute("COMMIT")


def backend_of(store: PostgresStore) -> int:
    pid = store.session.execute("SELECT pg_backend_pid()").fetchone()
    assert pid is not None
    return int(pid[0])


@pytest.fixture
def start() -> Any:
    """Start a call on a thread of its own."""
    with ThreadPoolExecutor() as threads:
        yield threads.submit


def wait_until_blocked(backend: int, call: Future[Any]) -> None:
    """Return when the backend waits for a lock; fail if its call ended instead."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        assert not call.done(), f"did not wait: {call.result()}"
        with connection.cursor() as cursor:
            cursor.execute("SELECT cardinality(pg_blocking_pids(%s)) > 0", [backend])
            if cursor.fetchone() == (True,):
                return
    raise AssertionError("the statement neither ended nor waited for a lock")


def reclaim(store: Store, **options: Any) -> list[int]:
    return [run.run_id for run in store.reclaim(grace_seconds=0.0, max_interruptions=3, **options)]


class TestClaimsAtTheSameTime:
    def test_a_claimer_does_not_wait_for_another_and_gets_other_runs(
        self, store: PostgresStore, other: PostgresStore
    ) -> None:
        run_ids = add_runs(5)
        mine, theirs = acquire(store), acquire(other)
        begin(store)
        assert [run.id for run in claim(store, mine, limit=2)] == run_ids[:2]
        assert [run.id for run in claim(other, theirs, limit=2)] == run_ids[2:4]
        commit(store)
        assert [run.id for run in claim(other, theirs)] == run_ids[4:]

    def test_two_claims_under_one_lease_do_not_wait_for_each_other_and_get_different_runs(
        self, store: PostgresStore, other: PostgresStore
    ) -> None:
        run_ids = add_runs(4)
        lease_id = acquire(store)
        begin(store)
        assert [run.id for run in claim(store, lease_id, limit=2)] == run_ids[:2]
        assert [run.id for run in claim(other, lease_id, limit=2)] == run_ids[2:]
        commit(store)
        assert sorted(run_id for run_id, _ in store.held(lease_id)) == run_ids

    @pytest.mark.parametrize("first", ["claim", "renewal"])
    def test_a_claim_and_a_renewal_of_its_lease_do_not_wait_for_each_other(
        self, store: PostgresStore, other: PostgresStore, first: str
    ) -> None:
        add_run()
        lease_id = acquire(store)
        verbs = [lambda: claim(store, lease_id), lambda: other.renew(lease_id, ttl_seconds=30.0, is_draining=False)]
        begin(store)
        begin(other)
        for verb in verbs if first == "claim" else reversed(verbs):
            assert verb()
        commit(other)
        commit(store)

    def test_a_claim_locks_no_more_runs_than_it_takes(self, store: PostgresStore, other: PostgresStore) -> None:
        run_ids = add_runs(4) + add_runs(4, queue="mail")
        mine, theirs = acquire(store), acquire(other)
        begin(store)
        claim(store, mine, limit=5, queues=["default", "mail"])
        assert [run.id for run in claim(other, theirs, queues=["default", "mail"])] == run_ids[5:]
        commit(store)

    def test_a_claim_that_was_rolled_back_lost_nothing(self, store: PostgresStore, other: PostgresStore) -> None:
        run_id = add_run()
        begin(store)
        claim(store, acquire(other, node="of the first"))
        store.session.execute("ROLLBACK")
        (run,) = claim(other, acquire(other))
        assert (run.id, run.epoch, run.attempt) == (run_id, 1, 1)

    def test_a_claim_skips_a_run_that_is_being_cancelled(self, store: PostgresStore) -> None:
        first, second = add_runs(2)
        lease_id = acquire(store)
        with transaction.atomic():
            assert cancel(first) is CancelAnswer.CANCELLED
            assert [run.id for run in claim(store, lease_id)] == [second]
        assert claim(store, lease_id) == []

    def test_a_cancel_waits_for_a_claim_and_asks_the_body_to_stop(self, store: PostgresStore, start: Any) -> None:
        run_id = add_run()
        lease_id = acquire(store)
        begin(store)
        claim(store, lease_id)
        backends: list[int] = []
        answer = start(_cancel_on_a_connection_of_its_own, [run_id], backends)
        _wait_for_backend(backends)
        wait_until_blocked(backends[0], answer)
        commit(store)
        assert answer.result(PATIENCE_SECONDS) == {run_id: CancelAnswer.REQUESTED}
        assert store.cancellations(lease_id) == [(run_id, 1)]

    def test_a_cancel_that_comes_while_an_exchange_waits_for_its_lease_still_wins(
        self, store: PostgresStore, other: PostgresStore, start: Any
    ) -> None:
        """The statement has begun, and sees the run as it was before: what it locks is the run as it is: it waits."""
        lease_id = acquire(store)
        run = add_running(store, lease_id)
        add_run()
        backend = backend_of(store)
        begin(other)
        other.session.execute("SELECT FROM django_dispatch_lease FOR UPDATE")
        retry = Settlement(run.id, run.epoch, "READY")
        answer = start(store.exchange, lease_id, [retry], queues=["default"], limit=5)
        wait_until_blocked(backend, answer)
        assert cancel(run.id) is CancelAnswer.REQUESTED
        commit(other)
        exchange = answer.result(PATIENCE_SECONDS)
        assert (len(exchange.claimed), exchange.refused, exchange.busy) == (1, [], [run.id])
        again = store.exchange(lease_id, [retry], queues=[], limit=0)
        assert (again.cancelled, again.refused, again.busy) == ([run.id], [], [])
        assert stored(run.id).status == Status.CANCELLED


class TestReclaimAgainstTheDispatcherItself:
    def test_a_claim_waits_for_a_reclaim_of_its_lease_and_gets_nothing(
        self, store: PostgresStore, other: PostgresStore, start: Any
    ) -> None:
        lease_id = acquire(store)
        run_id = add_run()
        backend = backend_of(store)
        begin(other)
        reclaim(other, dead_leases=[lease_id])
        claimed = start(claim, store, lease_id)
        wait_until_blocked(backend, claimed)
        commit(other)
        assert claimed.result(PATIENCE_SECONDS) == []
        assert stored(run_id).status == Status.READY

    def test_a_reclaim_skips_a_lease_under_which_runs_are_being_claimed(
        self, store: PostgresStore, other: PostgresStore
    ) -> None:
        lease_id = acquire(store)
        run_id = add_run()
        begin(store)
        claim(store, lease_id)
        assert reclaim(other, dead_leases=[lease_id]) == []
        assert Lease.objects.filter(pk=lease_id).exists()
        commit(store)
        assert reclaim(other, dead_leases=[lease_id]) == [run_id]

    def test_a_renewal_waits_for_a_reclaim_and_fails(
        self, store: PostgresStore, other: PostgresStore, start: Any
    ) -> None:
        lease_id = acquire(store)
        backend = backend_of(store)
        begin(other)
        reclaim(other, dead_leases=[lease_id])
        renewed = start(store.renew, lease_id, ttl_seconds=30.0, is_draining=False)
        wait_until_blocked(backend, renewed)
        commit(other)
        assert renewed.result(PATIENCE_SECONDS) is False

    def test_a_reclaim_skips_a_lease_that_is_being_renewed(self, store: PostgresStore, other: PostgresStore) -> None:
        lease_id = acquire(store)
        add_running(store, lease_id)
        begin(store)
        store.renew(lease_id, ttl_seconds=30.0, is_draining=False)
        assert reclaim(other, dead_leases=[lease_id]) == []
        commit(store)

    def test_an_outcome_is_busy_during_a_reclaim_and_refused_after_it(
        self, store: PostgresStore, other: PostgresStore
    ) -> None:
        lease_id = acquire(store)
        run = add_running(store, lease_id)
        expire(lease_id)
        begin(other)
        assert reclaim(other) == [run.id]
        assert store.exchange(lease_id, [success(run)], queues=(), limit=0) == Exchange([], [], [run.id])
        commit(other)
        assert store.exchange(lease_id, [success(run)], queues=(), limit=0) == Exchange([], [run.id], [])
        assert stored(run.id).status == Status.READY

    def test_a_reclaim_leaves_alone_what_is_being_finished(self, store: PostgresStore, other: PostgresStore) -> None:
        lease_id = acquire(store)
        done, lost = add_running(store, lease_id), add_running(store, lease_id)
        expire(lease_id)
        begin(store)
        assert finish(store, lease_id, success(done)) == []
        assert reclaim(other) == [lost.id]
        commit(store)
        assert reclaim(other) == []
        assert statuses([done.id, lost.id]) == [Status.SUCCESSFUL, Status.READY]

    def test_what_a_reclaim_skipped_is_taken_by_the_next_sweep(
        self, store: PostgresStore, other: PostgresStore
    ) -> None:
        lease_id = acquire(store)
        run = add_running(store, lease_id)
        expire(lease_id)
        begin(store)
        finish(store, lease_id, success(run))
        reclaim(other)
        store.session.execute("ROLLBACK")
        assert reclaim(other) == [run.id]


class TestSweepsAtTheSameTime:
    def test_a_reclaimer_does_not_wait_for_another(self, store: PostgresStore, other: PostgresStore) -> None:
        first, second = acquire(store), acquire(store)
        runs = [add_running(store, lease_id) for lease_id in (first, second)]
        orphan = add_running(store, lost := acquire(store))
        Lease.objects.filter(pk=lost).delete()
        expire(first)
        begin(store)
        assert reclaim(store) == [runs[0].id, orphan.id]
        expire(second)
        assert reclaim(other) == [runs[1].id]
        commit(store)
        assert reclaim(other) == []

    def test_an_orphan_that_runs_again_by_now_is_left_alone(
        self, store: PostgresStore, other: PostgresStore, start: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The sweep has seen an orphan and not yet locked it: its new lease is too new for what the sweep sees."""
        orphan = add_running(store, lost := acquire(store))
        Lease.objects.filter(pk=lost).delete()
        seen = "NOT EXISTS (SELECT FROM django_dispatch_lease AS l WHERE l.id = r.lease_id)"
        assert seen in statements.RECLAIM
        monkeypatch.setattr(statements, "RECLAIM", statements.RECLAIM.replace(seen, f"{seen} AND pg_temp.gate()"))
        store.session.execute(GATE)
        backend = backend_of(store)
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [GATE_KEY])
            sweep = start(reclaim, store)
            wait_until_blocked(backend, sweep)
            monkeypatch.undo()
            assert reclaim(other) == [orphan.id]
            (again,) = claim(other, acquire(other))
        assert sweep.result() == []
        assert (stored(orphan.id).status, stored(orphan.id).epoch) == (Status.RUNNING, again.epoch)

    def test_a_run_that_was_claimed_meanwhile_is_not_brought_forward(
        self, store: PostgresStore, other: PostgresStore, start: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        add_run(priority=5, queue="other")
        low, high = add_run(priority=1), add_run(priority=5)
        seen = "first.due_at < (SELECT clock_timestamp() - %(age)s * interval '1 second')"
        assert seen in housekeeping.AGE
        monkeypatch.setattr(housekeeping, "AGE", housekeeping.AGE.replace(seen, f"{seen} AND pg_temp.gate()"))
        store.session.execute(GATE)
        backend = backend_of(store)
        with transaction.atomic(), connection.cursor() as cursor:
            cursor.execute("SELECT pg_advisory_xact_lock(%s)", [GATE_KEY])
            aging = start(store.age, age_seconds=0.0, limit=10)
            wait_until_blocked(backend, aging)
            assert {run.id for run in claim(other, acquire(other), limit=2)} == {low, high}
        aging.result()
        assert (stored(low).status, stored(low).priority) == (Status.RUNNING, 1)

    def test_two_promoters_share_the_due_runs(self, store: PostgresStore, other: PostgresStore) -> None:
        run_ids = [add_run(status=Status.SCHEDULED, run_after=LONG_AGO, queue=queue) for queue in ("a", "b")]
        begin(store)
        assert store.promote(limit=1)[0] == ["a"]
        assert other.promote(limit=10)[0] == ["b"]
        commit(store)
        assert statuses(run_ids) == [Status.READY, Status.READY]

    def test_two_that_expire_share_what_is_late(self, store: PostgresStore, other: PostgresStore) -> None:
        run_ids = [add_run(expires_at=LONG_AGO) for _ in range(3)]
        begin(store)
        assert store.expire(limit=2)[0] == 2
        assert other.expire(limit=2)[0] == 1
        commit(store)
        assert statuses(run_ids) == [Status.CANCELLED] * 3

    def test_two_pruners_share_the_old_runs(self, store: PostgresStore, other: PostgresStore) -> None:
        for _ in range(3):
            add_run(status=Status.SUCCESSFUL)
        begin(store)
        assert store.prune(status="SUCCESSFUL", age_seconds=60.0, limit=2) == 2
        assert other.prune(status="SUCCESSFUL", age_seconds=60.0, limit=2) == 1
        commit(store)
        assert not Run.objects.exists()


class TestUnderALongTransaction:
    """An application holds runs, by a cancel say: nothing of a dispatcher's waits for it, so nothing can deadlock."""

    def test_a_reclaim_takes_the_others_and_what_was_held_with_the_next_sweep(self, store: PostgresStore) -> None:
        lease_id = acquire(store)
        held, free = add_running(store, lease_id), add_running(store, lease_id)
        expire(lease_id)
        with transaction.atomic():
            cancel(held.id)
            assert reclaim(store) == [free.id]
        assert reclaim(store) == [held.id]
        assert stored(held.id).status == Status.CANCELLED

    def test_outcomes_are_written_but_for_the_one_that_is_held(self, store: PostgresStore) -> None:
        lease_id = acquire(store)
        first, held, last = (add_running(store, lease_id) for _ in range(3))
        outcomes = [success(run, result="1") for run in (last, held, first)]
        with transaction.atomic():
            cancel(held.id)
            assert store.exchange(lease_id, outcomes, queues=(), limit=0) == Exchange([], [], [held.id])
        assert statuses([first.id, held.id, last.id]) == [Status.SUCCESSFUL, Status.RUNNING, Status.SUCCESSFUL]
        assert finish(store, lease_id, success(held)) == []

    def test_progress_is_stored_but_for_the_one_that_is_held(self, store: PostgresStore) -> None:
        lease_id = acquire(store)
        held, free = add_running(store, lease_id), add_running(store, lease_id)
        with transaction.atomic():
            cancel(held.id)
            store.report_progress(lease_id, {(run.id, run.epoch): "1" for run in (free, held)})
        assert [stored(run.id).progress for run in (held, free)] == [None, 1]

    def test_an_exchange_claims_and_the_lease_is_renewed(self, store: PostgresStore, other: PostgresStore) -> None:
        lease_id = acquire(store)
        held = add_running(store, lease_id)
        ready = add_run()
        with transaction.atomic():
            cancel(held.id)
            exchange = store.exchange(lease_id, [success(held)], queues=["default"], limit=5)
            assert ([run.id for run in exchange.claimed], exchange.busy) == ([ready], [held.id])
            assert other.renew(lease_id, ttl_seconds=30.0, is_draining=False)
            assert cancel(ready) is CancelAnswer.REQUESTED


def test_an_idle_look_writes_nothing(store: PostgresStore) -> None:
    lease_id = acquire(store)
    add_run(queue="not served")
    begin(store)
    assert store.exchange(lease_id, [], queues=["default"], limit=10) == Exchange([], [], [])
    assert store.promote(limit=10) == ([], None, [])
    assert store.prune(status="SUCCESSFUL", age_seconds=0.0, limit=10) == 0
    assert store.reclaim(grace_seconds=0.0, max_interruptions=3) == []
    assert store.session.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() == (None,)
    claim(store, lease_id, queues=["not served"])
    assert store.session.execute("SELECT pg_current_xact_id_if_assigned()").fetchone() != (None,)
    commit(store)


def _cancel_on_a_connection_of_its_own(ids: list[int], backends: list[int]) -> dict[int, CancelAnswer]:
    try:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_backend_pid()")
            backends.extend(cursor.fetchone())
        return cancel_many(ids)
    finally:
        connections.close_all()


def _wait_for_backend(backends: list[int]) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not backends:
        assert time.monotonic() < deadline
        time.sleep(0.001)


def test_many_claimers_take_each_run_once(new_store: Callable[[], Store], start: Any) -> None:
    run_ids = set(add_runs(200))

    def take_all() -> list[int]:
        store = open_store("default", "test", statement_timeout_seconds=20.0)
        lease_id = acquire(store)
        taken: list[int] = []
        while runs := claim(store, lease_id, limit=7):
            assert len(runs) <= 7
            taken += [run.id for run in runs]
        store.close()
        return taken

    taken = [run_id for claimer in [start(take_all) for _ in range(4)] for run_id in claimer.result(60)]
    assert len(taken) == len(run_ids)
    assert set(taken) == run_ids
