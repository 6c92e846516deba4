"""The dispatcher's verbs on PostgreSQL, on one session. In the dispatcher, on its store and keeper threads."""

import json
from collections.abc import Mapping, Sequence
from typing import Unpack
from uuid import UUID

from . import housekeeping, postgres_agenda, statements
from . import postgres_schedules as schedules
from .base import Store
from .exchange import AsyncExchanger, Call
from .postgres_enqueue import CANCEL, document
from .postgres_unique import GIVE_WAY
from .schedule_rows import Declaration, DueSchedule, Fired, Firing, ScheduleState
from .session import AsyncSession, Session, Terms
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
from .walks import Walks


class PostgresStore(Store):
    """See Store. One instance is used by one thread."""

    def __init__(self, session: Session) -> None:
        self.session = session
        self._walks = Walks()

    def acquire(self, lease: NewLease, *, ttl_seconds: float) -> None:
        self.session.execute(
            statements.ACQUIRE,
            {
                "id": lease.id,
                "node": lease.node,
                "host": lease.host,
                "pid": lease.pid,
                "process": json.dumps(lease.process),
                "queues": json.dumps(lease.queues),
                "slots": lease.slots,
                "version": lease.version,
                "ttl": ttl_seconds,
            },
        )

    def renew(self, lease_id: UUID, *, ttl_seconds: float, is_draining: bool, slots: int | None = None) -> bool:
        state = "DRAINING" if is_draining else "ACTIVE"
        params = {"id": lease_id, "ttl": ttl_seconds, "state": state, "slots": slots}
        cursor = self.session.execute(statements.RENEW, params)
        return cursor.rowcount == 1

    def surrender(self, lease_id: UUID) -> bool:
        return self.session.execute(statements.SURRENDER, {"id": lease_id}).rowcount == 1

    def say_waiting(self, lease_id: UUID, *, queues: Sequence[str], is_waiting: bool) -> bool:
        params = {"id": lease_id, "queues": json.dumps(list(queues)), "is_waiting": is_waiting}
        return self.session.execute(statements.SAY_WAITING, params).rowcount == 1

    def mark(self) -> int:
        return int(self.session.execute(statements.MARK).fetchall()[0][0])

    def has_passed(self, mark: int) -> bool:
        return bool(self.session.execute(statements.HAS_PASSED, {"mark": mark}).fetchall()[0][0])

    def exchange(
        self,
        lease_id: UUID,
        settlements: Sequence[Settlement],
        **wanted: Unpack[Wanted],
    ) -> Exchange:
        walk = self._walks.begin(wanted)
        if walk.wants_tail:
            walk.set_tail(self.session.execute(statements.TAIL).fetchall())
        call = Call(lease_id, settlements, wanted, walk)
        return call.answer(self.session.execute(call.statement, call.params))

    def held(self, lease_id: UUID) -> Sequence[tuple[int, int]]:
        return [(row[0], row[1]) for row in self.session.execute(statements.HELD, {"lease": lease_id})]

    def cancellations(self, lease_id: UUID) -> Sequence[tuple[int, int]]:
        return [(row[0], row[1]) for row in self.session.execute(statements.CANCELLATIONS, {"lease": lease_id})]

    def report_progress(self, lease_id: UUID, progress: Mapping[tuple[int, int], str]) -> None:
        items = (f'{{"id":{key[0]},"epoch":{key[1]},"progress":{progress[key]}}}' for key in sorted(progress))
        self.session.execute(statements.PROGRESS, {"lease": lease_id, "progress": f"[{','.join(items)}]"})

    def agenda(self, *, host: str, tasks: Sequence[str], grace_seconds: float, limit: int) -> Agenda:
        return postgres_agenda.agenda(self.session, host=host, tasks=tasks, grace_seconds=grace_seconds, limit=limit)

    def reclaim(
        self,
        *,
        grace_seconds: float,
        max_interruptions: int,
        dead_leases: Sequence[UUID] = (),
        why: str = "its process died",
    ) -> Sequence[Reclaimed]:
        params = {
            "grace": grace_seconds,
            "max_interruptions": max_interruptions,
            "dead": list(dead_leases),
            "why": why,
        }
        return [Reclaimed(*row) for row in self.session.execute(statements.RECLAIM, params)]

    def cancel_unreachable(self) -> int:
        return self.session.execute(housekeeping.CANCEL_UNREACHABLE, {}).rowcount

    def promote(self, *, limit: int, limited_queues: Sequence[str] = ()) -> Promoted:
        params = {"limit": limit, "limited_queues": list(limited_queues)}
        *rows, (_, _, next_seconds) = self.session.execute(housekeeping.PROMOTE, params).fetchall()
        queues = [queue for queue, key, _ in rows if key is None]
        return Promoted(queues, next_seconds, sorted({key for _, key, _ in rows if key is not None}))

    def blocked_keys(self, *, after: str, limit: int) -> Sequence[str]:
        return [row[0] for row in self.session.execute(housekeeping.BLOCKED_KEYS, {"after": after, "limit": limit})]

    def admit(self, keys: Sequence[str], *, most: int, queue_limits: str) -> Admitted:
        params = {"keys": list(keys), "most": most, "queue_limits": queue_limits}
        rows = self.session.execute(housekeeping.ADMIT, params).fetchall()
        return Admitted(
            [queue for queue, _, _ in rows if queue is not None],
            [key for _, key, seconds in rows if key is not None and seconds is None],
            {key: seconds for _, key, seconds in rows if seconds is not None},
        )

    def prune_buckets(self) -> None:
        self.session.execute(housekeeping.PRUNE_BUCKETS)

    def expire(self, *, limit: int) -> Expired:
        count, freed, next_seconds = self.session.execute(housekeeping.EXPIRE, {"limit": limit}).fetchall()[0]
        return Expired(count, next_seconds, freed)

    def prune(self, *, status: str, age_seconds: float, limit: int) -> int:
        params = {"status": status, "age": age_seconds, "task": None, "limit": limit}
        return self.session.execute(housekeeping.PRUNE, params).rowcount

    def prune_own(self, *, limit: int) -> int:
        params = {"status": None, "task": None, "limit": limit}
        return self.session.execute(housekeeping.PRUNE_OWN, params).rowcount

    def age(self, *, age_seconds: float, limit: int) -> int:
        return self.session.execute(housekeeping.AGE, {"age": age_seconds, "limit": limit}).rowcount

    def ready_queues(self) -> Sequence[str]:
        return [row[0] for row in self.session.execute(housekeeping.READY_QUEUES)]

    def backlogs(self) -> Sequence[Backlog]:
        return [Backlog(*row) for row in self.session.execute(housekeeping.BACKLOGS)]

    def live_leases(self) -> Mapping[str, int]:
        return {row[0]: row[1] for row in self.session.execute(statements.LIVE_LEASES)}

    def neighbours(self, *, host: str, besides: UUID | None) -> Sequence[Neighbour]:
        return [
            Neighbour(*row) for row in self.session.execute(statements.NEIGHBOURS, {"host": host, "besides": besides})
        ]

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
        self.session.execute(statements.NOTIFY, {"payloads": list(payloads)})

    def send(self, channel: str, payloads: Sequence[str]) -> None:
        self.session.execute(statements.SEND, {"channel": channel, "payloads": list(payloads)})

    def receive(self, messages: Sequence[NewRun]) -> Sequence[ReceivedRun]:
        return self._receive(messages, "notify")

    def _receive(self, messages: Sequence[NewRun], source: str) -> Sequence[ReceivedRun]:
        found = self._record(messages, source)
        missing = [message for message in messages if message.uuid not in found]
        if missing:
            old = self.session.execute(statements.RECEIVED, {"uuids": [message.uuid for message in missing]})
            found |= {row[1]: ReceivedRun(*row) for row in old}
        missing = [message for message in missing if message.uuid not in found]
        keys = [message.unique_key for message in missing if message.unique_key is not None]
        if keys and self.session.execute(GIVE_WAY, {"keys": keys}).rowcount:
            found |= self._record(missing, source)
        return list(found.values())

    def _record(self, messages: Sequence[NewRun], source: str) -> dict[str | None, ReceivedRun]:
        documents = f"[{','.join(map(document, messages))}]"
        rows = self.session.execute(statements.RECEIVE, {"messages": documents, "source": source})
        return {row[1]: ReceivedRun(*row) for row in rows}

    def cancel(self, limit: int, **wanted: Unpack[Filter]) -> Mapping[int, CancelledRun]:
        names = ("run", "uuid", "task", "queue", "args", "kwargs")
        params = {name: wanted.get(name) for name in names} | {"limit": limit}
        if "run" in wanted:
            meant = statements.MEANT_BY_ID
        else:
            meant = statements.MEANT_BY_UUID if "uuid" in wanted else statements.MEANT
        ids = [row[0] for row in self.session.execute(meant, params)]
        found = self.session.execute(CANCEL, {"ids": ids}) if ids else ()
        return {row[0]: CancelledRun._make(row) for row in found}

    def abort(self) -> None:
        self.session.abort()

    def close(self) -> None:
        self.session.close()


def open_store(alias: str, role: str, *, statement_timeout_seconds: float) -> PostgresStore:
    """Return a store on a session of its own; nothing is connected yet. ``role`` is seen in pg_stat_activity."""
    return PostgresStore(Session(Terms(alias, role, statement_timeout_seconds)))


def open_exchanger(
    alias: str, role: str, *, statement_timeout_seconds: float, deadline_seconds: float
) -> AsyncExchanger:
    """Return an exchanger on a session of its own; nothing is connected yet."""
    terms = Terms(alias, role, statement_timeout_seconds)
    return AsyncExchanger(AsyncSession(terms, deadline_seconds=deadline_seconds))
