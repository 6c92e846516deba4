"""The dispatcher's SQL: one named statement a verb, for PostgreSQL 14 and later.

Three rules hold throughout. Rows are picked in a MATERIALIZED common table expression under ``FOR … SKIP LOCKED`` and
updated by joining it: a sub-select with LIMIT under IN may be run more than once. Status words are literals, so that
a partial index can be used by a prepared statement. Time is ``clock_timestamp()``: ``now()`` is when the transaction
began.
"""

RUN = "django_dispatch_run"
LEASE = "django_dispatch_lease"
WAITER = "django_dispatch_waiter"

# Read once a statement, whatever the number of queues. In no join: the queues stay in their order.
PAUSED = """ARRAY(SELECT name FROM django_dispatch_pausedqueue
                WHERE paused_until IS NULL OR paused_until > clock_timestamp())"""

# The order in which the READY runs of a queue are claimed, and those at a limit admitted, as the indexes have it. Turns
# are counted in halves of ids, so that there is room between two; a run without a fair key stands at its own id.
PLACE = "COALESCE(turn, id * 2)"
IN_LINE = f"ORDER BY priority DESC, {PLACE}"

# The wakeup tells the dispatchers of the same host whom to look after.
ACQUIRE = f"""
WITH acquired AS (
  INSERT INTO {LEASE} (id, node, host, pid, process, queues, slots, version, acquired_at, renewed_at, expires_at)
  SELECT %(id)s, %(node)s, %(host)s, %(pid)s, %(process)s, %(queues)s, %(slots)s, %(version)s, t, t,
         t + %(ttl)s * interval '1 second'
  FROM clock_timestamp() AS t
  RETURNING host
)
SELECT pg_notify('django_dispatch', 'lease:' || host) FROM acquired
"""

RENEW = f"""
UPDATE {LEASE}
SET expires_at = clock_timestamp() + %(ttl)s * interval '1 second', renewed_at = clock_timestamp(), state = %(state)s,
  slots = coalesce(%(slots)s::int, slots)
WHERE id = %(id)s AND expires_at > clock_timestamp()
"""

SURRENDER = f"""
WITH surrendered AS (
  DELETE FROM {LEASE} WHERE id = %(id)s AND NOT EXISTS (SELECT FROM {RUN} WHERE lease_id = %(id)s) RETURNING id
), forgotten AS (
  DELETE FROM {WAITER} USING surrendered WHERE lease_id = surrendered.id
)
SELECT id FROM surrendered
"""

# The wait for wakeups: the word is committed before the mark is drawn, see IS_AWAITED in the migrations.
SAY_WAITING = f"""
INSERT INTO {WAITER} AS w (lease_id, queues, is_waiting)
SELECT l.id, %(queues)s, %(is_waiting)s FROM {LEASE} AS l WHERE l.id = %(id)s AND l.expires_at > clock_timestamp()
ON CONFLICT (lease_id) DO UPDATE SET queues = excluded.queues, is_waiting = excluded.is_waiting
"""

# Not the upper bound of a snapshot: that is one more than the newest number whose transaction has *ended*, and leaves
# out those that have begun to write since. A number of our own is newer than all of them.
MARK = "SELECT pg_current_xact_id()::text::bigint"

HAS_PASSED = "SELECT pg_snapshot_xmin(pg_current_snapshot())::text::bigint >= %(mark)s"

# Whether what was claimed is still ours: the token fits.
_OURS = "r.id = s.id AND r.epoch = s.epoch AND r.lease_id IS NOT DISTINCT FROM %(lease)s AND r.status = 'RUNNING'"

# An acknowledged cancel wins over another attempt; a body that ended with a verdict of its own wins over the cancel.
_WORD = """CASE WHEN r.cancel_requested_at IS NOT NULL AND s.status IN ('READY', 'SCHEDULED')
             THEN 'CANCELLED' ELSE s.status END"""

# What is kept of a run's errors when one more comes: the first, and as many of the newest as a row can well hold.
KEPT = """CASE WHEN jsonb_typeof(r.errors) <> 'array' THEN jsonb_build_array(r.errors)
             WHEN pg_column_size(r.errors) > 250000 THEN jsonb_build_array(r.errors -> 0, r.errors -> -1)
             WHEN jsonb_array_length(r.errors) >= 100 THEN r.errors - 1 ELSE r.errors END"""

# Whether a run may still be started: what was started once does not expire.
_IN_TIME = "(expires_at IS NULL OR attempt > 0 OR expires_at > clock_timestamp())"

# Whether a run that has ended keeps its key.
_IS_UNIQUE_STILL = "r.unique_until > clock_timestamp()"

# What a run keeps while it waits to be tried again: where order counts, its place at its key; else nothing.
_KEPT_PLACES = "CASE WHEN r.places > 0 AND r.on_duplicate IN ('serial', 'queue_one') THEN 1 ELSE 0 END"


def next_turn(line: str, priority: str, key: str = "NULL::text") -> str:
    """Return the SQL of the turn that run ``r`` gets in a line; without its key, as if no other of its key waited."""
    return f"django_dispatch_turn({line}, ({priority})::smallint, {key}, r.id)"


# finish: lock by token what nobody else holds, update. claim: lock and check our own lease, pick per queue, update.
# Nothing here waits for a run: one that is held, by a cancel in a long transaction say, or was changed since the
# statement began, is answered as busy, to be sent again; the others are written and claimed at once. The lease is
# locked against its end alone, so that neither its renewal nor another claim under it waits; and not at all when there
# is nothing to claim, so that an idle poll writes nothing. The row of a settlement that was not written as it was sent
# is its id, nulls, and why: 'cancelled', 'busy', or null (refused).
#
# The plan is kept for a while, in which an empty table may become a large one; so there must be no other way than to
# look up each run. By its key it is locked, in a subquery that has to be asked for each. By its place (ctid), which the
# lock keeps, it is updated: no way to a row is cheaper, if the planner expects few. It expects one settlement where it
# would a hundred, for a condition that is always true. Who was locked as newer than the statement sees is not found by
# its place: then it is busy, or still READY for the next claim.
#
# The inner LIMIT is a constant, for the planner; the outer one stops pulling, so no more rows are locked than asked.
# IS NOT DISTINCT FROM cannot use the lease's index: under a long transaction elsewhere that index holds a dead entry
# for every run of this boot, and the primary key does not.
#
# A claim that begins further on gets the parts of the queues to look at, see walks.py.
_QUEUES = "unnest(%(queues)s::text[]) WITH ORDINALITY AS q(name, place)"
_PARTS = """unnest(%(queues)s::text[], %(lows)s::int[], %(highs)s::int[], %(places)s::bigint[]) WITH ORDINALITY
    AS q(name, low, high, start, place)"""
_IN_PART = f"AND priority BETWEEN q.low AND q.high AND {PLACE} >= q.start"
_PICKING = f"""
live AS MATERIALIZED (
  SELECT id FROM {LEASE} WHERE id = %(lease)s AND expires_at > clock_timestamp() AND %(limit)s > 0 {{looking}}
  FOR KEY SHARE
), picked AS MATERIALIZED (
  SELECT p.ctid FROM live, {{queues}}
  CROSS JOIN LATERAL (
    SELECT ctid FROM {RUN}
    WHERE status = 'READY' AND queue = q.name {{in_part}} AND task <> ALL(%(excluded)s::text[]) AND {_IN_TIME}
    {IN_LINE} LIMIT 10000 FOR NO KEY UPDATE SKIP LOCKED) AS p
  WHERE q.name <> ALL({PAUSED})
  LIMIT %(limit)s
)"""
_LOOKING = f"""AND EXISTS (
    SELECT FROM {{queues}}
    CROSS JOIN LATERAL (
      SELECT FROM {RUN} WHERE status = 'READY' AND queue = q.name {{in_part}} {IN_LINE} LIMIT 1) AS one
    WHERE q.name <> ALL({PAUSED}))"""


# The key of a run of which one may wait is free when it waits no more. (extract() would go by way of numeric.)
_CLAIMING = f"""
  UPDATE {RUN} AS r
  SET status = 'RUNNING', lease_id = %(lease)s, epoch = r.epoch + 1, attempt = least(r.attempt + 1, 32767),
      started_at = clock_timestamp(),
      unique_key = CASE WHEN r.unique_key IS NOT NULL AND r.on_duplicate NOT IN ('queue_one', 'replace')
                   THEN r.unique_key END,
      on_lost = CASE WHEN r.task = ANY(%(at_most_once)s::text[]) THEN 'fail' ELSE r.on_lost END
  FROM picked WHERE r.ctid = picked.ctid
  RETURNING r.id, r.epoch, r.task, r.queue, r.priority, r.attempt, r.failures, r.interruptions, r.max_attempts,
            date_part('epoch', r.timeout), r.on_lost, r.args::text, r.kwargs::text, r.uuid,
            date_part('epoch', clock_timestamp() - coalesce(r.ready_at, r.enqueued_at)),
            date_part('epoch', r.scheduled_for),
            r.concurrency_key, COALESCE(r.turn, r.id * 2)
"""


def _picking(*, queues: str, in_part: str, looking: str = "") -> str:
    return _PICKING.format(queues=queues, in_part=in_part, looking=looking.format(queues=queues, in_part=in_part))


# The claim of an idle dispatcher, which has nothing to finish: a shorter way from a wakeup to a body.
CLAIM = f"WITH {_picking(queues=_QUEUES, in_part='', looking=_LOOKING)} {_CLAIMING}"
CLAIM_FURTHER_ON = f"WITH {_picking(queues=_PARTS, in_part=_IN_PART, looking=_LOOKING)} {_CLAIMING}"

# The first place that no run has, but for turns.
TAIL = f"SELECT id * 2 + 1 FROM {RUN} ORDER BY id DESC LIMIT 1"

_FINISHING = f"""
WITH settled AS MATERIALIZED (
  SELECT * FROM jsonb_to_recordset(%(settlements)s::jsonb) AS s(
    id bigint, epoch int, status text, result jsonb, error jsonb, progress jsonb, delay float8,
    failed smallint, interrupted smallint, started smallint, queue text, priority smallint)
  WHERE s.id - s.id = 0
), free AS MATERIALIZED (
  SELECT s.*, r.ctid FROM settled AS s CROSS JOIN LATERAL (
    SELECT ctid FROM {RUN} AS r WHERE {_OURS} FOR NO KEY UPDATE SKIP LOCKED) AS r
), finished AS (
  UPDATE {RUN} AS r
  SET status = {_WORD}, lease_id = NULL, result = s.result,
      progress = coalesce(s.progress, r.progress),
      attempt = r.attempt - 1 + coalesce(s.started, 1),
      failures = r.failures + coalesce(s.failed, 0),
      interruptions = r.interruptions + coalesce(s.interrupted, 0),
      errors = CASE WHEN s.error IS NULL THEN r.errors
               ELSE {KEPT} || (s.error || jsonb_build_object('at', clock_timestamp())) END,
      queue = coalesce(s.queue, r.queue), priority = coalesce(s.priority, r.priority),
      started_at = CASE WHEN s.started = 0 THEN NULL ELSE r.started_at END,
      ready_at = CASE WHEN s.started = 0 THEN r.ready_at WHEN {_WORD} = 'READY' THEN clock_timestamp() END,
      run_after = CASE {_WORD} WHEN 'SCHEDULED' THEN clock_timestamp() + s.delay * interval '1 second' END,
      unique_key = CASE WHEN r.unique_key IS NOT NULL AND (
                     {_WORD} IN ('READY', 'SCHEDULED') OR {_WORD} <> 'CANCELLED' AND {_IS_UNIQUE_STILL})
                   THEN r.unique_key END,
      places = CASE WHEN r.places > 0 AND {_WORD} = 'SCHEDULED' THEN {_KEPT_PLACES} ELSE r.places END,
      turn = CASE WHEN r.turn IS NOT NULL AND {_WORD} = 'READY' AND s.started IS DISTINCT FROM 0
             THEN {next_turn("coalesce(s.queue, r.queue)", "coalesce(s.priority, r.priority)")} ELSE r.turn END,
      finished_at = CASE WHEN {_WORD} NOT IN ('READY', 'SCHEDULED') THEN clock_timestamp() END
  FROM free AS s WHERE r.ctid = s.ctid
  RETURNING r.id, r.status = s.status AS is_as_said
)"""
_ANSWERING = f"""
claimed AS ({_CLAIMING})
SELECT * FROM claimed
UNION ALL
SELECT id, NULL, CASE WHEN id IN (SELECT id FROM finished) THEN 'cancelled'
                      WHEN EXISTS (SELECT FROM {RUN} AS r WHERE {_OURS}) THEN 'busy' END,
       NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL
FROM settled AS s WHERE id NOT IN (SELECT id FROM finished WHERE is_as_said)
"""

EXCHANGE = f"{_FINISHING}, {_picking(queues=_QUEUES, in_part='')}, {_ANSWERING}"
EXCHANGE_FURTHER_ON = f"{_FINISHING}, {_picking(queues=_PARTS, in_part=_IN_PART)}, {_ANSWERING}"

HELD = f"SELECT id, epoch FROM {RUN} WHERE lease_id = %(lease)s"

CANCELLATIONS = f"SELECT id, epoch FROM {RUN} WHERE lease_id = %(lease)s AND cancel_requested_at IS NOT NULL"

# A run that is held by somebody is skipped: there will be a newer progress, and the last one comes with the outcome.
PROGRESS = f"""
WITH free AS MATERIALIZED (
  SELECT s.* FROM jsonb_to_recordset(%(progress)s::jsonb) AS s(id bigint, epoch int, progress jsonb)
  JOIN {RUN} AS r ON {_OURS} FOR NO KEY UPDATE OF r SKIP LOCKED
)
UPDATE {RUN} AS r SET progress = free.progress FROM free WHERE r.id = free.id
"""

# What a run becomes whose body was lost. The first loss is repeated at once; later ones wait 2, 4, 8 … seconds, so
# that a run which takes its dispatcher down does not walk through the fleet.
_LOST = """CASE WHEN r.cancel_requested_at IS NOT NULL THEN 'CANCELLED'
             WHEN r.on_lost = 'fail' OR r.interruptions + 1 >= %(max_interruptions)s THEN 'FAILED'
             WHEN r.interruptions = 0 THEN 'READY' ELSE 'SCHEDULED' END"""
_LOSE = f"""
  SET status = {_LOST}, lease_id = NULL, interruptions = r.interruptions + 1,
      errors = {KEPT} || jsonb_build_object('attempt', r.attempt, 'at', clock_timestamp(), 'kind', 'lost',
        'message', 'The dispatcher was lost: ' || lost.why, 'executor', lost.node),
      ready_at = CASE {_LOST} WHEN 'READY' THEN clock_timestamp() END,
      run_after = CASE {_LOST} WHEN 'SCHEDULED'
                  THEN clock_timestamp() + least(2 ^ r.interruptions, 3600) * interval '1 second' END,
      unique_key = CASE WHEN {_LOST} IN ('READY', 'SCHEDULED') OR {_LOST} <> 'CANCELLED' AND {_IS_UNIQUE_STILL}
                   THEN r.unique_key END,
      places = CASE WHEN {_LOST} = 'SCHEDULED' THEN {_KEPT_PLACES} ELSE r.places END,
      turn = CASE WHEN r.turn IS NOT NULL AND {_LOST} = 'READY'
             THEN {next_turn("r.queue", "r.priority")} ELSE r.turn END,
      finished_at = CASE WHEN {_LOST} NOT IN ('READY', 'SCHEDULED') THEN clock_timestamp() END"""

# A lease row is deleted with its runs' return: whoever claims locks the row first, so that no run joins in between.
# A run that is locked is being finished or cancelled, and not waited for: if that comes to nothing, the run is one
# without a lease, for the next sweep. So a reclaim waits for nobody, and cannot deadlock with anybody.
#
# Such a run is an orphan: its lease does not exist. A claim is committed after its lease was, so that is true of what
# the statement sees; a run that somebody took back and claimed since, under a lease too new to be seen here, is locked
# with that lease's id, which the row as it was seen does not have.
RECLAIM = f"""
WITH expired AS MATERIALIZED (
  SELECT id, node, CASE WHEN expires_at < clock_timestamp() - %(grace)s * interval '1 second'
                   THEN 'its lease expired' ELSE %(why)s END
         || ' (node ' || node || ', pid ' || pid || ' on ' || host || ')' AS why
  FROM {LEASE}
  WHERE expires_at < clock_timestamp() - %(grace)s * interval '1 second' OR id = ANY(%(dead)s::uuid[])
  ORDER BY expires_at LIMIT 20 FOR UPDATE SKIP LOCKED
), leased AS MATERIALIZED (
  SELECT r.id, r.lease_id, expired.node, expired.why FROM expired JOIN {RUN} AS r ON r.lease_id = expired.id
  FOR NO KEY UPDATE OF r SKIP LOCKED
), orphan AS MATERIALIZED (
  SELECT r.id, r.lease_id, '' AS node, 'its lease does not exist' AS why FROM {RUN} AS r
  WHERE r.lease_id IS NOT NULL AND NOT EXISTS (SELECT FROM {LEASE} AS l WHERE l.id = r.lease_id)
  LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED
), lost AS (
  SELECT * FROM leased UNION ALL SELECT * FROM orphan
), reclaimed AS (
  UPDATE {RUN} AS r {_LOSE}
  FROM lost WHERE r.id = lost.id AND r.lease_id IS NOT DISTINCT FROM lost.lease_id AND r.status = 'RUNNING'
  RETURNING r.id, r.task, r.queue, r.status, lost.lease_id
), deleted AS (
  DELETE FROM {LEASE} USING expired WHERE {LEASE}.id = expired.id
), forgotten AS (
  DELETE FROM {WAITER} AS w
  WHERE w.lease_id = ANY(ARRAY(SELECT id FROM expired)) OR NOT EXISTS (SELECT FROM {LEASE} AS l WHERE l.id = w.lease_id)
)
SELECT * FROM reclaimed
"""

NEIGHBOURS = f"SELECT id, node, process FROM {LEASE} WHERE host = %(host)s AND id IS DISTINCT FROM %(besides)s"

NOTIFY = "SELECT pg_notify('django_dispatch', payload) FROM unnest(%(payloads)s::text[]) AS p(payload)"

SEND = "SELECT pg_notify(%(channel)s, payload) FROM unnest(%(payloads)s::text[]) AS p(payload)"

# Every dispatcher that listens hears of a message and tries this: one of them records it. In the order of the uuids,
# so that two of them wait for each other in one direction only.
RECEIVE = f"""
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
new AS (
  SELECT m.*, clock.now, clock.now + make_interval(secs => m.delay_seconds) AS later,
    clock.now + make_interval(secs => m.expires_seconds) AS expires_at
  FROM clock, jsonb_to_recordset(%(messages)s::jsonb) AS m(
    uuid text, unique_key text, task text, queue text, priority smallint, args jsonb, kwargs jsonb,
    delay_seconds float8, timeout_seconds float8, on_lost text, unique_seconds float8, on_duplicate text,
    concurrency_key text, concurrency_limit int, rate_amount int, rate_seconds float8, is_limited boolean,
    expires_seconds float8, meta jsonb, retention jsonb, fair_key text)
)
INSERT INTO {RUN} (
  uuid, unique_key, task, queue, priority, args, kwargs, timeout, on_lost, unique_until, on_duplicate,
  concurrency_key, concurrency_limit, rate_amount, rate_seconds, source, status, run_after, expires_at, meta,
  retention, fair_key)
SELECT uuid, unique_key, task, queue, priority, args, COALESCE(kwargs, '{{}}'), make_interval(secs => timeout_seconds),
  on_lost, now + make_interval(secs => unique_seconds), COALESCE(on_duplicate, ''),
  concurrency_key, concurrency_limit, rate_amount, rate_seconds, %(source)s::text,
  CASE WHEN later IS NOT NULL THEN 'SCHEDULED' WHEN is_limited THEN 'BLOCKED' ELSE 'READY' END, later, expires_at,
  COALESCE(meta, '{{}}'), retention, fair_key
FROM new ORDER BY uuid
ON CONFLICT DO NOTHING
RETURNING id, uuid, queue, status, true, blocked_by
"""

_OF_UUIDS = "WHERE uuid = ANY(%(uuids)s::text[]) AND uuid IS NOT NULL"
RECEIVED = f"SELECT id, uuid, queue, status, false, blocked_by FROM {RUN} {_OF_UUIDS}"

# What waits or runs and is meant, through the partial index of each status: a history of millions is not looked at.
_MEANT = """
    AND (%(uuid)s::text IS NULL OR uuid = %(uuid)s) AND (%(task)s::text IS NULL OR task = %(task)s)
    AND (%(queue)s::text IS NULL OR queue = %(queue)s)
    AND (%(args)s::jsonb IS NULL OR args = %(args)s) AND (%(kwargs)s::jsonb IS NULL OR kwargs = %(kwargs)s)"""
MEANT = f"""
SELECT id FROM (
  SELECT id FROM {RUN} WHERE status = 'READY' {_MEANT}
  UNION ALL SELECT id FROM {RUN} WHERE status = 'SCHEDULED' {_MEANT}
  UNION ALL SELECT id FROM {RUN} WHERE status = 'BLOCKED' {_MEANT}
  UNION ALL SELECT id FROM {RUN} WHERE lease_id IS NOT NULL AND cancel_requested_at IS NULL {_MEANT}
) AS meant ORDER BY id LIMIT %(limit)s
"""
MEANT_BY_ID = f"SELECT id FROM {RUN} WHERE id = %(run)s {_MEANT}"
MEANT_BY_UUID = f"SELECT id FROM {RUN} WHERE uuid = %(uuid)s::text AND uuid IS NOT NULL {_MEANT}"

LIVE_LEASES = f"SELECT state, count(*) FROM {LEASE} WHERE expires_at > clock_timestamp() GROUP BY state"

# For whoever asks: who should answer.
LIVE = f"SELECT id, node, host, pid FROM {LEASE} WHERE expires_at > clock_timestamp() ORDER BY node, acquired_at"
