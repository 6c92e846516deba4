"""The transactional finish: a body's own transaction writes its success. In executors, on the body's connection."""

from uuid import UUID

from django.db import connections

# Guarded by the token, as every outcome. From here to the commit the row is locked, and a reclaim skips it: so either
# this commits, with all else that the body did, and the run is final, or the run is somebody else's and nothing stays.
FINISH = """
UPDATE django_dispatch_run
SET status = 'SUCCESSFUL', lease_id = NULL, result = %(result)s::jsonb,
    unique_key = CASE WHEN unique_until > clock_timestamp() THEN unique_key END,
    finished_at = clock_timestamp()
WHERE id = %(id)s AND epoch = %(epoch)s AND lease_id = %(lease)s AND status = 'RUNNING'
"""


def finish(using: str, token: tuple[int, int], lease: bytes, result: str | None) -> bool:
    """See ``atomic.finish()``."""
    run_id, epoch = token
    with connections[using].cursor() as cursor:
        cursor.execute(FINISH, {"id": run_id, "epoch": epoch, "lease": UUID(bytes=lease), "result": result})
        return bool(cursor.rowcount == 1)
