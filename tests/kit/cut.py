"""End database sessions of dispatchers and executors, as an administrator or a failover would."""

from collections.abc import Sequence
from typing import Any

import psycopg


class Cut:
    """``cut("store")`` ends the sessions of a role: claims, store, keeper, listener or executor."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def __call__(self, role: str) -> int:
        """End every session of the role in this database; return how many there were."""
        query = (
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
            " WHERE datname = current_database() AND application_name = %s"
        )
        row = self._connection.execute(query, [f"django_dispatch {role}"]).fetchone()
        return row[0] if row else 0

    def sessions(self, role: str) -> Sequence[int]:
        """Return the backend pids of a role's sessions."""
        query = "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"
        return [pid for (pid,) in self._connection.execute(query, [f"django_dispatch {role}"])]

    def port(self, role: str) -> int:
        """Return the port from which a role's only session comes."""
        query = "SELECT client_port FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"
        ((port,),) = self._connection.execute(query, [f"django_dispatch {role}"])
        return int(port)
