"""The session of whoever asks dispatchers: autocommit and its own, so that it works inside the caller's transaction."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from psycopg import sql

from . import statements
from .session import listen_params


class LiveDispatcher(NamedTuple):
    """A dispatcher whose lease is live: it should answer."""

    lease_id: UUID
    node: str
    host: str
    pid: int


class ControlSession:
    """Listens and sends. Raises psycopg's errors."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]]) -> None:
        self._connection = connection
        backend_pid = connection.execute("SELECT pg_backend_pid()").fetchone()
        self.is_through_pooler = backend_pid != (connection.pgconn.backend_pid,)
        """The session on the server is another one than libpq was told of, and may not be kept: see docs/databases.md."""

    def live(self) -> list[LiveDispatcher]:
        """Return the dispatchers that should answer."""
        return [LiveDispatcher(*row) for row in self._connection.execute(statements.LIVE)]

    def listen(self, channel: str) -> None:
        """Hear what is sent on a channel from now on."""
        self._connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))

    def send(self, channel: str, payloads: Sequence[str]) -> None:
        """Send payloads, in their order."""
        self._connection.execute(statements.SEND, {"channel": channel, "payloads": list(payloads)})

    def heard(self, seconds: float) -> Iterator[str]:
        """Yield the payloads that come within so many seconds; ends when some have come."""
        for notification in self._connection.notifies(timeout=seconds, stop_after=1):
            yield notification.payload


@contextmanager
def control_session(alias: str, listen_dsn: str | None) -> Iterator[ControlSession]:
    """Open a session on the database of an alias, or on ``listen_dsn`` where a pooler would keep it from listening."""
    with psycopg.connect(**listen_params(alias, listen_dsn, "control client"), autocommit=True) as connection:
        session = ControlSession(connection)
        try:
            yield session
        finally:
            if session.is_through_pooler:  # what listens there hears what nobody fetches
                with suppress(psycopg.Error):
                    connection.execute("UNLISTEN *")
