"""The SQL by which callers write runs: enqueue, cancel, rerun; in the caller's process, connection and transaction.

Timestamps are ``clock_timestamp()``: ``now()`` is when the caller's transaction began, which may be long ago.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import nullcontext
from datetime import datetime
from functools import cache, lru_cache
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.db import DatabaseError, connections, transaction

from .postgres_bulk import copy_many
from .values import Alike, CancelledRun, NewRun, Recorded

if TYPE_CHECKING:
    from django_dispatch.models import Run

OPTIONS = (
    *("queue", "priority", "run_after", "delay_seconds", "max_attempts", "timeout_seconds", "on_lost"),
    *("uuid", "unique_key", "unique_seconds", "on_duplicate"),
    *("concurrency_key", "concurrency_limit", "rate_amount", "rate_seconds", "is_limited"),
    *("expires_at", "expires_seconds", "schedule_id", "fair_key"),
)
CHUNK_RUNS = 1000
# A jsonb document holds at most 256 MB; long before that, a statement this large is no faster than two.
CHUNK_CHARACTERS = 8_000_000

# Only the columns that are not as the database has them by default: less to say, less to parse.
COLUMNS = {
    "task": "%s",
    "queue": "%s",
    "priority": "%s",
    "args": "%s::jsonb",
    "kwargs": "%s::jsonb",
    "max_attempts": "%s",
    "timeout": "make_interval(secs => %s)",
    "on_lost": "%s",
    "meta": "%s::jsonb",
    "retention": "%s::jsonb",
    "fair_key": "%s",
    "on_duplicate": "%s",
    "concurrency_key": "%s",
    "concurrency_limit": "%s",
    "rate_amount": "%s",
    "rate_seconds": "%s",
    "status": "%s",
}
DEFAULTS = {"queue": "default", "priority": 0, "kwargs": "{}", "on_lost": "", "meta": "{}"}


@cache
def enqueue_statement(columns: tuple[str, ...]) -> str:
    """Return the INSERT of one run that is due and names these columns: READY, or BLOCKED if it has a key."""
    return (
        f"INSERT INTO django_dispatch_run ({', '.join(columns)}, source)"
        f" VALUES ({', '.join(COLUMNS[column] for column in columns)}, 'app')"
        " RETURNING id, enqueued_at, status, run_after, turn"
    )


# The wakeup rides in the same commit, which saves a round trip, through the gate that the table's trigger uses too:
# the lock that a notifying commit takes over the whole instance is wanted by one transaction of ours at a time.
WAKE = """,
  CASE WHEN pg_try_advisory_xact_lock(hashtext('django_dispatch'), hashtext(current_schema()))
  THEN pg_notify(%s, %s)::text IS NOT NULL ELSE false END
"""
WAKE_IF_AWAITED = WAKE.replace("CASE", "CASE WHEN NOT django_dispatch_is_awaited(%s::text) THEN true")
TOO_MANY_NOTIFICATIONS = "54000"

# The clock is read once, so that status and run_after agree, and every run of a chunk is due at the same moment.
# The runs are sorted before the ids are drawn: ids, and therefore starts, come in the order of the document. One row
# comes back, of arrays in that order. Triggers make a run with a key BLOCKED that is due, and give one with a fair key
# its turn.
ENQUEUE_MANY = """
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
new AS (
  SELECT r.*, clock.now, CASE WHEN d.due > clock.now THEN d.due END AS later
  FROM clock, ROWS FROM (jsonb_to_recordset(%s::jsonb) AS (
    task text, queue text, priority smallint, args jsonb, kwargs jsonb, run_after timestamptz,
    delay_seconds double precision, max_attempts smallint, timeout_seconds double precision, on_lost text, meta jsonb,
    uuid text, unique_key text, unique_seconds double precision, on_duplicate text, concurrency_key text,
    concurrency_limit int, rate_amount int, rate_seconds double precision, is_limited boolean,
    expires_at timestamptz, expires_seconds double precision, schedule_id bigint, retention jsonb,
    fair_key text
  )) WITH ORDINALITY AS r (
    task, queue, priority, args, kwargs, run_after, delay_seconds, max_attempts, timeout_seconds, on_lost, meta,
    uuid, unique_key, unique_seconds, on_duplicate, concurrency_key, concurrency_limit, rate_amount, rate_seconds,
    is_limited, expires_at, expires_seconds, schedule_id, retention, fair_key, place
  ), LATERAL (SELECT COALESCE(r.run_after, clock.now + make_interval(secs => r.delay_seconds)) AS due) d
), recorded AS (
  INSERT INTO django_dispatch_run (
    task, queue, priority, args, kwargs, max_attempts, timeout, on_lost, meta, source, enqueued_at, status, run_after,
    uuid, unique_key, unique_until, on_duplicate, concurrency_key, concurrency_limit, rate_amount, rate_seconds,
    expires_at, schedule_id, retention, fair_key)
  SELECT task, queue, priority, args, COALESCE(kwargs, '{}'), max_attempts, make_interval(secs => timeout_seconds),
    on_lost, COALESCE(meta, '{}'), CASE WHEN schedule_id IS NULL THEN 'app' ELSE 'schedule' END, now,
    CASE WHEN later IS NOT NULL THEN 'SCHEDULED' WHEN is_limited THEN 'BLOCKED' ELSE 'READY' END, later,
    uuid, unique_key, now + make_interval(secs => unique_seconds), COALESCE(on_duplicate, ''),
    concurrency_key, concurrency_limit, rate_amount, rate_seconds,
    COALESCE(expires_at, now + make_interval(secs => expires_seconds)), schedule_id, retention, fair_key
  FROM new ORDER BY place
  RETURNING id, status, run_after, turn, unique_key, uuid
)
SELECT now, array_agg(id ORDER BY id), array_agg(status ORDER BY id), array_agg(run_after ORDER BY id),
  array_agg(turn ORDER BY id), array_agg(unique_key ORDER BY id), array_agg(uuid ORDER BY id)
FROM recorded, clock GROUP BY now
"""
# Locked first, by id: a claim or finish that is under way is waited for and its result seen, and two cancels of the
# same runs cannot deadlock. A run that waits ends here; one that runs is only marked, its body has yet to end.
CANCEL = """
WITH target AS MATERIALIZED (
  SELECT id, status, lease_id FROM django_dispatch_run
  WHERE id = ANY(%(ids)s::bigint[]) ORDER BY id FOR NO KEY UPDATE
), cancelled AS (
  UPDATE django_dispatch_run r
  SET status = 'CANCELLED', finished_at = clock_timestamp(), run_after = NULL, unique_key = NULL
  FROM target t WHERE r.id = t.id AND t.status IN ('SCHEDULED', 'READY', 'BLOCKED')
  RETURNING r.id, CASE WHEN r.places > 0 THEN r.concurrency_key END AS freed_key,
    CASE WHEN r.places = 2 THEN r.queue END AS freed_queue
), requested AS (
  UPDATE django_dispatch_run r
  SET cancel_requested_at = COALESCE(r.cancel_requested_at, clock_timestamp())
  FROM target t WHERE r.id = t.id AND t.status = 'RUNNING'
  RETURNING r.id, r.lease_id
)
SELECT id, 'cancelled', NULL::uuid, freed_key, freed_queue FROM cancelled
UNION ALL SELECT id, 'requested', lease_id, NULL, NULL FROM requested
UNION ALL SELECT id, 'already final', NULL, NULL, NULL FROM target WHERE status IN ('SUCCESSFUL', 'FAILED', 'CANCELLED')
"""

# It keeps to the limits of the old one, and is nobody's duplicate. It may wait for its start as long as that might.
RERUN = """
INSERT INTO django_dispatch_run (
  task, queue, priority, args, kwargs, max_attempts, timeout, on_lost, meta, retention, source, status,
  on_duplicate, concurrency_key, concurrency_limit, rate_amount, rate_seconds, fair_key, expires_at)
SELECT task, queue, priority, args, kwargs, max_attempts, timeout, on_lost, jsonb_build_object('rerun_of', id),
  retention, 'app',
  CASE WHEN queue = ANY(%s::text[]) THEN 'BLOCKED' ELSE 'READY' END,
  on_duplicate, concurrency_key, concurrency_limit, rate_amount, rate_seconds, fair_key,
  CASE WHEN expires_at > enqueued_at THEN clock_timestamp() + (expires_at - enqueued_at) END
FROM django_dispatch_run WHERE id = %s AND status IN ('SUCCESSFUL', 'FAILED', 'CANCELLED')
RETURNING *
"""


ACTIVE = """
SELECT id, queues FROM django_dispatch_lease WHERE expires_at > clock_timestamp() AND state = 'ACTIVE'
ORDER BY node, acquired_at
"""


def enqueue(using: str, new: NewRun) -> Recorded:
    """Insert one run: READY, SCHEDULED if it is due later, or BLOCKED if it has a limit to pass."""
    if new.has_moments:
        return _insert_chunk(using, document(new))[0]
    values = _values(new)
    with connections[using].cursor() as cursor:
        cursor.execute(enqueue_statement(tuple(values)), list(values.values()))
        return Recorded(*cursor.fetchone())


def enqueue_and_wake(
    using: str, new: NewRun, channel: str, payload: str, awaited: Sequence[str | None] = ()
) -> tuple[Recorded, bool]:
    """Insert one run that is due and notify in the same commit; return whether no more is to do. In autocommit only.

    ``awaited`` is a queue, or None for any: unless some dispatcher waits for its runs, nobody is notified.
    PostgreSQL refuses a commit that notifies while its queue of notifications is full: then the run goes in alone.
    """
    values = _values(new)
    wake = WAKE_IF_AWAITED if awaited else WAKE
    try:
        with connections[using].cursor() as cursor:
            cursor.execute(enqueue_statement(tuple(values)) + wake, [*values.values(), *awaited, channel, payload])
            *recorded, is_done = cursor.fetchone()
            return Recorded(*recorded), is_done
    except DatabaseError as error:
        if getattr(error.__cause__, "sqlstate", None) != TOO_MANY_NOTIFICATIONS:
            raise
        return enqueue(using, new), False


def enqueue_many(using: str, news: Iterable[NewRun]) -> Sequence[Recorded]:
    """Insert the runs, one statement a chunk, all or none; the answers and the ids are in the order of ``news``.

    More of them than a chunk that are alike, and due at once, go by COPY, which is the quickest there is.
    """
    if isinstance(news, Alike) and len(news) > CHUNK_RUNS and not news.first.has_moments:
        return copy_many(using, news, _values(news.first))
    chunks = list(chunked(news))
    with transaction.atomic(using=using) if len(chunks) > 1 else nullcontext():
        return [recorded for chunk in chunks for recorded in _insert_chunk(using, chunk)]


def active_dispatchers(using: str) -> list[tuple[UUID, list[str]]]:
    """Return the lease of each live dispatcher that claims runs, and which queues it serves."""
    with connections[using].cursor() as cursor:
        cursor.execute(ACTIVE)
        rows: list[tuple[UUID, Any]] = cursor.fetchall()
    return [(lease_id, json.loads(queues) if isinstance(queues, str) else queues) for lease_id, queues in rows]


def cancel(using: str, ids: Collection[int]) -> list[CancelledRun]:
    """End the waiting ones of these runs, ask the running ones to stop; runs that do not exist are left out."""
    with connections[using].cursor() as cursor:
        cursor.execute(CANCEL, {"ids": list(ids)})
        return [CancelledRun(*row) for row in cursor.fetchall()]


def rerun(using: str, run_id: int, *, limited_queues: Collection[str] = ()) -> "Run | None":
    """Insert a copy of a run that has ended; None if there is no such run or it has not ended."""
    from django_dispatch.models import Run

    return next(iter(Run.objects.using(using).raw(RERUN, [list(limited_queues), run_id])), None)


def _values(new: NewRun) -> dict[str, Any]:
    """The columns of a run that is due at once, but for those that are as the database has them by default."""
    values = {
        "task": new.task,
        "queue": new.queue,
        "priority": new.priority,
        "args": new.args,
        "kwargs": new.kwargs,
        "max_attempts": new.max_attempts,
        "timeout": new.timeout_seconds,
        "on_lost": new.on_lost,
        "meta": new.meta,
        "retention": new.retention,
        "fair_key": new.fair_key,
    }
    if new.blocked_by is not None:
        values |= {
            "on_duplicate": new.on_duplicate or "",
            "concurrency_key": new.concurrency_key,
            "concurrency_limit": new.concurrency_limit,
            "rate_amount": new.rate_amount,
            "rate_seconds": new.rate_seconds,
            "status": "BLOCKED",
        }
    return {column: value for column, value in values.items() if value != DEFAULTS.get(column)}


def _insert_chunk(using: str, runs: str) -> list[Recorded]:
    with connections[using].cursor() as cursor:
        cursor.execute(ENQUEUE_MANY, [f"[{runs}]"])
        now, ids, statuses, later, turns, *_ = cursor.fetchone()
    found = zip(ids, statuses, later, turns, strict=True)
    return [Recorded(run_id, now, status, run_after, turn) for run_id, status, run_after, turn in found]


def chunked(news: Iterable[NewRun]) -> Iterator[str]:
    """Return the runs as the insides of JSON lists, each of a size that one statement takes well."""
    chunk: list[str] = []
    characters = 0
    for new in news:
        text = document(new)
        if chunk and (len(chunk) == CHUNK_RUNS or characters + len(text) > CHUNK_CHARACTERS):
            yield ",".join(chunk)
            chunk, characters = [], 0
        chunk.append(text)
        characters += len(text)
    if chunk:
        yield ",".join(chunk)


def document(new: NewRun) -> str:
    """Return the run as a JSON object, with the texts that are JSON already put in as they are."""
    task, args, kwargs, *options, meta, retention = new
    beginning = _beginning(task, *options)
    rest = "" if kwargs == "{}" else f', "kwargs": {kwargs}'
    if meta != "{}":
        rest += f', "meta": {meta}'
    if retention is not None:
        rest += f', "retention": {retention}'
    return f'{beginning}, "args": {args}{rest}}}'


@lru_cache(maxsize=64)  # the runs of a bulk are alike in these
def _beginning(task: str, *options: Any) -> str:
    """The beginning of a JSON object, with what is not null of the task and the options, in the order of NewRun."""
    values = zip(("task", *OPTIONS), (task, *options), strict=True)
    return json.dumps({name: value for name, value in values if value is not None}, default=datetime.isoformat)[:-1]
