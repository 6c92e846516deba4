"""The dispatcher's verbs on SQLite, on one session. In the dispatcher, on its store, keeper and claims threads.

Nothing can be sent to anybody here: whoever is to know of something finds it at his next poll.
"""

import asyncio
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import Unpack
from uuid import UUID

from . import sqlite_agenda
from . import sqlite_callers as callers
from . import sqlite_claims as claims
from . import sqlite_housekeeping as housekeeping
from . import sqlite_limits as limits
from . import sqlite_prune as prunes
from . import sqlite_schedules as schedules
from .base import Exchanger, Store
from .prunable import Prunable
from .schedule_rows import Declaration, DueSchedule, Fired, Firing, ScheduleState
from .sqlite_claims import RUN
from .sqlite_session import Session, Transaction
from .values import (
    Admitted,
    Agenda,
    Backlog,
    CancelledRun,
    Exchange,
    Expired,
    Filter,
    Neighbour,
    NewLease,
    NewRun,
    Promoted,
    ReceivedRun,
    Reclaimed,
    Settlement,
    Wanted,
)


class SqliteStore(Store):
    """See Store. One instance is used by one thread."""

    def __init__(self, session: Session) -> None:
        self.session = session

    def acquire(self, lease: NewLease, *, ttl_seconds: float) -> None:
        claims.acquire(self.session, lease, ttl_seconds)

    def renew(self, lease_id: UUID, *, ttl_seconds: float, is_draining: bool, slots: int | None = None) -> bool:
        return claims.renew(self.session, lease_id, ttl_seconds, "DRAINING" if is_draining else "ACTIVE", slots)

    def surrender(self, lease_id: UUID) -> bool:
        return claims.surrender(self.session, lease_id)

    def say_waiting(self, lease_id: UUID, *, queues: Sequence[str], is_waiting: bool) -> bool:
        return claims.say_waiting(self.session, lease_id, queues, is_waiting=is_waiting)

    def mark(self) -> int:
        """See Store.mark(). One after the other: who had written before the last word was written has ended."""
        return 0

    def has_passed(self, mark: int) -> bool:
        return True

    def exchange(
        self,
        lease_id: UUID,
        settlements: Sequence[Settlement],
        **wanted: Unpack[Wanted],
    ) -> Exchange:
        return claims.exchange(self.session, lease_id, settlements, wanted)

    def held(self, lease_id: UUID) -> Sequence[tuple[int, int]]:
        return claims.held(self.session, lease_id)

    def cancellations(self, lease_id: UUID) -> Sequence[tuple[int, int]]:
        return claims.cancellations(self.session, lease_id)

    def report_progress(self, lease_id: UUID, progress: Mapping[tuple[int, int], str]) -> None:
        claims.report_progress(self.session, lease_id, progress)

    def agenda(self, *, host: str, tasks: Sequence[str], grace_seconds: float, limit: int) -> Agenda:
        return sqlite_agenda.agenda(self.session, host=host, tasks=tasks, grace_seconds=grace_seconds, limit=limit)

    def reclaim(
        self,
        *,
        grace_seconds: float,
        max_interruptions: int,
        dead_leases: Sequence[UUID] = (),
        why: str = "its process died",
    ) -> Sequence[Reclaimed]:
        return housekeeping.reclaim(
            self.session,
            grace_seconds=grace_seconds,
            max_interruptions=max_interruptions,
            dead_leases=dead_leases,
            why=why,
        )

    def cancel_unreachable(self) -> int:
        return housekeeping.cancel_unreachable(self.session)

    def promote(self, *, limit: int, limited_queues: Sequence[str] = ()) -> Promoted:
        return housekeeping.promote(self.session, limit=limit, limited_queues=limited_queues)

    def blocked_keys(self, *, after: str, limit: int) -> Sequence[str]:
        return limits.blocked_keys(self.session, after=after, limit=limit)

    def admit(self, keys: Sequence[str], *, most: int, queue_limits: str) -> Admitted:
        return limits.admit(self.session, keys, most=most, queue_limits=queue_limits)

    def prune_buckets(self) -> None:
        limits.prune_buckets(self.session)

    def expire(self, *, limit: int) -> Expired:
        return housekeeping.expire(self.session, limit=limit)

    def prune(self, *, status: str, age_seconds: float, limit: int) -> int:
        old = Prunable(status, "default", status, None, age_seconds)
        return prunes.prune_once(self.session, old, limit=limit)

    def prune_own(self, *, limit: int) -> int:
        return prunes.prune_once(self.session, Prunable("own", "own", None, None), limit=limit)

    def age(self, *, age_seconds: float, limit: int) -> int:
        return housekeeping.age(self.session, age_seconds=age_seconds, limit=limit)

    def ready_queues(self) -> Sequence[str]:
        return housekeeping.ready_queues(self.session)

    def backlogs(self) -> Sequence[Backlog]:
        return housekeeping.backlogs(self.session)

    def live_leases(self) -> Mapping[str, int]:
        return housekeeping.live_leases(self.session)

    def neighbours(self, *, host: str, besides: UUID | None) -> Sequence[Neighbour]:
        return housekeeping.neighbours(self.session, host=host, besides=besides)

    def due_schedules(self, tasks: Sequence[str], *, limit: int) -> tuple[Sequence[DueSchedule], float | None]:
        return schedules.due(self.session, tasks, limit)

    def fire(self, firings: Sequence[Firing], *, limited_queues: Sequence[str] = ()) -> Sequence[Fired]:
        return schedules.fire(self.session, firings, limited_queues)

    def declare(self, declarations: Sequence[Declaration]) -> Mapping[str, str]:
        return schedules.declare(self.session, declarations)

    def keep_declared(self, names: Sequence[str]) -> None:
        schedules.keep_declared(self.session, names)

    def flag_unknown(self, tasks: Sequence[str], problem: str) -> Sequence[tuple[str, str]]:
        return schedules.flag_unknown(self.session, tasks, problem)

    def schedule_states(self, *, limit: int) -> Sequence[ScheduleState]:
        return schedules.states(self.session, limit)

    def enqueue_at_start(self, runs: Sequence[NewRun]) -> Sequence[ReceivedRun]:
        return self._receive(runs, "schedule")

    def notify(self, payloads: Sequence[str]) -> None:
        """Do nothing: nobody can hear it."""

    def send(self, channel: str, payloads: Sequence[str]) -> None:
        """Do nothing: nobody can hear it."""

    def receive(self, messages: Sequence[NewRun]) -> Sequence[ReceivedRun]:
        return self._receive(messages, "notify")

    def _receive(self, messages: Sequence[NewRun], source: str) -> Sequence[ReceivedRun]:
        found: list[ReceivedRun] = []
        with self.session.transaction() as tx:
            for message in messages:
                is_new = callers.record(tx, message, source) is not None
                which = f"SELECT id, uuid, queue, status, blocked_by FROM {RUN} WHERE uuid = %(uuid)s"
                found += [ReceivedRun._make((*row[:4], is_new, row[4])) for row in tx.rows(which, uuid=message.uuid)]
        return found

    def cancel(self, limit: int, **wanted: Unpack[Filter]) -> Mapping[int, CancelledRun]:
        with self.session.transaction() as tx:
            return {run.id: run for run in callers.cancel_in(tx, _meant(tx, limit, wanted))}

    def abort(self) -> None:
        self.session.abort()

    def close(self) -> None:
        self.session.close()


class ThreadExchanger(Exchanger):
    """``Store.exchange`` for an event loop: on a thread and a session of its own."""

    def __init__(self, store: Store, *, deadline_seconds: float) -> None:
        self._store = store
        self._deadline_seconds = deadline_seconds
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="claims")

    async def exchange(
        self,
        lease_id: UUID,
        settlements: Sequence[Settlement],
        **wanted: Unpack[Wanted],
    ) -> Exchange:
        """See Store.exchange()."""
        loop = asyncio.get_running_loop()
        call = loop.run_in_executor(self._thread, lambda: self._store.exchange(lease_id, settlements, **wanted))
        alarm = loop.call_later(self._deadline_seconds, self._store.abort)
        try:
            # Shielded: a cancelled caller must not leave a call under way that nobody knows of.
            return await asyncio.shield(call)
        finally:
            alarm.cancel()

    async def close(self) -> None:
        """Let the call under way end, then close the connection."""
        await asyncio.get_running_loop().run_in_executor(self._thread, self._store.close)
        self._thread.shutdown(wait=False)


def open_store(alias: str, role: str, *, statement_timeout_seconds: float) -> SqliteStore:
    """Return a store on a session of its own, which waits so long for its turn to write; nothing is connected yet."""
    return SqliteStore(Session(alias, patience_seconds=statement_timeout_seconds))


def open_exchanger(
    alias: str, role: str, *, statement_timeout_seconds: float, deadline_seconds: float
) -> ThreadExchanger:
    """Return an exchanger on a session of its own; nothing is connected yet."""
    store = open_store(alias, role, statement_timeout_seconds=statement_timeout_seconds)
    return ThreadExchanger(store, deadline_seconds=deadline_seconds)


def _meant(tx: Transaction, limit: int, wanted: Filter) -> list[int]:
    """Return the runs of which all this holds; without an id of either kind, those that wait or run."""
    columns = {"run": "id", "uuid": "uuid", "task": "task", "queue": "queue"}
    conditions = [f"{column} = %({name})s" for name, column in columns.items() if name in wanted]
    if "run" not in wanted and "uuid" not in wanted:
        conditions.append("finished_at IS NULL AND cancel_requested_at IS NULL")
    found = tx.rows(f"SELECT id, args, kwargs FROM {RUN} WHERE {' AND '.join(conditions)} ORDER BY id", **wanted)
    # The texts of equal documents may differ.
    args, kwargs = json.loads(wanted.get("args", "null")), json.loads(wanted.get("kwargs", "null"))
    is_meant = (
        run_id
        for run_id, its_args, its_kwargs in found
        if args in (None, json.loads(its_args)) and kwargs in (None, json.loads(its_kwargs))
    )
    return list(islice(is_meant, limit))
