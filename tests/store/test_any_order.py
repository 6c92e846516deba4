"""Whatever several dispatchers and callers do in whatever order: the tables are as the reference says, the rules hold.

Hypothesis makes up the order and shrinks what fails. The same every time; STORE_EXAMPLES=5000 tries so many new ones.
Time passes where a step says so, by the database's columns; nothing here waits. What the guards are there for is
counted: it has to happen often, or the test would show nothing.
"""

import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from django.db import connection, transaction
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    initialize,
    precondition,
    rule,
    run_state_machine_as_test,
)

from django_dispatch.models import Run
from django_dispatch.store.base import Store
from django_dispatch.store.values import NewRun, Settlement
from django_dispatch.store.vendors import callers

from .machine import (
    AGAIN_UNDER_ANOTHER_LEASE,
    AGAIN_UNDER_THE_SAME_LEASE,
    BUSY,
    CLAIM_WITHOUT_LEASE,
    FOREIGN,
    FULL,
    GRACE,
    IN_TURNS,
    LATE,
    SWEEP_BESIDE_LIVE,
    Machine,
)
from .reference import FINAL, ExpectedRun
from .simulated import (
    DISPATCHERS,
    HOUR,
    KEYS,
    PLAIN,
    Fate,
    Turn,
    dispatchers,
    endings,
    news,
    orders,
    shifts,
)
from .tables import LONG_AGO, expire

pytestmark = pytest.mark.slow

EXAMPLES = int(os.environ.get("STORE_EXAMPLES", "0"))
SETTINGS = settings(
    max_examples=EXAMPLES or 150,
    stateful_step_count=30,
    derandomize=not EXAMPLES,
    deadline=None,
    database=None,
    print_blob=True,
    phases=[Phase.generate] if "STORE_UNSHRUNK" in os.environ else tuple(Phase),
    suppress_health_check=list(HealthCheck),
)
ENOUGH = {
    AGAIN_UNDER_THE_SAME_LEASE: 100,
    AGAIN_UNDER_ANOTHER_LEASE: 100,
    FOREIGN: 15,
    BUSY: 50,
    CLAIM_WITHOUT_LEASE: 30,
    FULL: 100,
    SWEEP_BESIDE_LIVE: 30,
    LATE: 30,
    IN_TURNS: 30,
}


class AnyOrder(Machine):
    """Each rule does a thing to the database and to the reference, and compares the answers."""

    # callers

    @initialize(new=st.lists(news, min_size=2, max_size=4))
    def start(self, new: list[NewRun]) -> None:
        self.enqueue(new, is_rolled_back=False)
        for me in self.dispatchers:
            self.acquire(me)

    @rule(new=st.lists(news, min_size=1, max_size=3), is_rolled_back=st.booleans())
    def enqueue(self, new: list[NewRun], is_rolled_back: bool) -> None:
        with transaction.atomic():
            many = (
                callers("default").enqueue_many("default", new)
                if len(new) > 1
                else [callers("default").enqueue("default", new[0])]
            )
            transaction.set_rollback(is_rolled_back)
        if not is_rolled_back:
            self.enqueued += len(new)
            for recorded, one in zip(many, new, strict=True):
                due = "READY" if one.concurrency_key is None else "BLOCKED"
                assert recorded.status == (due if one.delay_seconds is None else "SCHEDULED")
                self.expected.add(ExpectedRun(recorded.id, one, recorded.status))
                self.seen[IN_TURNS] += self.expected.runs[recorded.id].place != 2 * recorded.id

    @precondition(lambda self: self.expected.runs)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        ids = data.draw(st.lists(st.sampled_from(sorted(self.expected.runs)), min_size=1, max_size=2, unique=True))
        answers = callers("default").cancel("default", ids)
        assert {(run.id, run.answer) for run in answers} == {(run_id, self.expected.cancel(run_id)) for run_id in ids}

    @precondition(lambda self: self.expected.runs)
    @rule(data=st.data())
    def run_again(self, data: st.DataObject) -> None:
        run_id = data.draw(st.sampled_from(sorted(self.expected.runs)))
        new = callers("default").rerun("default", run_id)
        assert (new is not None) == (self.expected.runs[run_id].status in FINAL)
        if new is not None:
            self.expected.rerun(run_id, new.pk)
            self.enqueued += 1

    # leases

    @rule(d=dispatchers)
    def renew(self, d: int) -> None:
        me = self.dispatchers[d]
        if me.lease is not None:
            is_ours = me.store.renew(me.lease, ttl_seconds=HOUR, is_draining=False)
            assert is_ours == self.expected.is_live(me.lease)
            if not is_ours:
                self.ground(me)

    @rule(d=dispatchers, seconds=st.sampled_from([1, GRACE + 1]), does_notice=st.booleans())
    def the_lease_expires(self, d: int, seconds: int, does_notice: bool) -> None:
        """Its dispatcher was frozen or cut off; its zygote was not. Then it wakes, or does not yet."""
        me = self.dispatchers[d]
        if me.lease is not None and self.expected.leases.get(me.lease) is not None:
            me.bodies.clear()
            me.is_fenced = True
            expire(me.lease, seconds=seconds)
            self.expected.leases[me.lease] = seconds
            self.work_for_all()
            self.exchange(me, me.lease, [], queues=["a", "b"], limit=1)  # it had asked before
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

    @rule(turns=shifts)
    def work(self, turns: list[Turn]) -> None:
        for turn in turns:
            self.work_for_all()
            self.take(turn)

    def work_for_all(self) -> None:
        if not self.expected.of_status("READY"):
            self.enqueue(PLAIN, is_rolled_back=False)

    @rule(turns=shifts)
    def work_on(self, turns: list[Turn]) -> None:
        """Once more: rules are chosen evenly, and most of what happens is work."""
        self.work(turns)

    def take(self, turn: Turn) -> None:
        """Bodies end, what there is to write is written, runs are claimed. Then earlier outcomes come once more.

        Unanswered, outcomes are sent again, and what was claimed is not known here.
        """
        me = self.dispatchers[turn.d]
        lease = me.lease or self.acquire(me)
        for token, ending in zip(sorted(me.bodies), turn.endings, strict=False):
            me.bodies.remove(token)
            me.unwritten[token] = Settlement(*token, **ending)
        batch = list(me.unwritten.values())
        if batch:
            me.sent.append((lease, batch))
        if turn.fate is not Fate.LOST:
            held = sorted(s.run_id for s in batch)[:1] if turn.is_beside_a_transaction and has_row_locks() else []
            claimed, busy = self.exchange(me, lease, batch, queues=turn.queues, limit=turn.limit, held=held)
            if turn.fate is Fate.ANSWERED:
                me.unwritten = {token: s for token, s in me.unwritten.items() if s.run_id in busy}
                me.claimed += claimed
                self.start_bodies(me)
        self.earlier_outcomes_come(me)

    @precondition(lambda self: any(me.sent for me in self.dispatchers))
    @rule(limit=st.integers(0, 1), data=st.data())
    def an_old_statement_is_carried_out(self, limit: int, data: st.DataObject) -> None:
        """Its sender has given it up long ago; or it was carried out before. Nobody hears what it claims."""
        me = data.draw(st.sampled_from([me for me in self.dispatchers if me.sent]))
        lease, batch = data.draw(st.sampled_from(me.sent))
        self.exchange(me, lease, batch, queues=["a", "b"], limit=limit)

    @rule(d=dispatchers, ending=endings, data=st.data())
    def an_outcome_comes_under_another_lease(self, d: int, ending: dict[str, Any], data: st.DataObject) -> None:
        """After a failover that lost a claim, say, the run may have been claimed with the same epoch by another."""
        me = self.dispatchers[d]
        if others := [run for run in self.expected.of_status("RUNNING") if run.lease != me.lease]:
            run = data.draw(st.sampled_from(others))
            self.exchange(me, me.lease or self.acquire(me), [Settlement(run.id, run.epoch, **ending)])

    @rule(d=dispatchers, ending=endings, data=st.data())
    def a_run_is_released_and_claimed_again_before_its_outcome_comes(
        self, d: int, ending: dict[str, Any], data: st.DataObject
    ) -> None:
        """Under the same lease: only the epoch tells the two claims apart."""
        me = self.dispatchers[d]
        if me.lease is not None and (held := self.expected.held(me.lease)):
            token = data.draw(st.sampled_from(held))
            me.drop(token)
            self.exchange(me, me.lease, [*me.unwritten.values(), Settlement(*token, "READY", was_started=False)])
            me.unwritten.clear()
            claimed, _ = self.exchange(me, me.lease, [], queues=["a", "b"], limit=4)
            me.claimed += claimed
            self.start_bodies(me)
            late = [Settlement(*token, **ending)]
            me.sent.append((me.lease, late))
            self.exchange(me, me.lease, late)

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
                self.exchange(me, me.lease, [Settlement(*token, "READY", was_started=False)])
                assert not self.expected.holds(me.lease, *token)
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

    @precondition(lambda self: has_row_locks())
    @rule(d=dispatchers, queues=orders, does_commit=st.booleans(), data=st.data())
    def claim_beside_an_open_cancel(self, d: int, queues: list[str], does_commit: bool, data: st.DataObject) -> None:
        me = self.dispatchers[d]
        ready = sorted(run.id for run in self.expected.of_status("READY"))
        if me.lease is None or me.unwritten or not ready:
            return
        cancelled = data.draw(st.sampled_from(ready))
        with transaction.atomic():
            callers("default").cancel("default", [cancelled])
            claimed = me.store.exchange(me.lease, [], queues=queues, limit=2).claimed
            transaction.set_rollback(not does_commit)
        found = [run.id for run in claimed]
        tokens = self.expected.claim(me.lease, queues, 2, locked=[cancelled], claimed=found)
        assert [(run.id, run.epoch) for run in claimed] == tokens
        me.claimed += tokens
        if does_commit:
            self.expected.cancel(cancelled)

    @precondition(lambda self: has_row_locks())
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

    @rule(data=st.data())
    def time_passes_for_a_scheduled_run(self, data: st.DataObject) -> None:
        if waiting := sorted(run.id for run in self.expected.of_status("SCHEDULED") if not run.is_due):
            run_id = data.draw(st.sampled_from(waiting))
            # One after the other: the longest due has the lowest id.
            Run.objects.filter(pk=run_id).update(run_after=LONG_AGO.replace(microsecond=run_id % 1_000_000))
            self.expected.runs[run_id].is_due = True

    @rule(d=dispatchers, limit=st.integers(1, 2))
    def promote(self, d: int, limit: int) -> None:
        queues, *_ = self.dispatchers[d].store.promote(limit=limit)
        assert set(queues) == self.expected.promote(limit)

    @precondition(lambda self: self.expected.runs)
    @rule(data=st.data())
    def a_run_is_late(self, data: st.DataObject) -> None:
        """It is never started, if it was not before."""
        waiting = [run.id for run in self.expected.runs.values() if run.status not in FINAL and not run.is_late]
        if waiting:
            run_id = data.draw(st.sampled_from(sorted(waiting)))
            Run.objects.filter(pk=run_id).update(expires_at=LONG_AGO)
            self.expected.runs[run_id].is_late = True
            self.seen[LATE] += self.expected.runs[run_id].has_expired

    @rule(d=dispatchers)
    def expire(self, d: int) -> None:
        assert self.dispatchers[d].store.expire(limit=100).runs == self.expected.expire()

    @rule(d=dispatchers, key=st.sampled_from(sorted(KEYS)), most=st.sampled_from([1, 100]))
    def admit(self, d: int, key: str, most: int) -> None:
        admitted = self.dispatchers[d].store.admit([key], most=most, queue_limits="{}")
        found = Run.objects.filter(status="READY", concurrency_key=key).values_list("pk", flat=True)
        assert set(admitted.queues) == self.expected.admit(key, KEYS[key], most, admitted=found)

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


def has_row_locks() -> bool:
    """Whether somebody may hold a run while others write: on SQLite whoever writes is alone."""
    return connection.features.has_select_for_update


@contextmanager
def on(stores: list[Store]) -> Iterator[Counter[str]]:
    AnyOrder.stores = stores
    AnyOrder.seen = Counter()
    try:
        yield AnyOrder.seen
    finally:
        del AnyOrder.stores, AnyOrder.seen


def test_verbs_in_any_order_keep_the_rules(new_store: Callable[[], Store]) -> None:
    stores = [new_store() for _ in range(DISPATCHERS)]
    with on(stores) as seen:
        run_state_machine_as_test(AnyOrder, settings=SETTINGS)
    # Without locks on rows there are fewer things to do, so other ones come up.
    wanted = ENOUGH if has_row_locks() else {what: enough // 2 for what, enough in ENOUGH.items() if what != BUSY}
    rare = {what: seen[what] for what, enough in wanted.items() if seen[what] < enough}
    assert not rare, f"too rare to show anything: {dict(seen)}"
