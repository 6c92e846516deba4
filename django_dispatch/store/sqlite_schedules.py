"""Schedules on SQLite: which are due, and their occurrences enqueued once. On a session of the dispatcher's.

Two triggers of the table see to what others do there: a changed rule gets a new revision. ``postgres_schedules`` says
what each statement is for.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from .schedule_rows import DECLARED_SECONDS, UNREADABLE, Declaration, DueSchedule, Fired, Firing, ScheduleState
from .sqlite_callers import give_way
from .sqlite_claims import RUN
from .sqlite_session import Row, Session, Transaction, interval, list_of, moment, seconds_ago, stamp
from .sqlite_turns import line_up

SCHEDULE = "django_dispatch_schedule"
LATE_SECONDS = 60.0
KEPT_SECONDS = 10.0

_IS_IN_CODE = "(source <> 'code' OR declared_at > %(declared_after)s)"
_MAY_BE_DUE = f"enabled AND task IN (SELECT value FROM json_each(%(tasks)s)) AND {_IS_IN_CODE}"
# Texts: Django's converters would refuse a moment that Python has not.
_DUE = f"""
SELECT id, name, task, revision, planned_revision = revision, CAST(next_at AS text), CAST(last_at AS text), cron, every,
  CAST(once_at AS text), time_zone, CAST(start_at AS text), CAST(end_at AS text), catch_up, catch_up_window, overlap,
  args, kwargs, CASE WHEN json_type(args) = 'array' AND json_type(kwargs) = 'object' THEN ''
  ELSE 'args must be a JSON array, and kwargs a JSON object.' END
FROM {SCHEDULE}
WHERE {_MAY_BE_DUE} AND (planned_revision <> revision OR next_at <= %(now)s)
ORDER BY next_at NULLS FIRST, id LIMIT %(limit)s
"""
_NEXT = f"""
SELECT CAST(min(next_at) AS text) FROM {SCHEDULE}
WHERE {_MAY_BE_DUE} AND planned_revision = revision AND next_at > %(now)s
"""
_SEEN = f"""
SELECT name, task, args, kwargs, coalesce(queue, %(task_queue)s), coalesce(priority, %(task_priority)s), overlap
FROM {SCHEDULE}
WHERE id = %(id)s AND revision = %(revision)s AND enabled AND CAST(next_at AS text) IS %(token)s
"""
_MOVE = f"""
UPDATE {SCHEDULE}
SET next_at = %(next_at)s, planned_revision = %(revision)s, problem = %(problem)s, last_at = coalesce(%(last)s, last_at)
WHERE id = %(id)s
"""
_DECLARED = (
    *("task", "args", "kwargs", "queue", "priority", "cron", "every", "once_at", "time_zone", "start_at", "end_at"),
    *("catch_up", "catch_up_window", "overlap", "declared_at"),
)
_IS_UNKNOWN = f"""enabled AND task NOT IN (SELECT value FROM json_each(%(tasks)s)) AND problem = '' AND {_IS_IN_CODE}
  AND (planned_revision <> revision OR next_at < %(late)s)"""
_STATES = f"""
SELECT name, enabled, source = 'code' AND declared_at <= %(declared_after)s, CAST(next_at AS text),
  CAST(last_at AS text), problem
FROM {SCHEDULE} ORDER BY problem = '', next_at NULLS LAST, name LIMIT %(limit)s
"""


def due(session: Session, tasks: Sequence[str], limit: int) -> tuple[Sequence[DueSchedule], float | None]:
    """See Store.due_schedules()."""
    params = {"tasks": list_of(tasks), "declared_after": seconds_ago(DECLARED_SECONDS)}
    found = session.rows(f"SELECT %(now)s, due.* FROM (SELECT 1) LEFT JOIN ({_DUE}) AS due", limit=limit, **params)
    now = moment(found[0][0])
    assert now is not None
    ((following,),) = session.rows(_NEXT, **params)
    next_at = _moment_or_none(following)
    seconds = None if next_at is None else max(0.0, (next_at - now).total_seconds())
    return [_due(now, row[1:]) for row in found if row[1] is not None], seconds


def fire(session: Session, firings: Sequence[Firing], limited_queues: Sequence[str]) -> Sequence[Fired]:
    """See Store.fire(). Nobody can be enqueuing a run of the same key meanwhile."""
    with session.transaction() as tx:
        return [fired for firing in firings if (fired := _fire(tx, firing, limited_queues))]


def declare(session: Session, declarations: Sequence[Declaration]) -> Mapping[str, str]:
    """See Store.declare()."""
    answers = {}
    with session.transaction() as tx:
        sources: dict[str, str] = dict(tx.rows(f"SELECT name, source FROM {SCHEDULE}"))
        for one in declarations:
            is_ours = sources.get(one.name, "code") == "code"
            answers[one.name] = "recorded" if is_ours else "taken"
            if is_ours:
                _record(tx, one, is_new=one.name not in sources)
    return answers


def keep_declared(session: Session, names: Sequence[str]) -> None:
    """See Store.keep_declared()."""
    which = (
        f"FROM {SCHEDULE} WHERE source = 'code' AND declared_at < %(before)s"
        " AND name IN (SELECT value FROM json_each(%(names)s))"
    )
    params = {"names": list_of(names), "before": seconds_ago(KEPT_SECONDS)}
    if session.rows(f"SELECT 1 {which} LIMIT 1", **params):
        with session.transaction() as tx:
            tx.change(f"UPDATE {SCHEDULE} SET declared_at = %(now)s WHERE id IN (SELECT id {which})", **params)


def flag_unknown(session: Session, tasks: Sequence[str], problem: str) -> Sequence[tuple[str, str]]:
    """See Store.flag_unknown()."""
    params = {
        "tasks": list_of(tasks),
        "late": seconds_ago(LATE_SECONDS),
        "declared_after": seconds_ago(DECLARED_SECONDS),
    }
    if not session.rows(f"SELECT 1 FROM {SCHEDULE} WHERE {_IS_UNKNOWN} LIMIT 1", **params):
        return []
    flag = f"UPDATE {SCHEDULE} SET problem = %(problem)s WHERE {_IS_UNKNOWN} RETURNING name, task"
    with session.transaction() as tx:
        return [(name, task) for name, task in tx.rows(flag, problem=problem, **params)]


def states(session: Session, limit: int) -> Sequence[ScheduleState]:
    """See Store.schedule_states()."""
    found = session.rows(_STATES, limit=limit, declared_after=seconds_ago(DECLARED_SECONDS))
    return [
        ScheduleState(name, bool(enabled), bool(is_retired), _shown(next_at), _shown(last_at), problem)
        for name, enabled, is_retired, next_at, last_at, problem in found
    ]


def _fire(tx: Transaction, firing: Firing, limited_queues: Sequence[str]) -> Fired | None:
    """Enqueue the occurrences of one schedule and move it on; None: it is not any more as it was seen."""
    seen = tx.rows(
        _SEEN,
        id=firing.id,
        revision=firing.revision,
        token=firing.token,
        task_queue=firing.task_queue,
        task_priority=firing.task_priority,
    )
    if not seen or not _has_the_arguments(firing, seen[0]):
        return None
    slots = sorted(map(stamp, firing.slots))
    next_at = None if firing.next_at is None else stamp(firing.next_at)
    tx.change(
        _MOVE,
        id=firing.id,
        next_at=next_at,
        revision=firing.revision,
        problem=firing.problem,
        last=slots[-1] if slots else None,
    )
    *_, queue, _, overlap = seen[0]
    key = firing.concurrency_key or (f"queue:{queue}" if queue in limited_queues else None)
    run_ids: list[int] = []
    for slot in _wanted(tx, firing.id, overlap, slots):
        if firing.unique_key is not None and not run_ids:  # the first one takes the place of another one, at most
            give_way(tx, firing.unique_key)
        run_id = tx.insert(RUN, _occurrence(tx, firing, seen[0], slot, key))
        run_ids += [] if run_id is None else [run_id]
    if firing.fair_key is not None:
        line_up(tx, run_ids)
    return Fired(firing.id, queue if run_ids else None, key if run_ids else None, run_ids)


def _occurrence(tx: Transaction, firing: Firing, seen: Row, slot: str, key: str | None) -> dict[str, Any]:
    """The row of the run for one slot; ``key``: at which limit it has to wait first."""
    name, task, args, kwargs, queue, priority, _ = seen
    return {
        **{"task": task, "args": args, "kwargs": kwargs, "queue": queue, "priority": priority},
        **{"on_lost": firing.on_lost, "source": "schedule", "schedule_id": firing.id, "scheduled_for": slot},
        **{"meta": json.dumps({"schedule": name}), "retention": firing.retention, "enqueued_at": tx.at(0)},
        **{"status": "READY" if key is None else "BLOCKED", "blocked_by": key},
        "expires_at": None if firing.expires_seconds is None else tx.at(firing.expires_seconds),
        "unique_key": firing.unique_key,
        "unique_until": None if firing.unique_seconds is None else tx.at(firing.unique_seconds),
        "on_duplicate": firing.on_duplicate or "",
        **{"concurrency_key": firing.concurrency_key, "concurrency_limit": firing.concurrency_limit},
        **{"rate_amount": firing.rate_amount, "rate_seconds": firing.rate_seconds, "fair_key": firing.fair_key},
    }


def _has_the_arguments(firing: Firing, seen: Row) -> bool:
    """Whether the keys were made of the arguments that the schedule has."""
    if firing.seen_args is None or firing.seen_kwargs is None:
        return True
    _, _, args, kwargs, *_ = seen
    return (json.loads(args), json.loads(kwargs)) == (json.loads(firing.seen_args), json.loads(firing.seen_kwargs))


def _wanted(tx: Transaction, schedule_id: int, overlap: str, slots: Sequence[str]) -> list[str]:
    """Return the occurrences that are not there already; none, if they are to be skipped beside another one."""
    if overlap == "skip" and tx.rows(
        f"SELECT 1 FROM {RUN} WHERE schedule_id = %(id)s AND finished_at IS NULL LIMIT 1", id=schedule_id
    ):
        return []
    there = tx.rows(
        f"SELECT CAST(scheduled_for AS text) FROM {RUN} WHERE schedule_id = %(id)s"
        " AND CAST(scheduled_for AS text) IN (SELECT value FROM json_each(%(slots)s))",
        id=schedule_id,
        slots=list_of(slots),
    )
    known = {slot for (slot,) in there}
    return [slot for slot in slots if slot not in known]


def _record(tx: Transaction, one: Declaration, *, is_new: bool) -> None:
    """Write a schedule of the code. What an operator has switched off stays off."""
    row = one._asdict() | {
        "every": interval(one.every_seconds),
        "once_at": None,
        "start_at": None if one.start_at is None else stamp(datetime.fromisoformat(one.start_at)),
        "end_at": None if one.end_at is None else stamp(datetime.fromisoformat(one.end_at)),
        "time_zone": one.time_zone,
        "catch_up_window": interval(one.catch_up_window_seconds),
        "declared_at": tx.at(0),
    }
    columns = {name: row[name] for name in _DECLARED}
    if is_new:
        tx.insert(SCHEDULE, {"name": one.name, "source": "code", **columns})
    else:
        changes = ", ".join(f"{name} = %({name})s" for name in columns)
        tx.change(f"UPDATE {SCHEDULE} SET {changes} WHERE name = %(name)s", name=one.name, **columns)


def _due(now: datetime, row: Sequence[Any]) -> DueSchedule:
    """Read a row; what Python has no moment or interval for is a flaw."""
    fields = [name for name in DueSchedule._fields[1:] if name != "token"]
    names = dict(zip(fields, row, strict=True))
    names |= {"token": names["next_at"], "is_planned": bool(names["is_planned"])}
    try:
        for name in ("next_at", "last_at", "once_at", "start_at", "end_at"):
            names[name] = moment(names[name])
        for name in ("every", "catch_up_window"):
            names[name] = None if names[name] is None else timedelta(microseconds=names[name])
    except (OverflowError, ValueError, TypeError):
        names |= dict.fromkeys(("next_at", "last_at", "once_at", "start_at", "end_at", "every"))
        names |= {"catch_up_window": timedelta(0), "flaw": UNREADABLE}
    return DueSchedule(now, **names)


def _moment_or_none(stored: str | None) -> datetime | None:
    try:
        return moment(stored)
    except ValueError:
        return None


def _shown(stored: str | None) -> str | None:
    return None if stored is None else f"{stored[:19]}+00"
