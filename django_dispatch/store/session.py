"""A database connection of the dispatcher's own: opened from the project's settings, bounded in time, killable.

It lives beside Django's per-thread connections, so that neither a pool, nor CONN_MAX_AGE, nor a serializable isolation
level chosen for the web can change what the dispatcher needs: one autocommit session, READ COMMITTED.
"""

import asyncio
import contextlib
import logging
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import psycopg
from django.db import connections
from django.db.utils import DatabaseErrorWrapper

Row: TypeAlias = tuple[Any, ...]
Connection: TypeAlias = "psycopg.Connection[Row] | psycopg.AsyncConnection[Row]"

NO_ANSWER = "no answer in time; the connection is given up"

# After so many executions psycopg prepares a statement by itself. With None it would not even when it is asked to.
ONLY_WHEN_ASKED = 1 << 62

CONNECT_SECONDS = 3  # for each host; a project's own connect_timeout counts instead

# An idle or half-open TCP connection is noticed by the kernel after about 25 seconds. A unix socket ignores these.
KEEPALIVES = {
    "keepalives": 1,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
    "connect_timeout": CONNECT_SECONDS,
}

# Few statements, each made for its index: neither an empty table, nor stale statistics, nor a backlog of millions may
# ever make the planner prefer a scan or a sort of the whole table. They are planned each time, by the table's size at
# that moment: a plan that was made for a small one, and kept, reads all of a large one.
PLAN = {
    "plan_cache_mode": "force_custom_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "jit": "off",
    "default_transaction_isolation": "read committed",
}
# Too dear for the hot path: there a plan is kept, but while runs go by no longer than this.
KEEP_PLAN = "SET plan_cache_mode = force_generic_plan"
KEEP_PLAN_SECONDS = 1.0

# Where a pooler takes the settings away, each transaction has to name its level, if that is not the default there:
# dispatchers would get in each other's way, and admission refuses any other.
HAS_OTHER_ISOLATION = "SELECT current_setting('default_transaction_isolation') <> 'read committed'"

logger = logging.getLogger("django_dispatch.database")


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


def listen_params(alias: str, listen_dsn: str | None, role: str) -> dict[str, Any]:
    """Return psycopg's connect() arguments for who listens: ``listen_dsn`` is another alias, or a connection string."""
    if listen_dsn is None or listen_dsn in connections:
        return connection_params(listen_dsn or alias, role)
    return {"conninfo": listen_dsn, "application_name": f"django_dispatch {role}"}


@dataclass(frozen=True, slots=True)
class Terms:
    """How a session of the dispatcher's is opened; ``role`` is seen in pg_stat_activity."""

    alias: str
    role: str
    statement_timeout_seconds: float

    @property
    def is_pooled(self) -> bool:
        """Whether a transaction pooler stands between, by the sign that Django documents: sessions have no state.

        Where the sign is missing, who connects sees for itself: see opening().
        """
        return bool(connections[self.alias].settings_dict.get("DISABLE_SERVER_SIDE_CURSORS"))

    def connect_arguments(self) -> dict[str, Any]:
        """Return the arguments of psycopg's connect()."""
        return connection_params(self.alias, self.role) | {"autocommit": True, "prepare_threshold": ONLY_WHEN_ASKED}

    def role_change(self) -> bytes | None:
        """Return the statement that takes on the role that Django's own connections take on, if any."""
        role = connections[self.alias].settings_dict.get("OPTIONS", {}).get("assume_role")
        return f"SELECT set_config('role', {_literal(str(role))}, false)".encode() if role else None

    def opening(self, connection: Connection) -> bytes:
        """Return the statement that gives a session its settings, and a row; neither if a pooler stands between.

        What is set there would stay behind for whoever is next, the web say: without sequential scans, and with our
        deadline.
        """
        milliseconds = int(self.statement_timeout_seconds * 1000)
        settings = PLAN | {"statement_timeout": str(milliseconds), "lock_timeout": str(milliseconds // 2)}
        calls = [f"set_config({_literal(name)}, {_literal(value)}, false)" for name, value in settings.items()]
        return f"SELECT {', '.join(calls)} WHERE pg_backend_pid() = {connection.pgconn.backend_pid}".encode()


class Session:
    """One autocommit connection, opened when first used and again after an error. For one thread at a time."""

    def __init__(self, terms: Terms) -> None:
        self._terms = terms
        self._is_pooled = terms.is_pooled
        self._is_aborted = False
        self._connection: psycopg.Connection[Row] | None = None
        self._translate_errors = DatabaseErrorWrapper(connections[terms.alias])

    def execute(self, statement: str, params: Mapping[str, Any] | None = None) -> psycopg.Cursor[Row]:
        """Run one statement in a transaction of its own. Raises ``django.db.Error``; the next call reconnects."""
        self._is_aborted = False
        with self._translate_errors:
            try:
                connection = self._connection or self._connect()
                with connection.transaction() if connection.isolation_level else contextlib.nullcontext():
                    return connection.execute(statement, params, prepare=not self._is_pooled)
            except psycopg.Error as error:
                if _may_be_the_connection(error):
                    self.close()
                if self._is_aborted:
                    raise psycopg.OperationalError(NO_ANSWER) from error
                raise

    def abort(self) -> None:
        """Break the connection under a statement that takes too long. May be called from any thread."""
        self._is_aborted = True
        if self._connection is not None:
            _break(self._connection)

    def close(self) -> None:
        """Close the connection, if any."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                connection.close()

    def _connect(self) -> psycopg.Connection[Row]:
        self.close()
        connection = self._connection = psycopg.connect(**self._terms.connect_arguments())
        if role_change := self._terms.role_change():
            connection.execute(role_change)
        self._is_pooled = self._terms.is_pooled
        if not self._is_pooled and connection.execute(self._terms.opening(connection)).fetchone() is None:
            self._is_pooled = True
            _tell_of_pooler(self._terms.alias)
        if self._is_pooled and connection.execute(HAS_OTHER_ISOLATION).fetchone() == (True,):
            connection.isolation_level = psycopg.IsolationLevel.READ_COMMITTED
        return connection


class AsyncSession:
    """The same on an event loop, where no thread has to be woken: the hot path. For one statement at a time.

    A statement that takes longer than ``deadline_seconds`` has its connection broken.
    """

    def __init__(self, terms: Terms, *, deadline_seconds: float) -> None:
        self._terms = terms
        self._is_pooled = terms.is_pooled
        self._deadline_seconds = deadline_seconds
        self._is_aborted = False
        self._connection: psycopg.AsyncConnection[Row] | None = None
        self._cursor: psycopg.AsyncCursor[Row]
        self._planned_at = 0.0
        self._due_at: float | None = None
        """When the statement that is under way must have ended, by the loop's clock."""
        self._alarm: asyncio.TimerHandle | None = None
        self._translate_errors = DatabaseErrorWrapper(connections[terms.alias])

    async def execute(self, statement: str, params: Mapping[str, Any], *, is_busy: bool = False) -> list[Row]:
        """Run one statement in a transaction of its own; return its rows. Raises ``django.db.Error``.

        ``is_busy`` says that runs go by, so that tables may grow: plans are made anew every second then.
        """
        self._is_aborted = False
        self._watch()
        with self._translate_errors:
            try:
                connection = self._connection or await self._connect()
                if is_busy and not self._is_pooled and time.monotonic() - self._planned_at >= KEEP_PLAN_SECONDS:
                    await connection.execute("DISCARD PLANS")
                    self._planned_at = time.monotonic()
                async with connection.transaction() if connection.isolation_level else contextlib.nullcontext():
                    await self._cursor.execute(statement, params, prepare=not self._is_pooled)
                    return await self._cursor.fetchall()
            except psycopg.Error as error:
                if _may_be_the_connection(error):
                    await self.close()
                if self._is_aborted:
                    raise psycopg.OperationalError(NO_ANSWER) from error
                raise
            finally:
                self._due_at = None

    async def close(self) -> None:
        """Close the connection, if any."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(psycopg.Error):
                await connection.close()

    def _watch(self) -> None:
        """Have the connection broken if the statement that begins now takes too long."""
        loop = asyncio.get_running_loop()
        self._due_at = loop.time() + self._deadline_seconds
        if self._alarm is None:
            self._alarm = loop.call_at(self._due_at, self._ring)

    def _ring(self) -> None:
        """Break the connection if it is time; again later, if there is none yet. One alarm serves many statements."""
        self._alarm = None
        if self._due_at is None:
            return
        loop = asyncio.get_running_loop()
        if loop.time() < self._due_at:
            self._alarm = loop.call_at(self._due_at, self._ring)
            return
        self._watch()
        self._is_aborted = True
        if self._connection is not None:
            _break(self._connection)

    async def _connect(self) -> psycopg.AsyncConnection[Row]:
        await self.close()
        connection = await psycopg.AsyncConnection.connect(**self._terms.connect_arguments())
        self._connection = connection
        self._cursor = connection.cursor()  # one for all: a new one for each claim costs a lone run 0.1 ms
        if role_change := self._terms.role_change():
            await connection.execute(role_change)
        self._is_pooled = self._terms.is_pooled
        if not self._is_pooled:
            opened = await connection.execute(self._terms.opening(connection))
            self._is_pooled = await opened.fetchone() is None
            if not self._is_pooled:
                await connection.execute(KEEP_PLAN)
                return connection
            _tell_of_pooler(self._terms.alias)
        if await (await connection.execute(HAS_OTHER_ISOLATION)).fetchone() == (True,):
            await connection.set_isolation_level(psycopg.IsolationLevel.READ_COMMITTED)
        return connection


def _may_be_the_connection(error: psycopg.Error) -> bool:
    """Whether another connection may fare better: always, unless the data is to blame. A standby refuses writes, say,
    and after a failover the name leads elsewhere."""
    return not isinstance(error, psycopg.DataError)


def _break(connection: Connection) -> None:
    """Shut the socket down under whoever waits for it."""
    if not connection.closed:
        with contextlib.suppress(OSError, psycopg.Error), socket.socket(fileno=os.dup(connection.fileno())) as raw:
            raw.shutdown(socket.SHUT_RDWR)


@cache
def _tell_of_pooler(alias: str) -> None:
    """Once in a process."""
    logger.warning(
        "The database %r is reached through a pooler, so no prepared statements and no session settings are used. If"
        " it pools transactions, set DISABLE_SERVER_SIDE_CURSORS for it: Django needs that too.",
        alias,
    )


def _literal(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
