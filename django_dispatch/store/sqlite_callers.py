"""What callers do on SQLite: enqueue, cancel, rerun, pause; in their process, connection and transaction.

The database refuses a second run of a key, by its unique indexes; what becomes of the two is decided here, where nobody
else writes until the transaction ends.
"""

import json
from collections.abc import Collection, Iterable, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any, overload
from uuid import UUID

from django.conf import settings

from .sqlite_claims import LEASE, OURS, PAUSED, RUN, with_error
from .sqlite_prune import count_prunable, prune
from .sqlite_session import Transaction, callers_transaction, interval, list_of, moment, stamp
from .sqlite_turns import line_up
from .values import CancelledRun, NewRun, Recorded

if TYPE_CHECKING:
    from django_dispatch.models import Run

__all__ = [
    "active_dispatchers",
    "cancel",
    "count_prunable",
    "enqueue",
    "enqueue_and_wake",
    "enqueue_many",
    "enqueue_unique",
    "finish",
    "pause",
    "prune",
    "rerun",
    "resume",
]

_GIVES_WAY = """(finished_at IS NOT NULL AND (unique_until IS NULL OR unique_until <= %(now)s)
  OR on_duplicate = 'replace' AND status IN ('SCHEDULED', 'READY', 'BLOCKED'))"""
_CANCEL_WAITING = f"""
UPDATE {RUN} SET status = 'CANCELLED', finished_at = %(now)s, run_after = NULL, unique_key = NULL WHERE id = %(id)s
"""
_ASK_TO_STOP = f"UPDATE {RUN} SET cancel_requested_at = coalesce(cancel_requested_at, %(now)s) WHERE id = %(id)s"
_KEPT_BY_RERUN = (
    *("task", "queue", "priority", "args", "kwargs", "max_attempts", "timeout", "on_lost", "retention", "on_duplicate"),
    *("concurrency_key", "concurrency_limit", "rate_amount", "rate_seconds", "fair_key"),
)
# A queue that is paused already stays so since then; what is new is why, by whom and until when.
_PAUSE = f"""
INSERT INTO {PAUSED} AS q (name, reason, paused_by, paused_at, paused_until)
VALUES (%(name)s, %(reason)s, %(by)s, %(now)s, %(until)s)
ON CONFLICT (name) DO UPDATE
SET reason = excluded.reason, paused_by = excluded.paused_by, paused_until = excluded.paused_until,
    paused_at = CASE WHEN q.paused_until <= excluded.paused_at THEN excluded.paused_at ELSE q.paused_at END
"""
_FINISH = f"""
UPDATE {RUN}
SET status = 'SUCCESSFUL', lease_id = NULL, result = %(result)s, finished_at = %(now)s,
    unique_key = CASE WHEN unique_until > %(now)s THEN unique_key END
WHERE {OURS}
"""


def enqueue(using: str, new: NewRun) -> Recorded:
    """Insert one run: READY, SCHEDULED if it is due later, or BLOCKED if it has a limit to pass."""
    return enqueue_many(using, [new])[0]


def enqueue_and_wake(
    using: str, new: NewRun, channel: str, payload: str, awaited: Sequence[str | None] = ()
) -> tuple[Recorded, bool]:
    """Insert one run; nobody can be woken."""
    return enqueue(using, new), False


def enqueue_many(using: str, news: Iterable[NewRun]) -> list[Recorded]:
    """Insert the runs, all or none; the answers and the ids are in the order of ``news``."""
    news = list(news)
    if not news:
        return []
    with callers_transaction(using) as tx:
        return [recorded for new in news if (recorded := record(tx, new, "app"))]


def enqueue_unique(using: str, news: Sequence[NewRun]) -> list[Recorded]:
    """Insert each run, or find the one that is there in its place; all or none. The answers are in the order given."""
    with callers_transaction(using) as tx:
        return [record(tx, new, "app") or _duplicate(using, new) for new in news]


def record(tx: Transaction, new: NewRun, source: str) -> Recorded | None:
    """Insert a run, once those have given way that may; None: another one is there in its place."""
    if new.unique_key is not None and (new.uuid is None or not _is_known(tx, new.uuid)):
        give_way(tx, new.unique_key)
    row = new_row(tx, new, source)
    run_id = tx.insert(RUN, row)
    if run_id is None:
        return None
    turn = None if new.fair_key is None else line_up(tx, [run_id]).get(run_id)
    return Recorded(run_id, _as_read(tx.now), row["status"], _as_read(moment(row["run_after"])), turn)


def new_row(tx: Transaction, new: NewRun, source: str) -> dict[str, Any]:
    """Return the columns of a run's row: all that have no default, or another value than that."""
    due_at = _at(tx, new.run_after, new.delay_seconds)
    is_later = due_at is not None and due_at > tx.at(0)
    blocked_by = None if is_later else new.blocked_by
    row = new._asdict() | {
        "status": "SCHEDULED" if is_later else "READY" if blocked_by is None else "BLOCKED",
        "run_after": due_at if is_later else None,
        "blocked_by": blocked_by,
        "timeout": interval(new.timeout_seconds),
        "unique_until": _at(tx, None, new.unique_seconds),
        "on_duplicate": new.on_duplicate or "",
        "expires_at": _at(tx, new.expires_at, new.expires_seconds),
        "source": source if new.schedule_id is None else "schedule",
        "enqueued_at": tx.at(0),
    }
    for name in ("delay_seconds", "timeout_seconds", "unique_seconds", "expires_seconds", "is_limited"):
        del row[name]
    return row


def give_way(tx: Transaction, key: str) -> None:
    """Take the key from a run that does not need it any more, and cancel one that waits and may be replaced."""
    which = f"SELECT id, finished_at IS NULL, attempt, errors FROM {RUN} WHERE unique_key = %(key)s AND {_GIVES_WAY}"
    for run_id, is_waiting, attempt, errors in tx.rows(which, key=key):
        tx.change(f"UPDATE {RUN} SET unique_key = NULL WHERE id = %(id)s", id=run_id)
        if is_waiting:
            message = "A newer run of its key took its place."
            error = {"attempt": attempt, "at": tx.now.isoformat(), "kind": "cancelled", "message": message}
            tx.change(_CANCEL_WAITING, id=run_id)
            tx.change(
                f"UPDATE {RUN} SET errors = %(errors)s WHERE id = %(id)s", id=run_id, errors=with_error(errors, error)
            )


def active_dispatchers(using: str) -> list[tuple[UUID, list[str]]]:
    """Return the lease of each live dispatcher that claims runs, and which queues it serves."""
    with callers_transaction(using) as tx:
        found = tx.rows(
            f"SELECT id, queues FROM {LEASE} WHERE expires_at > %(now)s AND state = 'ACTIVE' ORDER BY node, acquired_at"
        )
    return [(UUID(lease_id), json.loads(queues)) for lease_id, queues in found]


def cancel(using: str, ids: Collection[int]) -> list[CancelledRun]:
    """End the waiting ones of these runs, ask the running ones to stop; runs that do not exist are left out."""
    with callers_transaction(using) as tx:
        return cancel_in(tx, ids)


def cancel_in(tx: Transaction, ids: Collection[int]) -> list[CancelledRun]:
    """See cancel()."""
    found = tx.rows(
        f"SELECT id, status, lease_id, places, concurrency_key, queue FROM {RUN}"
        " WHERE id IN (SELECT value FROM json_each(%(ids)s)) ORDER BY id",
        ids=list_of(ids),
    )
    answers = []
    for run_id, status, lease_id, places, key, queue in found:
        if status in ("SCHEDULED", "READY", "BLOCKED"):
            tx.change(_CANCEL_WAITING, id=run_id)
            freed = (key if places else None, queue if places == 2 else None)
            answers.append(CancelledRun(run_id, "cancelled", None, *freed))
        elif status == "RUNNING":
            tx.change(_ASK_TO_STOP, id=run_id)
            answers.append(CancelledRun(run_id, "requested", UUID(lease_id)))
        else:
            answers.append(CancelledRun(run_id, "already final", None))
    return answers


def rerun(using: str, run_id: int, *, limited_queues: Collection[str] = ()) -> "Run | None":
    """Insert a copy of a run that has ended; None if there is no such run or it has not ended.

    It keeps to the limits of the old one, and is nobody's duplicate. It may wait for its start as long as that might.
    """
    from django_dispatch.models import FINAL, Run

    with callers_transaction(using) as tx:
        old = Run.objects.using(using).filter(pk=run_id, status__in=FINAL).first()
        if old is None:
            return None
        blocked_by = old.concurrency_key or (f"queue:{old.queue}" if old.queue in limited_queues else None)
        new = Run(
            **{name: getattr(old, name) for name in _KEPT_BY_RERUN},
            meta={"rerun_of": run_id},
            source="app",
            status="READY" if blocked_by is None else "BLOCKED",
            blocked_by=blocked_by,
            enqueued_at=tx.now,
        )
        if old.expires_at is not None and old.expires_at > old.enqueued_at:
            new.expires_at = tx.now + (old.expires_at - old.enqueued_at)
        new.save(using=using, force_insert=True)
        if new.fair_key is not None:
            line_up(tx, [new.pk])
        return Run.objects.using(using).get(pk=new.pk)


def pause(
    using: str, name: str, *, reason: str, by: str, until: datetime | None = None, seconds: float | None = None
) -> None:
    """Have nothing claimed from the queue, until then, for so long, or until it is resumed."""
    with callers_transaction(using) as tx:
        tx.change(_PAUSE, name=name, reason=reason, by=by, until=_at(tx, until, seconds))


def resume(using: str, name: str) -> bool:
    """Have the queue claimed from again; return whether it was paused until now."""
    with callers_transaction(using) as tx:
        paused = tx.rows(
            f"SELECT paused_until IS NULL OR paused_until > %(now)s FROM {PAUSED} WHERE name = %(name)s",
            name=name,
        )
        tx.change(f"DELETE FROM {PAUSED} WHERE name = %(name)s", name=name)
    return paused == [(1,)]


def finish(using: str, token: tuple[int, int], lease: bytes, result: str | None) -> bool:
    """See ``atomic.finish()``."""
    run_id, epoch = token
    with callers_transaction(using) as tx:
        return tx.change(_FINISH, id=run_id, epoch=epoch, lease=UUID(bytes=lease).hex, result=result) == 1


def _duplicate(using: str, new: NewRun) -> Recorded:
    """Return the run that is there in the place of this one."""
    from django_dispatch.models import Run

    runs = Run.objects.using(using)
    run = runs.filter(uuid=new.uuid).first() if new.uuid is not None else None
    run = run or runs.get(unique_key=new.unique_key)
    run.is_duplicate = True
    return Recorded(run.pk, run.enqueued_at, run.status, run.run_after, run.turn, run)


def _is_known(tx: Transaction, uuid: str) -> bool:
    return bool(tx.rows(f"SELECT 1 FROM {RUN} WHERE uuid = %(uuid)s", uuid=uuid))


@overload
def _as_read(value: datetime) -> datetime: ...
@overload
def _as_read(value: datetime | None) -> datetime | None: ...
def _as_read(value: datetime | None) -> datetime | None:
    """Return a moment as Django reads it from the row."""
    return value if settings.USE_TZ or value is None else value.replace(tzinfo=None)


def _at(tx: Transaction, at: datetime | None, seconds: float | None) -> str | None:
    if at is not None:
        return stamp(at)
    return None if seconds is None else tx.at(seconds)
