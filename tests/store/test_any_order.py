"""Whatever several dispatchers and callers do in whatever order: the tables are as the reference says, the rules hold.

Hypothesis makes up the order and shrinks what fails. The same every time; STORE_EXAMPLES=5000 tries so many new ones.
Time passes where a step says so, by the database's columns; nothing here waits.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from uuid import UUID

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_dispatch.models import Lease, Run
from django_dispatch.store import postgres_enqueue
from django_dispatch.store.base import NewRun, Settlement, Store
from django_dispatch.store.postgres import PostgresStore

from .reference import FINAL, MAX_INTERRUPTIONS, ExpectedRun, Tables
from .simulated import DISPATCHERS, HOUR, SimulatedDispatcher, dispatchers, endings, news, orders
from .tables import LONG_AGO, acquire, expire

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("STORE_EXAMPLES", "0"))
SETTINGS = settings(
    max_examples=EXAMPLES or 60,
    stateful_step_count=50,
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    print_blob=True,
    suppress_health_check=list(HealthCheck),
)
GRACE = 10
ROWS = """
    SELECT id, status, lease_id, epoch, attempt, failures, interruptions, cancel_requested_at IS NOT NULL,
           run_after IS NOT NULL, finished_at IS NOT NULL, progress::text, result::text, jsonb_array_length(errors)
    FROM django_dispatch_run ORDER BY id
"""


class AnyOrder(RuleBasedStateMachine):
    """Each rule does a thing to the database and to the reference, and compares the answers."""

    stores: list[Store]

    def __init__(self) -> None:
        super().__init__()
        Run.objects.all().delete()
        Lease.objects.all().delete()
        self.expected = Tables()
        self.dispatchers = [SimulatedDispatcher(store) for store in self.stores]
        self.enqueued = self.pruned = 0
        self.ended: dict[int, dict[str, Any]] = {}
        self.epochs: dict[int, int] = {}

    # callers

    @initialize(new=st.lists(news, min_size=2, max_size=4))
    def start(self, new: list[NewRun]) -> None:
        self.enqueue(new)
        for d in range(DISPATCHERS):
            self.acquire(d)

    @rule(new=st.lists(news, min_size=1, max_size=3))
    def enqueue(self, new: list[NewRun]) -> None:
        many = (
            postgres_enqueue.enqueue_many("default", new)
            if len(new) > 1
            else [postgres_enqueue.enqueue("default", new[0])]
        )
        for recorded, one in zip(many, new, strict=True):
            assert recorded.status == ("READY" if one.delay_seconds is None else "SCHEDULED")
            self.expected.runs[recorded.id] = ExpectedRun(recorded.id, one, recorded.status)
        self.enqueued += len(new)

    @rule(new=news)
    def enqueue_in_a_transaction_that_is_rolled_back(self, new: NewRun) -> None:
        with transaction.atomic():
            postgres_enqueue.enqueue("default", new)
            transaction.set_rollback(True)

    @precondition(lambda self: self.expected.runs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.expected.runs)), min_size=1, max_size=2, unique=True))
        answers = postgres_enqueue.cancel("default", ids)
        assert {(run.id, run.answer) for run in answers} == {(run_id, self.expected.cancel(run_id)) for run_id in ids}

    @precondition(lambda self: self.expected.runs)
    @rule(data=st.data())
    def run_again(self, data: st.DataObject) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.expected.runs)))
        new = postgres_enqueue.rerun("default", run_id)
        assert (new is not None) == (self.expected.runs[run_id].status in FINAL)
        if new is not None:
            self.expected.rerun(run_id, new.pk)
            self.enqueued += 1

    # leases

    @rule(d=dispatchers)
    def acquire(self, d: int) -> None:
        me = self.dispatchers[d]
        if me.lease is None:
            me.lease = acquire(me.store, ttl_seconds=HOUR)
            self.expected.leases[me.lease] = 0

    @rule(d=dispatchers)
    def renew(self, d: int) -> None:
        me = self.dispatchers[d]
        if me.lease is not None:
            is_ours = me.store.renew(me.lease, ttl_seconds=HOUR, is_draining=False)
            assert is_ours == self.expected.is_live(me.lease)
            if not is_ours:
                self.ground(me)

    def ground(self, me: SimulatedDispatcher) -> None:
        """It has lost its lease: bodies are killed, outcomes dropped, the old lease's runs are given back."""
        lost = me.lease
        me.forget()
        if lost is not None:
            self.sweep(me, dead=[lost])

    @rule(d=dispatchers, seconds=st.sampled_from([1, GRACE + 1]), does_notice=st.booleans())
    def the_lease_expires(self, d: int, seconds: int, does_notice: bool) -> None:
        """Its dispatcher was frozen or cut off; its zygote was not. Then it wakes, or does not yet."""
        me = self.dispatchers[d]
        if me.lease is not None and self.expected.leases.get(me.lease) is not None:
            me.bodies.clear()
            me.is_fenced = True
            expire(me.lease, seconds=seconds)
            self.expected.leases[me.lease] = seconds
            if does_notice:
                self.ground(me)

    @rule(seconds=st.just(GRACE + 1))
    def time_passes_for_expired_leases(self, seconds: int) -> None:
        for lease, expired in self.expected.leases.items():
            if expired:
                expire(lease, seconds=seconds)
                self.expected.leases[lease] = seconds

    @rule(d=dispatchers)
    def forget(self, d: int) -> None:
        """It is killed, and started again: another boot, another lease. Its executors died with it."""
        self.dispatchers[d].forget()

    @rule(d=dispatchers)
    def surrender(self, d: int) -> None:
        me = self.dispatchers[d]
        if me.lease is not None and not me.bodies:
            is_free = not self.expected.held(me.lease) and me.lease in self.expected.leases
            assert me.store.surrender(me.lease) == is_free
            if is_free:
                del self.expected.leases[me.lease]
                me.forget()

    # claim and finish

    @rule(d=dispatchers, queues=orders, limit=st.integers(0, 3), is_answered=st.sampled_from([True, True, True, False]))
    def exchange(self, d: int, queues: list[str], limit: int, is_answered: bool) -> None:
        """Write what there is to write, and claim. Unanswered, it is sent again; what was claimed is not known here."""
        me = self.dispatchers[d]
        if me.lease is None:
            return
        batch = list(me.unwritten.values())
        exchange = me.store.exchange(me.lease, batch, queues=queues, limit=limit)
        ready = {run.id for run in self.expected.of_status("READY")}
        refused = self.expected.finish(me.lease, batch)
        released = {run.id for run in self.expected.of_status("READY")} - ready
        claimed = self.expected.claim(me.lease, queues, limit, locked=released)  # the claim sees what was READY before
        assert sorted(exchange.refused) == sorted(refused)
        assert [(run.id, run.epoch) for run in exchange.claimed] == claimed
        if is_answered:
            me.last_batch = (me.lease, batch)
            me.unwritten.clear()
            me.claimed += claimed

    @rule(d=dispatchers)
    def deliver_the_last_batch_again(self, d: int) -> None:
        me = self.dispatchers[d]
        if me.last_batch is not None:
            lease, batch = me.last_batch
            exchange = me.store.exchange(lease, batch, queues=(), limit=0)
            assert sorted(exchange.refused) == sorted(s.run_id for s in batch)

    @rule(d=dispatchers)
    def start_bodies(self, d: int) -> None:
        """The fence: a body starts under a lease whose deadline has not passed; else the run is given back."""
        me = self.dispatchers[d]
        if not me.is_fenced:
            me.bodies.update(me.claimed)
        else:
            me.unwritten |= {token: Settlement(*token, "READY", was_started=False) for token in me.claimed}
        me.claimed.clear()

    @rule(d=dispatchers, ending=endings, data=st.data())
    def a_body_ends(self, d: int, ending: dict[str, Any], data: st.DataObject) -> None:
        me = self.dispatchers[d]
        if me.bodies:
            token = data.draw(st.sampled_from(sorted(me.bodies)))
            me.bodies.remove(token)
            me.unwritten[token] = Settlement(*token, **ending)

    @rule(d=dispatchers)
    def reconcile(self, d: int) -> None:
        """After trouble: what is held and not known here is released, what is known here and not held is dropped."""
        me = self.dispatchers[d]
        if me.lease is None:
            return
        held = sorted(me.store.held(me.lease))
        assert held == self.expected.held(me.lease)
        for token in held:
            if not me.knows(token):
                release = Settlement(*token, "READY", was_started=False)
                assert me.store.exchange(me.lease, [release], queues=(), limit=0).refused == []
                self.expected.finish(me.lease, [release])
        me.bodies.intersection_update(held)
        me.claimed = [token for token in me.claimed if token in held]

    @rule(d=dispatchers, stale=st.booleans())
    def report_progress(self, d: int, stale: bool) -> None:
        me = self.dispatchers[d]
        if me.lease is not None:
            tokens = [(run_id, epoch - stale) for run_id, epoch in me.bodies]
            me.store.report_progress(me.lease, dict.fromkeys(tokens, f"{d}"))
            for run_id, epoch in tokens:
                if self.expected.holds(me.lease, run_id, epoch):
                    self.expected.runs[run_id].progress = f"{d}"

    @rule(d=dispatchers)
    def look_for_cancellations(self, d: int) -> None:
        me = self.dispatchers[d]
        if me.lease is not None:
            wanted = [
                (run.id, run.epoch)
                for run in self.expected.of_status("RUNNING")
                if run.lease == me.lease and run.is_cancel_requested
            ]
            assert sorted(me.store.cancellations(me.lease)) == sorted(wanted)

    # beside an open transaction of the application

    @rule(d=dispatchers, queues=orders, does_commit=st.booleans(), data=st.data())
    def claim_beside_an_open_cancel(self, d: int, queues: list[str], does_commit: bool, data: st.DataObject) -> None:
        me = self.dispatchers[d]
        ready = sorted(run.id for run in self.expected.of_status("READY"))
        if me.lease is None or not ready:
            return
        cancelled = data.draw(st.sampled_from(ready))
        with transaction.atomic():
            postgres_enqueue.cancel("default", [cancelled])
            claimed = me.store.exchange(me.lease, [], queues=queues, limit=2).claimed
            transaction.set_rollback(not does_commit)
        tokens = self.expected.claim(me.lease, queues, 2, locked=[cancelled])
        assert [(run.id, run.epoch) for run in claimed] == tokens
        me.claimed += tokens
        if does_commit:
            self.expected.cancel(cancelled)

    @rule(d=dispatchers, data=st.data())
    def sweep_beside_a_locked_run(self, d: int, data: st.DataObject) -> None:
        running = sorted(run.id for run in self.expected.of_status("RUNNING"))
        if running:
            locked = data.draw(st.sampled_from(running))
            with transaction.atomic():
                Run.objects.select_for_update(no_key=True).get(pk=locked)
                self.sweep(self.dispatchers[d], locked=[locked])

    # housekeeping

    @rule(d=dispatchers)
    def reclaim(self, d: int) -> None:
        self.sweep(self.dispatchers[d])
        for run in Run.objects.filter(status="RUNNING").select_related("lease"):
            assert run.lease_id in self.expected.leases
            assert self.expected.leases[run.lease_id] <= GRACE, "RUNNING under a dead lease after a sweep"

    @rule(d=dispatchers)
    def reclaim_from_dead_processes(self, d: int) -> None:
        alive = {me.lease for me in self.dispatchers}
        self.sweep(self.dispatchers[d], dead=[lease for lease in self.expected.leases if lease not in alive])

    def sweep(
        self, me: SimulatedDispatcher, *, dead: list[UUID] | None = None, locked: list[int] | None = None
    ) -> None:
        reclaimed = me.store.reclaim(
            grace_seconds=GRACE, max_interruptions=MAX_INTERRUPTIONS, dead_leases=dead or [], why="it is dead"
        )
        expected = self.expected.reclaim(grace=GRACE, dead=dead or [], locked=locked or [])
        assert sorted((run.run_id, run.status, run.lease_id) for run in reclaimed) == expected

    @rule(data=st.data())
    def time_passes_for_a_scheduled_run(self, data: st.DataObject) -> None:
        if waiting := sorted(run.id for run in self.expected.of_status("SCHEDULED") if not run.is_due):
            run_id = data.draw(st.sampled_from(waiting))
            # One after the other: the longest due has the lowest id.
            Run.objects.filter(pk=run_id).update(run_after=LONG_AGO.replace(microsecond=run_id % 1_000_000))
            self.expected.runs[run_id].is_due = True

    @rule(d=dispatchers, limit=st.integers(1, 2))
    def promote(self, d: int, limit: int) -> None:
        queues, _ = self.dispatchers[d].store.promote(limit=limit)
        assert set(queues) == self.expected.promote(limit)

    @rule(d=dispatchers, status=st.sampled_from(FINAL))
    def prune(self, d: int, status: str) -> None:
        me = self.dispatchers[d]
        assert me.store.prune(status=status, age_seconds=HOUR, limit=100) == 0
        Run.objects.filter(status=status).update(finished_at=LONG_AGO)
        pruned = me.store.prune(status=status, age_seconds=HOUR, limit=100)
        assert pruned == self.expected.prune(status)
        self.pruned += pruned

    @rule(d=dispatchers)
    def reconnect(self, d: int) -> None:
        self.dispatchers[d].store.close()

    # what always holds

    @invariant()
    def the_tables_are_as_expected(self) -> None:
        with connection.cursor() as cursor:
            cursor.execute(ROWS)
            rows = cursor.fetchall()
        assert rows == [
            (
                *(run.id, run.status, run.lease, run.epoch, run.attempt, run.failures, run.interruptions),
                *(run.is_cancel_requested, run.status == "SCHEDULED", run.status in FINAL),
                *(run.progress, run.result, run.errors),
            )
            for _, run in sorted(self.expected.runs.items())
        ]
        assert set(Lease.objects.values_list("pk", flat=True)) == set(self.expected.leases)

    @invariant()
    def no_rule_is_broken(self) -> None:
        rows = {row["id"]: row for row in Run.objects.values()}
        assert len(rows) == self.enqueued - self.pruned, "a run is lost"
        for run_id, row in rows.items():
            assert (row["status"] == "RUNNING") == (row["lease_id"] is not None)
            assert row["epoch"] >= self.epochs.get(run_id, 0), "an epoch was lowered"
            self.epochs[run_id] = row["epoch"]
            if row["status"] in FINAL:
                was = self.ended.setdefault(run_id, row)
                assert row == was, "a final run was changed"

    @invariant()
    def no_two_bodies_of_one_run_are_alive(self) -> None:
        bodies = [(me, token) for me in self.dispatchers for token in me.bodies]
        assert len({run_id for _, (run_id, _) in bodies}) == len(bodies)
        for me, token in bodies:
            assert self.expected.is_live(me.lease)
            assert self.expected.holds(me.lease, *token), "a body runs that its dispatcher does not hold"


@contextmanager
def on(stores: list[Store]) -> Iterator[None]:
    AnyOrder.stores = stores
    try:
        yield
    finally:
        del AnyOrder.stores


def test_verbs_in_any_order_keep_the_rules(new_store: Callable[[], Store]) -> None:
    stores = [new_store() for _ in range(DISPATCHERS)]
    assert all(isinstance(store, PostgresStore) for store in stores)
    with on(stores):
        run_state_machine_as_test(AnyOrder, settings=SETTINGS)
