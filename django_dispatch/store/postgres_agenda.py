"""The SQL of the agenda: what there is to do, by the same indexes as the steps that do it. It writes nothing."""

from collections.abc import Sequence

from .housekeeping import HOP, KEY_HOP
from .postgres_schedules import IS_DUE_EVER, SCHEDULE
from .session import Session
from .statements import LEASE, PAUSED, RUN, WAITER
from .values import Agenda

# The leases under which runs are held: hops from one to the next, however many each holds.
_HOLDER_HOP = f"""holder AS (
  (SELECT lease_id FROM {RUN} WHERE lease_id IS NOT NULL ORDER BY lease_id LIMIT 1)
  UNION ALL
  SELECT (SELECT lease_id FROM {RUN} WHERE lease_id > holder.lease_id ORDER BY lease_id LIMIT 1)
  FROM holder WHERE holder.lease_id IS NOT NULL
)"""

# Where something is due that somebody else holds, the step is told to try, and finds that out.
AGENDA = f"""
WITH RECURSIVE clock AS MATERIALIZED (SELECT clock_timestamp() AS now), {HOP}, {KEY_HOP}, {_HOLDER_HOP}
SELECT ARRAY(SELECT queue FROM hop WHERE queue IS NOT NULL AND queue <> ALL({PAUSED})),
  ARRAY(SELECT blocked_by FROM key_hop WHERE blocked_by IS NOT NULL),
  extract(epoch FROM (
    SELECT run_after FROM {RUN} WHERE status = 'SCHEDULED' ORDER BY run_after LIMIT 1) - clock.now)::float8,
  extract(epoch FROM (
    SELECT expires_at FROM {RUN}
    WHERE expires_at IS NOT NULL AND attempt = 0 AND status IN ('SCHEDULED', 'READY', 'BLOCKED')
    ORDER BY expires_at LIMIT 1) - clock.now)::float8,
  (SELECT min(CASE WHEN s.planned_revision <> s.revision OR s.next_at <= clock.now THEN 0
                   ELSE extract(epoch FROM s.next_at - clock.now) END)::float8
   FROM {SCHEDULE} AS s
   WHERE {IS_DUE_EVER} AND (s.planned_revision <> s.revision OR s.next_at < 'infinity')),
  EXISTS (SELECT FROM {LEASE} WHERE expires_at < clock.now - %(grace)s * interval '1 second')
    OR EXISTS (SELECT FROM holder
               WHERE lease_id IS NOT NULL AND NOT EXISTS (SELECT FROM {LEASE} AS l WHERE l.id = holder.lease_id))
    OR EXISTS (SELECT FROM {WAITER} AS w WHERE NOT EXISTS (SELECT FROM {LEASE} AS l WHERE l.id = w.lease_id))
    OR EXISTS (SELECT FROM hop WHERE starts_with(queue, 'lease:')
               AND NOT EXISTS (SELECT FROM {LEASE} AS l WHERE 'lease:' || l.id = hop.queue)),
  ARRAY(SELECT id FROM {LEASE} WHERE host = %(host)s)
FROM clock
"""


def agenda(session: Session, *, host: str, tasks: Sequence[str], grace_seconds: float, limit: int) -> Agenda:
    """See Store.agenda()."""
    params = {"host": host, "tasks": list(tasks), "grace": grace_seconds, "after": "", "limit": limit}
    return Agenda(*session.execute(AGENDA, params).fetchall()[0])
