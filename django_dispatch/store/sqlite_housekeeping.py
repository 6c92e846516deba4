"""Housekeeping on SQLite: what takes runs back, makes them READY, ends and deletes them; and what asks.

Each step reads first and takes the write lock only if there is something to do. ``housekeeping`` says what each is for.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from ..patterns import PRIVATE_PREFIX, private_queue
from .sqlite_claims import IS_PAUSED, IS_UNIQUE_STILL, KEPT_PLACES, LEASE, RUN, WAITER, forget_waiters, with_error
from .sqlite_session import Row, Session, Transaction, list_of, moment, seconds_ago
from .sqlite_turns import PLACE, line_up, next_turn
from .values import BACKLOG_LIMIT, Backlog, Expired, Neighbour, Promoted, Reclaimed

MOST_LEASES = 20
MOST_RUNS = 1000
LONGEST_DELAY_SECONDS = 3600

_IS_EXPIRED = "(expires_at < %(dead_at)s OR id IN (SELECT value FROM json_each(%(dead)s)))"
_IS_ORPHAN = f"lease_id IS NOT NULL AND lease_id NOT IN (SELECT id FROM {LEASE})"
_LOST = "id, task, queue, lease_id, attempt, interruptions, on_lost, cancel_requested_at IS NOT NULL, errors"
_LOSE = f"""
UPDATE {RUN}
SET status = %(word)s, lease_id = NULL, interruptions = interruptions + 1, errors = %(errors)s,
    ready_at = CASE WHEN %(word)s = 'READY' THEN %(now)s END, run_after = %(later)s,
    unique_key = CASE WHEN %(word)s IN ('READY', 'SCHEDULED') OR %(word)s <> 'CANCELLED' AND {IS_UNIQUE_STILL}
                 THEN unique_key END,
    places = CASE WHEN %(word)s = 'SCHEDULED' THEN {KEPT_PLACES} ELSE places END,
    finished_at = CASE WHEN %(word)s NOT IN ('READY', 'SCHEDULED') THEN %(now)s END
WHERE id = %(id)s AND status = 'RUNNING'
"""
_END = f"""
UPDATE {RUN} SET status = 'CANCELLED', run_after = NULL, unique_key = NULL, finished_at = %(now)s, errors = %(errors)s
WHERE id = %(id)s
"""
_NEXT_LIMIT = """CASE WHEN concurrency_key IS NOT NULL AND places = 0 THEN concurrency_key
                   WHEN queue IN (SELECT value FROM json_each(%(limited_queues)s)) THEN 'queue:' || queue END"""
_PROMOTE = f"""
UPDATE {RUN}
SET status = CASE WHEN {_NEXT_LIMIT} IS NULL THEN 'READY' ELSE 'BLOCKED' END, blocked_by = {_NEXT_LIMIT},
    ready_at = run_after, run_after = NULL
WHERE id IN (
  SELECT id FROM {RUN} WHERE status = 'SCHEDULED' AND run_after <= %(now)s ORDER BY run_after LIMIT %(limit)s)
RETURNING queue, blocked_by, id, ready_at
"""
_IS_LATE = "expires_at <= %(now)s AND attempt = 0 AND status IN ('SCHEDULED', 'READY', 'BLOCKED')"
_NEXT_DUE = f"SELECT min(run_after) FROM {RUN} WHERE status = 'SCHEDULED' AND run_after > %(now)s"
_NEXT_LATE = f"""
SELECT min(expires_at) FROM {RUN}
WHERE expires_at > %(now)s AND attempt = 0 AND status IN ('SCHEDULED', 'READY', 'BLOCKED')
"""
# The first one of all, due or not.
FIRST_DUE = f"SELECT min(run_after) FROM {RUN} WHERE status = 'SCHEDULED'"
FIRST_LATE = f"""
SELECT min(expires_at) FROM {RUN}
WHERE expires_at IS NOT NULL AND attempt = 0 AND status IN ('SCHEDULED', 'READY', 'BLOCKED')
"""
_AGED = f"""
SELECT id, top, queue, fair_key FROM (
  SELECT id, queue, priority, fair_key, coalesce(ready_at, enqueued_at) AS due_at,
    max(priority) OVER (PARTITION BY queue) AS top,
    row_number() OVER (PARTITION BY queue, priority ORDER BY {PLACE}) AS place
  FROM {RUN} WHERE status = 'READY'
) WHERE priority < top AND place <= %(limit)s AND due_at < %(before)s ORDER BY priority DESC, place LIMIT {MOST_RUNS}
"""


def reclaim(
    session: Session, *, grace_seconds: float, max_interruptions: int, dead_leases: Sequence[UUID], why: str
) -> Sequence[Reclaimed]:
    """See Store.reclaim()."""
    dead = list_of(lease_id.hex for lease_id in dead_leases)
    if not is_any_lost(session, grace_seconds=grace_seconds, dead=dead):
        return []
    with session.transaction() as tx:
        dead_at = tx.at(-grace_seconds)
        reclaimed = []
        expired = tx.rows(
            f"SELECT id, node, pid, host, expires_at < %(dead_at)s FROM {LEASE} WHERE {_IS_EXPIRED}"
            f" ORDER BY expires_at LIMIT {MOST_LEASES}",
            dead_at=dead_at,
            dead=dead,
        )
        for lease_id, node, pid, host, has_expired in expired:
            text = f"{'its lease expired' if has_expired else why} (node {node}, pid {pid} on {host})"
            runs = tx.rows(f"SELECT {_LOST} FROM {RUN} WHERE lease_id = %(lease)s", lease=lease_id)
            reclaimed += [_lose(tx, run, text, node, max_interruptions) for run in runs]
            tx.change(f"DELETE FROM {LEASE} WHERE id = %(id)s", id=lease_id)
        forget_waiters(tx)
        orphans = tx.rows(f"SELECT {_LOST} FROM {RUN} WHERE {_IS_ORPHAN} LIMIT {MOST_RUNS}")
        reclaimed += [_lose(tx, run, "its lease does not exist", "", max_interruptions) for run in orphans]
        line_up(tx, [run.run_id for run in reclaimed if run.status == "READY"], are_back=True)
        return reclaimed


def is_any_lost(session: Session, *, grace_seconds: float, dead: str = "[]") -> bool:
    """Return whether reclaim() has anything to do."""
    found = session.rows(
        f"SELECT EXISTS (SELECT 1 FROM {LEASE} WHERE {_IS_EXPIRED}) OR EXISTS (SELECT 1 FROM {RUN} WHERE {_IS_ORPHAN})"
        f" OR EXISTS (SELECT 1 FROM {WAITER} WHERE {_IS_ORPHAN})",
        dead_at=seconds_ago(grace_seconds),
        dead=dead,
    )
    return bool(found[0][0])


def unreachable_queues(session: Session) -> Sequence[str]:
    """Return the private queues with READY runs whose lease does not exist."""
    queues = [row[0] for row in session.rows(f"SELECT DISTINCT queue FROM {RUN} WHERE status = 'READY'")]
    live = {private_queue(UUID(row[0])) for row in session.rows(f"SELECT id FROM {LEASE}")}
    return [queue for queue in queues if queue.startswith(PRIVATE_PREFIX) and queue not in live]


def cancel_unreachable(session: Session) -> int:
    """See Store.cancel_unreachable()."""
    gone = unreachable_queues(session)
    if not gone:
        return 0
    with session.transaction() as tx:
        unreachable = tx.rows(
            f"SELECT id, attempt, errors FROM {RUN} WHERE status = 'READY'"
            f" AND queue IN (SELECT value FROM json_each(%(queues)s)) LIMIT {MOST_RUNS}",
            queues=list_of(gone),
        )
        for run_id, attempt, errors in unreachable:
            error = _error(tx, attempt, "unreachable", "It was for one dispatcher alone, which lives no more.")
            tx.change(_END, id=run_id, errors=with_error(errors, error))
    return len(unreachable)


def promote(session: Session, *, limit: int, limited_queues: Sequence[str]) -> Promoted:
    """See Store.promote()."""
    promoted = []
    if session.rows(f"SELECT 1 FROM {RUN} WHERE status = 'SCHEDULED' AND run_after <= %(now)s LIMIT 1"):
        with session.transaction() as tx:
            promoted = tx.rows(_PROMOTE, limit=limit, limited_queues=list_of(limited_queues))
            line_up(tx, [run_id for _, _, run_id, due_at in sorted(promoted, key=lambda row: (row[3], row[2]))])
    queues = {queue for queue, blocked_by, *_ in promoted if blocked_by is None}
    blocked = {blocked_by for _, blocked_by, *_ in promoted if blocked_by is not None}
    return Promoted(sorted(queues), seconds_until(session, _NEXT_DUE), sorted(blocked))


def expire(session: Session, *, limit: int) -> Expired:
    """See Store.expire()."""
    late, freed = [], set[str]()
    if session.rows(f"SELECT 1 FROM {RUN} WHERE {_IS_LATE} LIMIT 1"):
        with session.transaction() as tx:
            late = tx.rows(
                f"SELECT id, errors, places, queue, concurrency_key FROM {RUN} WHERE {_IS_LATE}"
                " ORDER BY expires_at LIMIT %(limit)s",
                limit=limit,
            )
            for run_id, errors, places, queue, key in late:
                error = _error(tx, 0, "expired", "It had not been started when it expired.")
                tx.change(_END, id=run_id, errors=with_error(errors, error))
                freed |= {key} if places and key is not None else set()
                freed |= {f"queue:{queue}"} if places == 2 else set()
    return Expired(len(late), seconds_until(session, _NEXT_LATE), sorted(freed))


def age(session: Session, *, age_seconds: float, limit: int) -> int:
    """See Store.age()."""
    params = {"before": seconds_ago(age_seconds), "limit": limit}
    if not session.rows(_AGED, **params):
        return 0
    with session.transaction() as tx:
        aged = tx.rows(_AGED, **params)
        for run_id, top, queue, key in aged:
            turn = None if key is None else next_turn(tx, queue, top, key, run_id)
            tx.change(
                f"UPDATE {RUN} SET priority = %(top)s, turn = %(turn)s WHERE id = %(id)s", id=run_id, top=top, turn=turn
            )
    return len(aged)


def ready_queues(session: Session) -> Sequence[str]:
    """See Store.ready_queues()."""
    found = session.rows(f"SELECT DISTINCT queue FROM {RUN} WHERE status = 'READY' AND NOT {IS_PAUSED} ORDER BY queue")
    return [row[0] for row in found]


def backlogs(session: Session) -> Sequence[Backlog]:
    """See Store.backlogs()."""
    found = session.rows(
        f"SELECT queue, count(*), min(coalesce(ready_at, enqueued_at)), %(now)s FROM {RUN} WHERE status = 'READY'"
        " GROUP BY queue ORDER BY queue LIMIT 1000"
    )
    return [Backlog(queue, min(count, BACKLOG_LIMIT), max(0.0, _between(due, now))) for queue, count, due, now in found]


def live_leases(session: Session) -> Mapping[str, int]:
    """See Store.live_leases()."""
    found = session.rows(f"SELECT state, count(*) FROM {LEASE} WHERE expires_at > %(now)s GROUP BY state")
    return {state: count for state, count in found}


def neighbours(session: Session, *, host: str, besides: UUID | None) -> Sequence[Neighbour]:
    """See Store.neighbours()."""
    found = session.rows(
        f"SELECT id, node, process FROM {LEASE} WHERE host = %(host)s AND id IS NOT %(besides)s",
        host=host,
        besides=None if besides is None else besides.hex,
    )
    return [Neighbour(UUID(lease_id), node, json.loads(process)) for lease_id, node, process in found]


def seconds_until(session: Session, statement: str) -> float | None:
    """Return in how many seconds the moment is that the statement finds; 0 if it has passed."""
    ((stored, now),) = session.rows(f"SELECT ({statement}), %(now)s")
    return None if stored is None else max(0.0, -_between(stored, now))


def _lose(tx: Transaction, run: Row, why: str, node: str, max_interruptions: int) -> Reclaimed:
    """Take back a run: the first loss is repeated at once, later ones wait."""
    run_id, task, queue, lease, attempt, interruptions, on_lost, is_cancelled, errors = run
    if is_cancelled:
        word = "CANCELLED"
    elif on_lost == "fail" or interruptions + 1 >= max_interruptions:
        word = "FAILED"
    else:
        word = "SCHEDULED" if interruptions else "READY"
    error = {**_error(tx, attempt, "lost", f"The dispatcher was lost: {why}"), "executor": node}
    delay_seconds = min(2.0 ** min(interruptions, 20), LONGEST_DELAY_SECONDS)
    later = tx.at(delay_seconds) if word == "SCHEDULED" else None
    tx.change(_LOSE, id=run_id, word=word, errors=with_error(errors, error), later=later)
    return Reclaimed(run_id, task, queue, word, UUID(lease))


def _error(tx: Transaction, attempt: int, kind: str, message: str) -> dict[str, Any]:
    return {"attempt": attempt, "at": tx.now.isoformat(), "kind": kind, "message": message}


def _between(stored: object, now: object) -> float:
    earlier, later = moment(stored), moment(now)
    return 0.0 if earlier is None or later is None else (later - earlier).total_seconds()
