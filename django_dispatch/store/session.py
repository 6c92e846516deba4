"""A database connection of the dispatcher's own: opened from the project's settings, bounded in time, killable.

It lives beside Django's per-thread connections, so that neither a pool, nor CONN_MAX_AGE, nor a serializable isolation
level chosen for the web can change what the dispatcher needs: one autocommit session, READ COMMITTED.
"""

import contextlib
import os
import socket
from collections.abc import Mapping
from typing import Any

import psycopg
from django.db import connections
from django.db.utils import DatabaseErrorWrapper

# An idle or half-open TCP connection is noticed by the kernel after about 25 seconds. A unix socket ignores these.
KEEPALIVES = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "connect_timeout": 5,
}

# Few statements, each made for its index, planned once: neither an empty table, nor stale statistics, nor a backlog
# of millions may ever make the planner prefer a scan or a sort of the whole table.
PLAN = {
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "default_transaction_isolation": "read committed",
}


def connection_params(alias: str, role: str) -> dict[str, Any]:
    """Return psycopg's connect() arguments for a Django alias; ``role`` is seen in pg_stat_activity."""
    wrapper = connections.create_connection(alias)
    options = dict(wrapper.settings_dict.get("OPTIONS", {}))
    for other in ("pool", "isolation_level", "server_side_binding"):
        options.pop(other, None)
    wrapper.settings_dict = {**wrapper.settings_dict, "OPTIONS": options}
    params = dict(wrapper.get_connection_params())
    for key in ("cursor_factory", "context", "prepare_threshold"):
        params.pop(key, None)
    return {**KEEPALIVES, **params, "application_name": f"django_dispatch {role}"}


class Session:
    """One autocommit connection, opened when first used and again after an error. For one thread at a time."""

    def __init__(self, alias: str, role: str, *, statement_timeout_seconds: float) -> None:
        self.alias = alias
        self.role = role
        self.statement_timeout_seconds = statement_timeout_seconds
        # The sign, documented by Django, that a transaction pooler stands between: sessions have no state then.
        self.is_pooled = bool(connections[alias].settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"))
        self._connection: psycopg.Connection[tuple[Any, ...]] | None = None
        self._translate_errors = DatabaseErrorWrapper(connections[alias])

    def execute(self, statement: str, params: Mapping[str, Any] | None = None) -> psycopg.Cursor[tuple[Any, ...]]:
        """Run one statement in a transaction of its own. Raises ``django.db.Error``; the next call reconnects."""
        with self._translate_errors:
            try:
                connection = self._connection or self._connect()
                return connection.execute(statement, params, prepare=not self.is_pooled)
            except psycopg.OperationalError:
                self.close()
                raise

    def abort(self) -> None:
        """Break the connection under a statement that takes too long. May be called from any thread."""
        connection = self._connection
        if connection is None or connection.closed:
            return
        with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as raw:
            raw.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection, if any."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        self.close()
        connection: psycopg.Connection[tuple[Any, ...]] = psycopg.connect(
            **connection_params(self.alias, self.role),
            autocommit=True,
            prepare_threshold=None if self.is_pooled else 0,
        )
        self._connection = connection
        role = connections[self.alias].settings_dict.get("OPTIONS", {}).get("assume_role")
        if role:
            connection.execute("SELECT set_config('role', %s, false)", [role])
        if not self.is_pooled:
            milliseconds = int(self.statement_timeout_seconds * 1000)
            timeouts = {"statement_timeout": str(milliseconds), "lock_timeout": str(milliseconds // 2)}
            settings = ", ".join(f"set_config('{name}', '{value}', false)" for name, value in (PLAN | timeouts).items())
            connection.execute(f"SELECT {settings}".encode())
        return connection
