"""The agenda on SQLite: what there is to do, as each step would find it. It writes nothing."""

from collections.abc import Sequence
from uuid import UUID

from . import sqlite_housekeeping as housekeeping
from . import sqlite_limits as limits
from . import sqlite_schedules as schedules
from .sqlite_claims import LEASE
from .sqlite_session import Session
from .values import Agenda


def agenda(session: Session, *, host: str, tasks: Sequence[str], grace_seconds: float, limit: int) -> Agenda:
    """See Store.agenda()."""
    due, next_seconds = schedules.due(session, tasks, 1)
    is_any_lost = housekeeping.is_any_lost(session, grace_seconds=grace_seconds)
    return Agenda(
        housekeeping.ready_queues(session),
        limits.blocked_keys(session, after="", limit=limit),
        housekeeping.seconds_until(session, housekeeping.FIRST_DUE),
        housekeeping.seconds_until(session, housekeeping.FIRST_LATE),
        0.0 if due else next_seconds,
        is_any_lost or bool(housekeeping.unreachable_queues(session)),
        [UUID(row[0]) for row in session.rows(f"SELECT id FROM {LEASE} WHERE host = %(host)s", host=host)],
    )
