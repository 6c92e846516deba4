"""Leases, claims and outcomes on SQLite: what a dispatcher does for its own runs.

The guards are those of the other store: a token that fits, a lease that is live. See ``sqlite_session`` for why a guard
here may be a plain read before the write.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any
from uuid import UUID

from django.db import DataError, IntegrityError

from .sqlite_session import Row, Session, Transaction, list_of, moment
from .sqlite_turns import IN_LINE, PLACE, line_up
from .values import ClaimedRun, Exchange, NewLease, Settlement, Wanted

RUN = "django_dispatch_run"
LEASE = "django_dispatch_lease"
WAITER = "django_dispatch_waiter"
PAUSED = "django_dispatch_pausedqueue"
IS_PAUSED = f"""EXISTS (SELECT 1 FROM {PAUSED} AS p
  WHERE p.name = {RUN}.queue AND (p.paused_until IS NULL OR p.paused_until > %(now)s))"""
MOST_ERRORS = 100
LONGEST_ERRORS = 250_000

_SAY_WAITING = f"""
INSERT INTO {WAITER} (lease_id, queues, is_waiting)
SELECT id, %(queues)s, %(is_waiting)s FROM {LEASE} WHERE id = %(id)s AND expires_at > %(now)s
ON CONFLICT (lease_id) DO UPDATE SET queues = excluded.queues, is_waiting = excluded.is_waiting
"""
_READY = f"""
SELECT id FROM {RUN}
WHERE status = 'READY' AND queue = %(queue)s AND NOT {IS_PAUSED}
  AND task NOT IN (SELECT value FROM json_each(%(excluded)s))
  AND (expires_at IS NULL OR attempt > 0 OR expires_at > %(now)s)
{IN_LINE} LIMIT %(limit)s
"""
_IS_ANY_READY = f"""
SELECT 1 FROM {RUN}
WHERE status = 'READY' AND queue IN (SELECT value FROM json_each(%(queues)s)) AND NOT {IS_PAUSED} LIMIT 1
"""
# The key of a run of which one may wait is free when it waits no more.
_CLAIM = f"""
UPDATE {RUN}
SET status = 'RUNNING', lease_id = %(lease)s, epoch = epoch + 1, attempt = min(attempt + 1, 32767),
    started_at = %(now)s,
    unique_key = CASE WHEN on_duplicate NOT IN ('queue_one', 'replace') THEN unique_key END,
    on_lost = CASE WHEN task IN (SELECT value FROM json_each(%(at_most_once)s)) THEN 'fail' ELSE on_lost END
WHERE id IN (SELECT value FROM json_each(%(ids)s))
RETURNING id, epoch, task, queue, priority, attempt, failures, interruptions, max_attempts, timeout / 1e6, on_lost,
  args, kwargs, uuid, coalesce(ready_at, enqueued_at), scheduled_for, concurrency_key,
  {PLACE}
"""

OURS = "id = %(id)s AND epoch = %(epoch)s AND lease_id = %(lease)s AND status = 'RUNNING'"
# What a run keeps while it waits to be tried again: where order counts, its place at its key; else nothing.
KEPT_PLACES = "CASE WHEN places > 0 AND on_duplicate IN ('serial', 'queue_one') THEN 1 ELSE 0 END"
IS_UNIQUE_STILL = "coalesce(unique_until > %(now)s, 0)"
# Words: the one that it becomes. An acknowledged cancel wins over another attempt.
_FINISH = f"""
UPDATE {RUN}
SET status = %(word)s, lease_id = NULL, result = %(result)s, progress = coalesce(%(progress)s, progress),
    attempt = attempt - 1 + %(started)s, failures = failures + %(failed)s,
    interruptions = interruptions + %(interrupted)s,
    errors = %(errors)s, queue = coalesce(%(queue)s, queue), priority = coalesce(%(priority)s, priority),
    started_at = CASE WHEN %(started)s THEN started_at END,
    ready_at = CASE WHEN NOT %(started)s THEN ready_at WHEN %(word)s = 'READY' THEN %(now)s END,
    run_after = CASE WHEN %(word)s = 'SCHEDULED' THEN %(later)s END,
    unique_key = CASE WHEN %(word)s IN ('READY', 'SCHEDULED') OR %(word)s <> 'CANCELLED' AND {IS_UNIQUE_STILL}
                 THEN unique_key END,
    places = CASE WHEN %(word)s = 'SCHEDULED' THEN {KEPT_PLACES} ELSE places END,
    finished_at = CASE WHEN %(word)s NOT IN ('READY', 'SCHEDULED') THEN %(now)s END
WHERE {OURS}
"""


def acquire(session: Session, lease: NewLease, ttl_seconds: float) -> None:
    """See Store.acquire()."""
    with session.transaction() as tx:
        row = {
            "id": lease.id.hex,
            "node": lease.node,
            "host": lease.host,
            "pid": lease.pid,
            "process": json.dumps(lease.process),
            "queues": json.dumps(lease.queues),
            "slots": lease.slots,
            "version": lease.version,
            "acquired_at": tx.at(0),
            "renewed_at": tx.at(0),
            "expires_at": tx.at(ttl_seconds),
        }
        if tx.insert(LEASE, row) is None:
            raise IntegrityError(f"There is a lease {lease.id} already.")


def renew(session: Session, lease_id: UUID, ttl_seconds: float, state: str, slots: int | None) -> bool:
    """See Store.renew()."""
    with session.transaction() as tx:
        renewed = tx.change(
            f"UPDATE {LEASE} SET expires_at = %(expires_at)s, renewed_at = %(now)s, state = %(state)s,"
            " slots = coalesce(%(slots)s, slots) WHERE id = %(id)s AND expires_at > %(now)s",
            id=lease_id.hex,
            expires_at=tx.at(ttl_seconds),
            state=state,
            slots=slots,
        )
    return renewed == 1


def surrender(session: Session, lease_id: UUID) -> bool:
    """See Store.surrender()."""
    with session.transaction() as tx:
        deleted = tx.change(
            f"DELETE FROM {LEASE} WHERE id = %(id)s AND NOT EXISTS (SELECT 1 FROM {RUN} WHERE lease_id = %(id)s)",
            id=lease_id.hex,
        )
        forget_waiters(tx)
    return deleted == 1


def say_waiting(session: Session, lease_id: UUID, queues: Sequence[str], *, is_waiting: bool) -> bool:
    """See Store.say_waiting(). Nobody notifies here, whatever is said."""
    with session.transaction() as tx:
        said = tx.change(_SAY_WAITING, id=lease_id.hex, queues=json.dumps(list(queues)), is_waiting=is_waiting)
    return said == 1


def forget_waiters(tx: Transaction) -> None:
    """Forget the words of those whose leases are gone."""
    tx.change(f"DELETE FROM {WAITER} WHERE lease_id NOT IN (SELECT id FROM {LEASE})")


def exchange(session: Session, lease_id: UUID, settlements: Sequence[Settlement], wanted: Wanted) -> Exchange:
    """See Store.exchange(). A look that finds nothing writes nothing, and waits for no writer."""
    may_claim = wanted["limit"] > 0 and session.rows(_IS_ANY_READY, queues=list_of(wanted["queues"]))
    if not settlements and not may_claim:
        return Exchange([], [], [])
    try:
        with session.transaction() as tx:
            # What is given back by these settlements is for the next look.
            picked = _pick(tx, lease_id, wanted) if may_claim else []
            written = [(s, _finish(tx, lease_id, s)) for s in settlements]
            claimed = _claim(tx, lease_id, picked, wanted) if picked else []
            back = sorted(s.run_id for s, status in written if status == "READY" and s.was_started)
            line_up(tx, back, are_back=True)
    except IntegrityError as error:
        raise DataError(f"A settlement cannot be stored: {error}") from error
    refused = [s.run_id for s, status in written if status is None]
    cancelled = [s.run_id for s, status in written if status not in (None, s.status)]
    return Exchange(claimed, refused, [], cancelled)


def held(session: Session, lease_id: UUID) -> Sequence[tuple[int, int]]:
    """See Store.held()."""
    return [
        (row[0], row[1])
        for row in session.rows(f"SELECT id, epoch FROM {RUN} WHERE lease_id = %(id)s", id=lease_id.hex)
    ]


def cancellations(session: Session, lease_id: UUID) -> Sequence[tuple[int, int]]:
    """See Store.cancellations()."""
    wanted = f"SELECT id, epoch FROM {RUN} WHERE lease_id = %(id)s AND cancel_requested_at IS NOT NULL"
    return [(row[0], row[1]) for row in session.rows(wanted, id=lease_id.hex)]


def report_progress(session: Session, lease_id: UUID, progress: Mapping[tuple[int, int], str]) -> None:
    """See Store.report_progress()."""
    with session.transaction() as tx:
        for (run_id, epoch), text in progress.items():
            tx.change(
                f"UPDATE {RUN} SET progress = %(progress)s WHERE {OURS}",
                id=run_id,
                epoch=epoch,
                lease=lease_id.hex,
                progress=text,
            )


def with_error(errors: str, error: Mapping[str, Any]) -> str:
    """Return a run's errors with one more: of too many, the first and the newest are kept."""
    kept = json.loads(errors)
    kept = kept if isinstance(kept, list) else [kept]
    if len(errors) > LONGEST_ERRORS:
        kept = [kept[0], kept[-1]]
    elif len(kept) >= MOST_ERRORS:
        del kept[1]
    return json.dumps([*kept, error])


def _pick(tx: Transaction, lease_id: UUID, wanted: Wanted) -> list[int]:
    """Return the ids of the runs to be claimed, best first; none unless the lease is live."""
    if not tx.rows(f"SELECT 1 FROM {LEASE} WHERE id = %(id)s AND expires_at > %(now)s", id=lease_id.hex):
        return []
    picked: list[int] = []
    excluded = list_of(wanted.get("excluded_tasks", ()))
    for queue in wanted["queues"]:
        if (room := wanted["limit"] - len(picked)) > 0:
            picked += [row[0] for row in tx.rows(_READY, queue=queue, excluded=excluded, limit=room)]
    return picked


def _claim(tx: Transaction, lease_id: UUID, picked: Sequence[int], wanted: Wanted) -> list[ClaimedRun]:
    at_most_once = list_of(wanted.get("at_most_once_tasks", ()))
    found = tx.rows(_CLAIM, lease=lease_id.hex, ids=list_of(picked), at_most_once=at_most_once)
    place = {run_id: index for index, run_id in enumerate(picked)}
    return sorted((_claimed_run(tx, row) for row in found), key=lambda run: place[run.id])


def _claimed_run(tx: Transaction, row: Row) -> ClaimedRun:
    *facts, due_at, scheduled_for, concurrency_key, its_place = row
    due_seconds, slot = tx.since(due_at), moment(scheduled_for)
    scheduled_seconds = None if slot is None else slot.timestamp()
    return ClaimedRun._make((*facts, due_seconds, scheduled_seconds, concurrency_key, its_place))


def _finish(tx: Transaction, lease_id: UUID, s: Settlement) -> str | None:
    """Write one settlement if its token fits, and return what the run is now; None: it does not fit."""
    token = {"id": s.run_id, "epoch": s.epoch, "lease": lease_id.hex}
    found = tx.rows(f"SELECT cancel_requested_at IS NOT NULL, errors FROM {RUN} WHERE {OURS}", **token)
    if not found:
        return None
    ((is_cancelled, errors),) = found
    word = "CANCELLED" if is_cancelled and s.status in ("READY", "SCHEDULED") else s.status
    if s.error is not None:
        errors = with_error(errors, {**_loads(s.error), "at": tx.now.isoformat()})
    tx.change(
        _FINISH,
        **token,
        word=word,
        result=s.result,
        progress=s.progress,
        started=int(s.was_started),
        failed=int(s.has_failed),
        interrupted=int(s.was_interrupted),
        errors=errors,
        queue=s.queue,
        priority=s.priority,
        later=None if s.delay_seconds is None else tx.at(s.delay_seconds),
    )
    return word


def _loads(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise DataError(f"An error document is no JSON: {error}") from error
