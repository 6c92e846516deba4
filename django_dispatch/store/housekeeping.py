"""The SQL of housekeeping: what makes runs READY, ages them, lets them pass, ends and deletes them; and what asks.

Bounded, whatever the backlog; rows that somebody holds are skipped. See ``statements`` for what holds for all.
"""

from .statements import IN_LINE, KEPT, LEASE, PAUSED, PLACE, RUN, next_turn
from .values import BACKLOG_LIMIT

# Each queue that has READY runs: hops from one name to the next through the claim index, whatever the backlog.
HOP = f"""hop AS (
  (SELECT queue FROM {RUN} WHERE status = 'READY' ORDER BY queue LIMIT 1)
  UNION ALL
  SELECT (SELECT queue FROM {RUN} WHERE status = 'READY' AND queue > hop.queue ORDER BY queue LIMIT 1)
  FROM hop WHERE hop.queue IS NOT NULL
)"""

# Runs for one dispatcher alone, whose lease is gone: nobody else is to run them. Who enqueued one had seen the lease,
# so that a lease which the statement does not see has been deleted.
CANCEL_UNREACHABLE = f"""
WITH RECURSIVE {HOP}, gone AS MATERIALIZED (
  SELECT queue FROM hop
  WHERE starts_with(queue, 'lease:') AND NOT EXISTS (SELECT FROM {LEASE} AS l WHERE 'lease:' || l.id = hop.queue)
), unreachable AS MATERIALIZED (
  SELECT one.id FROM gone CROSS JOIN LATERAL (
    SELECT id FROM {RUN} WHERE status = 'READY' AND queue = gone.queue
    {IN_LINE} LIMIT 1000 FOR NO KEY UPDATE SKIP LOCKED) AS one
)
UPDATE {RUN} AS r
SET status = 'CANCELLED', unique_key = NULL, finished_at = clock_timestamp(),
    errors = {KEPT} || jsonb_build_object('attempt', r.attempt, 'at', clock_timestamp(), 'kind', 'unreachable',
      'message', 'It was for one dispatcher alone, which lives no more.')
WHERE r.id = ANY(ARRAY(SELECT id FROM unreachable))
"""

# Where a run has to wait that is due: at its key, unless it kept its place there, or at its queue.
_NEXT_LIMIT = """CASE WHEN r.concurrency_key IS NOT NULL AND r.places = 0 THEN r.concurrency_key
                   WHEN r.queue = ANY(%(limited_queues)s::text[]) THEN 'queue:' || r.queue END"""

# The turn that it gets there. Where order counts, ids are the order; and who kept its place is not to wait for long.
_ITS_TURN = f"""CASE WHEN r.fair_key IS NULL THEN NULL
             WHEN r.concurrency_key IS NULL
             THEN {next_turn(f"COALESCE({_NEXT_LIMIT}, r.queue)", "r.priority", "r.fair_key")}
             WHEN r.places > 0 THEN {next_turn(f"COALESCE({_NEXT_LIMIT}, r.queue)", "r.priority")}
             WHEN r.on_duplicate NOT IN ('serial', 'queue_one')
             THEN {next_turn("r.concurrency_key", "r.priority", "r.fair_key")} END"""

# The clock is volatile: only as a sub-select, read once, can it say where in an index to begin and to stop. Compared
# row by row, a look that finds less than its limit would walk through everything that is not due.
PROMOTE = f"""
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
due AS MATERIALIZED (
  SELECT id FROM {RUN} WHERE status = 'SCHEDULED' AND run_after <= (SELECT now FROM clock)
  ORDER BY run_after LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
), promoted AS (
  UPDATE {RUN} AS r
  SET status = CASE WHEN {_NEXT_LIMIT} IS NULL THEN 'READY' ELSE 'BLOCKED' END, blocked_by = {_NEXT_LIMIT},
      turn = {_ITS_TURN}, ready_at = run_after, run_after = NULL
  WHERE id = ANY(ARRAY(SELECT id FROM due)) RETURNING queue, blocked_by
)
SELECT DISTINCT CASE WHEN blocked_by IS NULL THEN queue END, blocked_by, NULL::float8 FROM promoted
UNION ALL
SELECT NULL, NULL, extract(epoch FROM (
  SELECT run_after FROM {RUN} WHERE status = 'SCHEDULED' AND run_after > (SELECT now FROM clock)
  ORDER BY run_after LIMIT 1
) - clock_timestamp())::float8
"""

# What waits for its first start and is too late for it. The claim does not take it either, whenever this is.
EXPIRE = f"""
WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
late AS MATERIALIZED (
  SELECT id FROM {RUN}
  WHERE expires_at <= (SELECT now FROM clock) AND attempt = 0 AND status IN ('SCHEDULED', 'READY', 'BLOCKED')
  ORDER BY expires_at LIMIT %(limit)s FOR NO KEY UPDATE SKIP LOCKED
), expired AS (
  UPDATE {RUN} AS r
  SET status = 'CANCELLED', run_after = NULL, unique_key = NULL, finished_at = clock_timestamp(),
      errors = {KEPT} || jsonb_build_object('attempt', 0, 'at', clock_timestamp(), 'kind', 'expired',
        'message', 'It had not been started when it expired.')
  WHERE id = ANY(ARRAY(SELECT id FROM late)) RETURNING places, queue, concurrency_key
)
SELECT (SELECT count(*) FROM expired), ARRAY(
  SELECT concurrency_key FROM expired WHERE places > 0 AND concurrency_key IS NOT NULL
  UNION SELECT 'queue:' || queue FROM expired WHERE places = 2
), extract(epoch FROM (
  SELECT expires_at FROM {RUN}
  WHERE expires_at > (SELECT now FROM clock) AND attempt = 0 AND status IN ('SCHEDULED', 'READY', 'BLOCKED')
  ORDER BY expires_at LIMIT 1
) - clock_timestamp())::float8
"""

ADMIT = "SELECT * FROM django_dispatch_admit(%(keys)s::text[], %(most)s, %(queue_limits)s::jsonb)"

# Hops from each key at which runs wait to the next, from where the last sweep ended, however many wait there.
KEY_HOP = f"""key_hop AS (
  (SELECT blocked_by, 1 AS place FROM {RUN} WHERE status = 'BLOCKED' AND blocked_by > %(after)s
   ORDER BY blocked_by LIMIT 1)
  UNION ALL
  SELECT (SELECT blocked_by FROM {RUN} WHERE status = 'BLOCKED' AND blocked_by > key_hop.blocked_by
          ORDER BY blocked_by LIMIT 1), place + 1
  FROM key_hop WHERE key_hop.blocked_by IS NOT NULL AND place < %(limit)s
)"""
BLOCKED_KEYS = f"""
WITH RECURSIVE {KEY_HOP}
SELECT blocked_by FROM key_hop WHERE blocked_by IS NOT NULL
"""

# A bucket that was not touched for a day, the longest period of a rate, is full: as if it was not there.
PRUNE_BUCKETS = """
DELETE FROM django_dispatch_bucket WHERE key = ANY(ARRAY(
  SELECT key FROM django_dispatch_bucket WHERE filled_at < clock_timestamp() - interval '1 day'
  LIMIT 1000 FOR UPDATE SKIP LOCKED))
"""

_OF_TASK = "(%(task)s::text IS NULL OR task = %(task)s)"
# What is to stay unique for longer than it is kept is kept for so long.
_IS_FORGETTABLE = "(unique_key IS NULL OR unique_until IS NULL OR unique_until <= (SELECT clock_timestamp()))"
_OLD = f"""
  WHERE finished_at < (SELECT clock_timestamp() - %(age)s * interval '1 second')
    AND status = %(status)s AND retention IS NULL AND {_OF_TASK} AND {_IS_FORGETTABLE}"""
PRUNE = f"""
WITH old AS MATERIALIZED (
  SELECT id FROM {RUN} {_OLD}
  ORDER BY finished_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
DELETE FROM {RUN} WHERE id = ANY(ARRAY(SELECT id FROM old))
"""
COUNT_OLD = f"SELECT count(*) FROM {RUN} {_OLD}"

# Those that have a retention of their own, as the index has it; or, for whoever names an age, regardless of it.
_GOES_AT = "(finished_at AT TIME ZONE 'UTC') + make_interval(secs => (retention ->> status)::float8)"
_OLD_OWN = f"""
  WHERE finished_at IS NOT NULL AND retention IS NOT NULL
    AND {_GOES_AT} < (SELECT clock_timestamp() AT TIME ZONE 'UTC')
    AND (%(status)s::text IS NULL OR status = %(status)s) AND {_OF_TASK} AND {_IS_FORGETTABLE}"""
_OLD_REGARDLESS = f"""
  WHERE finished_at IS NOT NULL AND retention IS NOT NULL
    AND finished_at < (SELECT clock_timestamp() - %(age)s * interval '1 second') AND status = %(status)s
    AND {_OF_TASK}"""
PRUNE_OWN = f"""
WITH old AS MATERIALIZED (
  SELECT id FROM {RUN} {_OLD_OWN}
  ORDER BY {_GOES_AT} LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
DELETE FROM {RUN} WHERE id = ANY(ARRAY(SELECT id FROM old))
"""
PRUNE_REGARDLESS = f"""
WITH old AS MATERIALIZED (
  SELECT id FROM {RUN} {_OLD_REGARDLESS} LIMIT %(limit)s FOR UPDATE SKIP LOCKED
)
DELETE FROM {RUN} WHERE id = ANY(ARRAY(SELECT id FROM old))
"""
COUNT_OLD_OWN = f"SELECT count(*) FROM {RUN} {_OLD_OWN}"
COUNT_OLD_REGARDLESS = f"SELECT count(*) FROM {RUN} {_OLD_REGARDLESS}"

READY_QUEUES = f"""
WITH RECURSIVE {HOP}
SELECT queue FROM hop WHERE queue IS NOT NULL AND queue <> ALL({PAUSED})
"""

# Of each queue and each priority below the highest in use there, the first few that have waited too long: they come
# before all others then, for their ids are the lowest; those with a fair key take turns there, too. What is read is
# bounded by the priorities in use. (The status is asked for so that the partial index of READY runs does not fit: an
# old server would walk it.)
_TOP = "(SELECT top FROM waiting WHERE waiting.id = r.id)"
AGE = f"""
WITH RECURSIVE {HOP}, level AS (
  SELECT hop.queue, highest.priority, highest.priority AS top FROM hop CROSS JOIN LATERAL (
    SELECT priority FROM {RUN} WHERE status = 'READY' AND queue = hop.queue ORDER BY priority DESC LIMIT 1) AS highest
  UNION ALL
  SELECT level.queue, below.priority, level.top FROM level CROSS JOIN LATERAL (
    SELECT priority FROM {RUN} WHERE status = 'READY' AND queue = level.queue AND priority < level.priority
    ORDER BY priority DESC LIMIT 1) AS below
), waiting AS MATERIALIZED (
  SELECT first.id, level.top FROM level CROSS JOIN LATERAL (
    SELECT id, coalesce(ready_at, enqueued_at) AS due_at FROM {RUN}
    WHERE status = 'READY' AND queue = level.queue AND priority = level.priority
    ORDER BY {PLACE} LIMIT %(limit)s) AS first
  WHERE level.priority < level.top
    AND first.due_at < (SELECT clock_timestamp() - %(age)s * interval '1 second')
  LIMIT 1000
), aged AS MATERIALIZED (
  SELECT id FROM {RUN} WHERE id = ANY(ARRAY(SELECT id FROM waiting)) AND CASE WHEN status = 'READY' THEN true END
  FOR NO KEY UPDATE SKIP LOCKED
)
UPDATE {RUN} AS r
SET priority = {_TOP}, turn = CASE WHEN r.fair_key IS NOT NULL THEN {next_turn("r.queue", _TOP, "r.fair_key")} END
WHERE r.id = ANY(ARRAY(SELECT id FROM aged))
"""

# Each queue that has READY runs, each priority in it, and of these so many runs: what is read is bounded, whatever the
# backlog. The oldest is taken to be among the next twenty of its priority.
BACKLOGS = f"""
WITH RECURSIVE {HOP}
SELECT hop.queue,
  (SELECT count(*) FROM (
    SELECT FROM {RUN} WHERE status = 'READY' AND queue = hop.queue LIMIT {BACKLOG_LIMIT}) AS bounded),
  (WITH RECURSIVE step AS (
    (SELECT priority FROM {RUN} WHERE status = 'READY' AND queue = hop.queue ORDER BY priority DESC LIMIT 1)
    UNION ALL
    SELECT (SELECT priority FROM {RUN} WHERE status = 'READY' AND queue = hop.queue AND priority < step.priority
            ORDER BY priority DESC LIMIT 1)
    FROM step WHERE step.priority IS NOT NULL
  )
  SELECT greatest(0, extract(epoch FROM clock_timestamp() - min(head.due_at)))::float8
  FROM step CROSS JOIN LATERAL (
    SELECT coalesce(ready_at, enqueued_at) AS due_at FROM {RUN}
    WHERE status = 'READY' AND queue = hop.queue AND priority = step.priority ORDER BY {PLACE} LIMIT 20) AS head)
FROM hop WHERE hop.queue IS NOT NULL LIMIT 1000
"""
