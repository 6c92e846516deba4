"""The SQL of pausing queues; in the caller's process, connection and transaction."""

from datetime import datetime

from django.db import connections

# A queue that is paused already stays so since then; what is new is why, by whom and until when.
PAUSE = """
INSERT INTO django_dispatch_pausedqueue AS q (name, reason, paused_by, paused_at, paused_until)
SELECT %(name)s, %(reason)s, %(by)s, now, COALESCE(%(until)s, now + make_interval(secs => %(seconds)s))
FROM clock_timestamp() AS now
ON CONFLICT (name) DO UPDATE
SET reason = excluded.reason, paused_by = excluded.paused_by, paused_until = excluded.paused_until,
    paused_at = CASE WHEN q.paused_until <= excluded.paused_at THEN excluded.paused_at ELSE q.paused_at END
"""

RESUME = """
DELETE FROM django_dispatch_pausedqueue WHERE name = %s
RETURNING paused_until IS NULL OR paused_until > clock_timestamp()
"""


def pause(
    using: str, name: str, *, reason: str, by: str, until: datetime | None = None, seconds: float | None = None
) -> None:
    """Have nothing claimed from the queue, until then, for so long, or until it is resumed."""
    with connections[using].cursor() as cursor:
        cursor.execute(PAUSE, {"name": name, "reason": reason, "by": by, "until": until, "seconds": seconds})


def resume(using: str, name: str) -> bool:
    """Have the queue claimed from again; return whether it was paused until now."""
    with connections[using].cursor() as cursor:
        cursor.execute(RESUME, [name])
        row = cursor.fetchone()
        return row is not None and bool(row[0])
