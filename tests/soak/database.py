"""The soak's own look at its database, over connections that are opened anew each time: it may be down."""

from collections.abc import Mapping
from typing import Any

import psycopg
from psycopg.rows import dict_row

from .evidence import Change, Effect

HISTORY = """
    SELECT extract(epoch FROM at)::float8 AS at, run_id, old_status, status, epoch, attempt, failures, interruptions,
           lease_id::text AS lease, lease_left, key, task, max_attempts, on_lost, result, errors, rerun_of, actor,
           extract(epoch FROM run_after)::float8 AS run_after
    FROM soak_history ORDER BY id
"""
EFFECTS = (
    "SELECT run_id, epoch, extract(epoch FROM pg_xact_commit_timestamp(xmin))::float8 AS committed_at FROM soak_effect"
)
# What is due within the soak and has not ended.
UNFINISHED = """
    SELECT count(*) FROM django_dispatch_run
    WHERE finished_at IS NULL AND coalesce(run_after < clock_timestamp() + interval '1 hour', true)
"""
SESSIONS = """
    SELECT format('%s of %s, port %s, since %s: %s, %s', pid, application_name, client_port, backend_start, state,
                  left(query, 100))
    FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""


class Database:
    """Asks the database; each answer is of this moment. Raises psycopg.Error while it is down."""

    def __init__(self, url: str) -> None:
        self._url = url

    def unfinished(self) -> int:
        """Count the runs that are yet to end."""
        return int(self._rows(UNFINISHED)[0][0])

    def newest_change(self) -> int:
        """Return a number that grows with each change of any run."""
        return int(self._rows("SELECT coalesce(max(id), 0) FROM soak_history")[0][0])

    def leases(self) -> list[str]:
        """Return whose leases there are."""
        return [row[0] for row in self._rows("SELECT node || ' ' || id FROM django_dispatch_lease")]

    def sessions(self) -> list[str]:
        """Return the sessions of others."""
        return [row[0] for row in self._rows(SESSIONS)]

    def rows(self) -> Mapping[int, str]:
        """Return the status of every run in the table."""
        return dict(self._rows("SELECT id, status FROM django_dispatch_run"))

    def changes(self) -> list[Change]:
        """Return every change of every run."""
        with self._connect() as connection:
            found = connection.cursor(row_factory=dict_row).execute(HISTORY).fetchall()
        return [Change(**row | {"errors": [(a, k) for a, k in row["errors"] or ()]}) for row in found]

    def effects(self) -> list[Effect]:
        """Return what bodies committed."""
        return [Effect(*row) for row in self._rows(EFFECTS)]

    def _rows(self, query: str) -> list[Any]:
        with self._connect() as connection:
            return connection.execute(query).fetchall()

    def _connect(self) -> "psycopg.Connection[Any]":
        return psycopg.connect(self._url, autocommit=True, application_name="soak", connect_timeout=5)
