"""The SQL of schedules: which are due, and their occurrences enqueued once. On a session of the dispatcher's.

No leader: any dispatcher looks, works out the next time, and offers both. The statement that enqueues an occurrence
moves ``next_at`` on, and does neither where ``next_at`` or the rule is not any more as it was when it was looked at.
Moments are read as seconds, for a row may hold one that Python has not. Locks are not waited for.
"""

import json
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from .postgres_unique import GIVES_WAY, GIVING_WAY
from .schedule_rows import DECLARED_SECONDS, UNREADABLE, Declaration, DueSchedule, Fired, Firing, ScheduleState
from .session import Session
from .statements import RUN

UNCOMMITTED_MILLISECONDS = 20
SCHEDULE = "django_dispatch_schedule"

IS_DUE_EVER = f"""s.enabled AND s.task = ANY(%(tasks)s::text[])
    AND (s.source <> 'code' OR s.declared_at > clock.now - interval '{DECLARED_SECONDS} seconds')"""

# There are few schedules, and the times of one change all the time: an index would cost more than it saves.
DUE = f"""
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now)
SELECT extract(epoch FROM clock.now)::float8, extract(epoch FROM (
    SELECT min(s.next_at) FROM {SCHEDULE} AS s
    WHERE {IS_DUE_EVER} AND s.planned_revision = s.revision AND s.next_at > clock.now AND isfinite(s.next_at)
  ) - clock.now)::float8, due.*
FROM clock LEFT JOIN LATERAL (
  SELECT s.id, s.name, s.task, s.revision, s.planned_revision = s.revision, s.next_at::text,
    extract(epoch FROM s.next_at)::float8, extract(epoch FROM s.last_at)::float8,
    s.cron, extract(epoch FROM s.every)::float8, extract(epoch FROM s.once_at)::float8, s.time_zone,
    extract(epoch FROM s.start_at)::float8, extract(epoch FROM s.end_at)::float8,
    s.catch_up, extract(epoch FROM s.catch_up_window)::float8, s.overlap, s.args::text, s.kwargs::text,
    CASE WHEN jsonb_typeof(s.args) = 'array' AND jsonb_typeof(s.kwargs) = 'object' THEN ''
    ELSE 'args must be a JSON array, and kwargs a JSON object.' END
  FROM {SCHEDULE} AS s
  WHERE {IS_DUE_EVER} AND (s.planned_revision <> s.revision OR s.next_at <= clock.now)
  ORDER BY s.next_at NULLS FIRST, s.id LIMIT %(limit)s
) AS due ON true
"""

# The schedule's row is locked first, and looked at again once it is: who comes second finds a later next_at. An
# occurrence that was enqueued, if next_at was put back by hand, is not enqueued again while its run is there.
#
# Keys were made of the arguments as they were seen, so these must be the same still. Where another run has the unique
# key, the occurrence is let go, and the schedule moves on; unless that run gives way, which is decided under the same
# lock, before the insert. One that is not committed yet would be waited for: not for long, all else waits meanwhile.
FIRE = f"""
WITH free AS MATERIALIZED (
  SELECT f.*, s.name, s.task, s.args, s.kwargs, coalesce(s.queue, f.task_queue) AS queue,
    coalesce(s.priority, f.task_priority) AS priority, s.overlap
  FROM jsonb_to_recordset(%(firings)s::jsonb) AS f(
    id bigint, revision int, token text, next_at timestamptz, slots timestamptz[], problem text, task_queue text,
    task_priority smallint, on_lost text, expires_seconds float8, retention text, seen_args text, seen_kwargs text,
    unique_key text, unique_seconds float8, on_duplicate text, concurrency_key text, concurrency_limit int,
    rate_amount int, rate_seconds float8, fair_key text)
  JOIN {SCHEDULE} AS s ON s.id = f.id AND s.revision = f.revision AND s.enabled
    AND s.next_at IS NOT DISTINCT FROM f.token::timestamptz
    AND (f.seen_args IS NULL OR (s.args, s.kwargs) = (f.seen_args::jsonb, f.seen_kwargs::jsonb))
  FOR NO KEY UPDATE OF s SKIP LOCKED
), moved AS (
  UPDATE {SCHEDULE} AS s
  SET next_at = free.next_at, planned_revision = free.revision, problem = free.problem,
      last_at = coalesce((SELECT max(slot) FROM unnest(free.slots) AS slot), s.last_at)
  FROM free WHERE s.id = free.id
  RETURNING s.id
), wanted AS MATERIALIZED (
  SELECT free.*, slot, clock_timestamp() AS now
  FROM free JOIN moved USING (id) CROSS JOIN unnest(free.slots) AS slot
  WHERE (free.overlap <> 'skip' OR NOT EXISTS (
      SELECT FROM {RUN} AS r WHERE r.schedule_id = free.id AND r.schedule_id IS NOT NULL AND r.finished_at IS NULL))
    AND NOT EXISTS (
      SELECT FROM {RUN} AS r WHERE r.schedule_id = free.id AND r.schedule_id IS NOT NULL AND r.scheduled_for = slot)
), target AS MATERIALIZED (
  SELECT id FROM {RUN}
  WHERE unique_key = ANY(ARRAY(SELECT unique_key FROM wanted WHERE unique_key IS NOT NULL)) AND {GIVES_WAY}
  FOR NO KEY UPDATE SKIP LOCKED
), gone AS ({GIVING_WAY}), before AS MATERIALIZED (
  SELECT count(*), set_config('lock_timeout', '{UNCOMMITTED_MILLISECONDS}', true) FROM gone
), enqueued AS (
  INSERT INTO {RUN} (
    task, args, kwargs, queue, priority, on_lost, source, schedule_id, scheduled_for, meta, status, expires_at,
    retention, unique_key, unique_until, on_duplicate, concurrency_key, concurrency_limit, rate_amount, rate_seconds,
    fair_key)
  SELECT task, args, kwargs, queue, priority, on_lost, 'schedule', id, slot, jsonb_build_object('schedule', name),
    CASE WHEN queue = ANY(%(limited_queues)s::text[]) THEN 'BLOCKED' ELSE 'READY' END,
    now + make_interval(secs => expires_seconds), retention::jsonb, unique_key,
    now + make_interval(secs => unique_seconds),
    coalesce(on_duplicate, ''), concurrency_key, concurrency_limit, rate_amount, rate_seconds, fair_key
  FROM wanted CROSS JOIN before ORDER BY slot, id
  ON CONFLICT DO NOTHING
  RETURNING id, queue, schedule_id, blocked_by
)
SELECT moved.id, enqueued.id, enqueued.queue, enqueued.blocked_by
FROM moved LEFT JOIN enqueued ON enqueued.schedule_id = moved.id
"""

_DECLARED = """jsonb_to_recordset(%(declarations)s::jsonb) AS d(
    name text, task text, args jsonb, kwargs jsonb, queue text, priority smallint, cron text, every_seconds float8,
    time_zone text, start_at timestamptz, end_at timestamptz, catch_up text, catch_up_window_seconds float8,
    overlap text)"""

# What an operator has switched off stays off. A schedule of that name that was made by hand stays as it is.
DECLARE = f"""
WITH declared AS MATERIALIZED (SELECT * FROM {_DECLARED}),
free AS MATERIALIZED (
  SELECT s.id, s.name FROM {SCHEDULE} AS s JOIN declared USING (name) WHERE s.source = 'code'
  FOR NO KEY UPDATE OF s SKIP LOCKED
), updated AS (
  UPDATE {SCHEDULE} AS s
  SET task = d.task, args = d.args, kwargs = d.kwargs, queue = d.queue, priority = d.priority, cron = d.cron,
      every = make_interval(secs => d.every_seconds), once_at = NULL, time_zone = d.time_zone, start_at = d.start_at,
      end_at = d.end_at, catch_up = d.catch_up, catch_up_window = make_interval(secs => d.catch_up_window_seconds),
      overlap = d.overlap, declared_at = clock_timestamp()
  FROM declared AS d JOIN free USING (name) WHERE s.id = free.id
  RETURNING s.name
), inserted AS (
  INSERT INTO {SCHEDULE} (
    name, task, args, kwargs, queue, priority, cron, every, time_zone, start_at, end_at, catch_up, catch_up_window,
    overlap, source, declared_at)
  SELECT name, task, args, kwargs, queue, priority, cron, make_interval(secs => every_seconds), time_zone, start_at,
    end_at, catch_up, make_interval(secs => catch_up_window_seconds), overlap, 'code', clock_timestamp()
  FROM declared WHERE NOT EXISTS (SELECT FROM {SCHEDULE} AS s WHERE s.name = declared.name)
  ORDER BY name ON CONFLICT (name) DO NOTHING
  RETURNING name
)
SELECT name, 'recorded' FROM updated UNION ALL SELECT name, 'recorded' FROM inserted
UNION ALL SELECT s.name, 'taken' FROM {SCHEDULE} AS s JOIN declared USING (name) WHERE s.source <> 'code'
"""

KEEP_DECLARED = f"""
WITH free AS MATERIALIZED (
  SELECT id FROM {SCHEDULE}
  WHERE name = ANY(%(names)s::text[]) AND source = 'code' AND declared_at < clock_timestamp() - interval '10 seconds'
  FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE {SCHEDULE} AS s SET declared_at = clock_timestamp() FROM free WHERE s.id = free.id
"""

# Whoever knows the task enqueues it in time: what is a minute late is known by nobody who looks.
FLAG_UNKNOWN = f"""
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
free AS MATERIALIZED (
  SELECT s.id FROM {SCHEDULE} AS s, clock
  WHERE s.enabled AND s.task <> ALL(%(tasks)s::text[]) AND s.problem = ''
    AND (s.source <> 'code' OR s.declared_at > clock.now - interval '{DECLARED_SECONDS} seconds')
    AND (s.planned_revision <> s.revision OR s.next_at < clock.now - interval '1 minute')
  FOR NO KEY UPDATE OF s SKIP LOCKED
)
UPDATE {SCHEDULE} AS s SET problem = %(problem)s FROM free WHERE s.id = free.id RETURNING s.name, s.task
"""

STATES = f"""
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now)
SELECT s.name, s.enabled, s.source = 'code' AND s.declared_at <= clock.now - interval '{DECLARED_SECONDS} seconds',
  CASE WHEN isfinite(s.next_at) THEN date_trunc('second', s.next_at)::text END,
  CASE WHEN isfinite(s.last_at) THEN date_trunc('second', s.last_at)::text END, s.problem
FROM {SCHEDULE} AS s, clock ORDER BY s.problem = '', s.next_at NULLS LAST, s.name LIMIT %(limit)s
"""


def due(session: Session, tasks: Sequence[str], limit: int) -> tuple[Sequence[DueSchedule], float | None]:
    """See Store.due_schedules()."""
    rows = session.execute(DUE, {"tasks": list(tasks), "limit": limit}).fetchall()
    return [_due(row[0], row[2:]) for row in rows if row[2] is not None], rows[0][1]


def fire(session: Session, firings: Sequence[Firing], limited_queues: Sequence[str]) -> Sequence[Fired]:
    """See Store.fire()."""
    document = json.dumps([firing._asdict() for firing in firings], default=datetime.isoformat)
    found: dict[int, Fired] = {}
    params = {"firings": document, "limited_queues": list(limited_queues)}
    for schedule_id, run_id, queue, blocked_by in session.execute(FIRE, params):
        fired = found.setdefault(schedule_id, Fired(schedule_id, queue, blocked_by, []))
        if run_id is not None:
            fired.run_ids.append(run_id)
    return list(found.values())


def declare(session: Session, declarations: Sequence[Declaration]) -> dict[str, str]:
    """See Store.declare()."""
    items = [one._asdict() | {"args": json.loads(one.args), "kwargs": json.loads(one.kwargs)} for one in declarations]
    return dict(session.execute(DECLARE, {"declarations": json.dumps(items, ensure_ascii=False)}).fetchall())


def keep_declared(session: Session, names: Sequence[str]) -> None:
    """See Store.keep_declared()."""
    session.execute(KEEP_DECLARED, {"names": list(names)})


def flag_unknown(session: Session, tasks: Sequence[str], problem: str) -> Sequence[tuple[str, str]]:
    """See Store.flag_unknown()."""
    rows = session.execute(FLAG_UNKNOWN, {"tasks": list(tasks), "problem": problem}).fetchall()
    return [(name, task) for name, task in rows]


def states(session: Session, limit: int) -> Sequence[ScheduleState]:
    """See Store.schedule_states()."""
    return [ScheduleState(*row) for row in session.execute(STATES, {"limit": limit})]


def _due(now: float, row: Sequence[Any]) -> DueSchedule:
    """Read a row; what Python has no moment or interval for is a flaw."""
    names = dict(zip(DueSchedule._fields[1:], row, strict=True))
    try:
        for name in ("next_at", "last_at", "once_at", "start_at", "end_at"):
            names[name] = None if names[name] is None else moment(names[name])
        for name in ("every", "catch_up_window"):
            names[name] = None if names[name] is None else timedelta(seconds=names[name])
    except (OverflowError, ValueError, OSError):
        names |= dict.fromkeys(("next_at", "last_at", "once_at", "start_at", "end_at", "every"))
        names |= {"catch_up_window": timedelta(0), "flaw": UNREADABLE}
    return DueSchedule(moment(now), **names)


def moment(seconds: float) -> datetime:
    """Return the moment so many seconds after 1970, to the microsecond."""
    return datetime.fromtimestamp(0, UTC) + timedelta(microseconds=round(seconds * 1e6))
