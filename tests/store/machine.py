"""The tables beside their reference: each verb is done to both and the answers compared, as is what always holds."""

import json
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any
from uuid import UUID

from django.db import transaction
from hypothesis.stateful import RuleBasedStateMachine, invariant

from django_dispatch.models import Lease, Run
from django_dispatch.store.base import Store
from django_dispatch.store.values import Settlement

from .reference import FINAL, MAX_INTERRUPTIONS, Tables
from .simulated import HOUR, KEYS, SimulatedDispatcher
from .tables import acquire

GRACE = 10
AGAIN_UNDER_THE_SAME_LEASE = "an outcome comes late; its run was claimed again under the same lease"
AGAIN_UNDER_ANOTHER_LEASE = "an outcome comes late; its run was claimed again under another lease"
FOREIGN = "an outcome with the right epoch comes under a lease that is not the run's"
BUSY = "an outcome's run is held by a transaction"
CLAIM_WITHOUT_LEASE = "a claim comes under a lease that is not live, while there are READY runs"
FULL = "a key has as many runs READY and RUNNING as it may"
IN_TURNS = "a run has a turn that is not that of its id, because of others of fair keys"
LATE = "a run is too late that was never started"
SWEEP_BESIDE_LIVE = "a sweep comes while runs run under live leases"


class Machine(RuleBasedStateMachine):
    """What the rules are made of. ``seen`` counts what is only harmless because of a guard."""

    stores: list[Store]
    seen: Counter[str]

    def __init__(self) -> None:
        super().__init__()
        Run.objects.all().delete()
        Lease.objects.all().delete()
        self.expected = Tables()
        self.dispatchers = [SimulatedDispatcher(store) for store in self.stores]
        self.enqueued = self.pruned = 0
        self.ended: dict[int, dict[str, Any]] = {}
        self.epochs: dict[int, int] = {}

    def acquire(self, me: SimulatedDispatcher) -> UUID:
        me.lease = acquire(me.store, ttl_seconds=HOUR)
        self.expected.leases[me.lease] = 0
        return me.lease

    def ground(self, me: SimulatedDispatcher) -> None:
        """It has lost its lease: bodies are killed, outcomes dropped, the old lease's runs are given back."""
        lost = me.lease
        me.forget()
        if lost is not None:
            self.sweep(me, dead=[lost])

    def exchange(
        self,
        me: SimulatedDispatcher,
        lease: UUID,
        batch: Sequence[Settlement],
        *,
        queues: Sequence[str] = (),
        limit: int = 0,
        held: Collection[int] = (),
    ) -> tuple[list[tuple[int, int]], list[int]]:
        """Have one carried out, while a transaction holds the runs ``held``. Return the claimed and the busy."""
        self.note(lease, batch, queues if limit else ())
        with transaction.atomic():
            list(Run.objects.select_for_update(no_key=True).filter(pk__in=held)) if held else ()
            exchange = me.store.exchange(lease, batch, queues=queues, limit=limit)
        ready = {run.id for run in self.expected.of_status("READY")}
        refused, busy, cancelled = self.expected.finish(lease, batch, locked=held)
        released = {run.id for run in self.expected.of_status("READY")} - ready
        found = [run.id for run in exchange.claimed]
        # It sees what was READY before.
        claimed = self.expected.claim(lease, queues, limit, locked={*released, *held}, claimed=found)
        self.expected.line_up_returned()
        assert sorted(exchange.refused) == sorted(refused)
        assert sorted(exchange.busy) == sorted(busy)
        assert sorted(exchange.cancelled) == sorted(cancelled)
        assert sorted((run.id, run.epoch) for run in exchange.claimed) == sorted(claimed)
        assert found == sorted(found, key=[run_id for run_id, _ in claimed].index)
        self.seen[BUSY] += bool(busy)
        return claimed, busy

    def note(self, lease: UUID, batch: Sequence[Settlement], queues: Sequence[str]) -> None:
        """Count what is about to happen that only a guard keeps from doing harm."""
        for s in batch:
            run = self.expected.runs.get(s.run_id)
            if run is not None and run.status == "RUNNING" and (run.lease, run.epoch) != (lease, s.epoch):
                is_foreign = run.epoch == s.epoch
                is_same = run.lease == lease
                self.seen[
                    FOREIGN if is_foreign else AGAIN_UNDER_THE_SAME_LEASE if is_same else AGAIN_UNDER_ANOTHER_LEASE
                ] += 1
        if not self.expected.is_live(lease) and any(
            run.new.queue in queues for run in self.expected.of_status("READY")
        ):
            self.seen[CLAIM_WITHOUT_LEASE] += 1

    def earlier_outcomes_come(self, me: SimulatedDispatcher) -> None:
        """Those that could do harm: their runs run again. The oldest, and the two newest."""
        running = {run.id: (run.lease, run.epoch) for run in self.expected.of_status("RUNNING")}
        late = [
            (lease, batch)
            for lease, batch in me.sent
            if any(running.get(s.run_id, (lease, s.epoch)) != (lease, s.epoch) for s in batch)
        ]
        for lease, batch in late[:1] + late[1:][-2:]:
            self.exchange(me, lease, batch)

    def start_bodies(self, me: SimulatedDispatcher) -> None:
        """The fence: a body starts under a lease whose deadline has not passed; else the run is given back."""
        if not me.is_fenced:
            me.bodies.update(me.claimed)
        else:
            me.unwritten |= {token: Settlement(*token, "READY", was_started=False) for token in me.claimed}
        me.claimed.clear()

    def sweep(
        self, me: SimulatedDispatcher, *, dead: list[UUID] | None = None, locked: list[int] | None = None
    ) -> None:
        running = self.expected.of_status("RUNNING")
        self.seen[SWEEP_BESIDE_LIVE] += any(self.expected.is_live(run.lease) for run in running)
        reclaimed = me.store.reclaim(
            grace_seconds=GRACE, max_interruptions=MAX_INTERRUPTIONS, dead_leases=dead or [], why="it is dead"
        )
        expected = self.expected.reclaim(grace=GRACE, dead=dead or [], locked=locked or [])
        assert sorted((run.run_id, run.status, run.lease_id) for run in reclaimed) == expected
        # In which order runs were lost, the database alone knows.
        turns = dict(Run.objects.filter(status="READY").values_list("pk", "turn"))
        for run_id, status, _ in expected:
            if status == "READY":
                self.expected.runs[run_id].turn = turns[run_id]

    # what always holds

    @invariant()
    def the_tables_are_as_expected_and_no_rule_is_broken(self) -> None:
        rows = list(Run.objects.order_by("pk").values())
        assert [_facts_of(row) for row in rows] == [
            (
                *(run.id, run.status, run.lease, run.epoch, run.attempt, run.failures, run.interruptions),
                *(run.is_cancel_requested, run.status == "SCHEDULED", run.status in FINAL),
                *(run.progress, run.result, run.errors, run.places),
                run.turn if run.status in ("READY", "BLOCKED") else None,
            )
            for _, run in sorted(self.expected.runs.items())
        ]
        assert set(Lease.objects.values_list("pk", flat=True)) == set(self.expected.leases)
        assert len(rows) == self.enqueued - self.pruned, "a run is lost"
        for row in rows:
            assert (row["status"] == "RUNNING") == (row["lease_id"] is not None)
            assert row["epoch"] >= self.epochs.get(row["id"], 0), "an epoch was lowered"
            self.epochs[row["id"]] = row["epoch"]
            if row["status"] in FINAL:
                was = self.ended.setdefault(row["id"], row)
                assert row == was, "a final run was changed"

    @invariant()
    def no_limit_is_exceeded(self) -> None:
        held = Counter(Run.objects.filter(status__in=["READY", "RUNNING"]).values_list("concurrency_key", flat=True))
        for key, limit in KEYS.items():
            assert held[key] <= limit, f"{held[key]} runs of {key} are READY or RUNNING"
            self.seen[FULL] += held[key] == limit

    @invariant()
    def no_two_bodies_of_one_run_are_alive(self) -> None:
        bodies = [(me, token) for me in self.dispatchers for token in me.bodies]
        assert len({run_id for _, (run_id, _) in bodies}) == len(bodies)
        for me, token in bodies:
            assert self.expected.is_live(me.lease)
            assert self.expected.holds(me.lease, *token), "a body runs that its dispatcher does not hold"


def _facts_of(row: dict[str, Any]) -> tuple[Any, ...]:
    """The columns of a run that the reference knows."""
    progress, result = (None if row[name] is None else json.dumps(row[name]) for name in ("progress", "result"))
    return (
        *(row["id"], row["status"], row["lease_id"], row["epoch"], row["attempt"], row["failures"]),
        *(row["interruptions"], row["cancel_requested_at"] is not None, row["run_after"] is not None),
        *(row["finished_at"] is not None, progress, result, len(row["errors"]), row["places"]),
        row["turn"] if row["status"] in ("READY", "BLOCKED") else None,
    )
