"""The session of whoever asks dispatchers: autocommit and its own, so that it works inside the caller's transaction."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple
from uuid import UUID

import psycopg
from django.db import DatabaseError
from psycopg import sql

from . import statements
from .session import listen_params

SHARING_ROUNDS = 10


class LiveDispatcher(NamedTuple):
    """A dispatcher whose lease is live: it should answer."""

    lease_id: UUID
    node: str
    host: str
    pid: int


class ControlSession:
    """Listens and sends."""

    def __init__(self, connection: psycopg.Connection[tuple[Any, ...]], params: dict[str, Any]) -> None:
        self._connection = connection
        self._params = params

    def can_listen(self) -> bool:
        """Whether no pooler lends this session to others after each transaction; as the dispatcher's listener sees it.

        Nothing is left behind there, unlike after a LISTEN that hears nothing.
        """
        ours = _backend_pid(self._connection)
        if ours == self._connection.pgconn.backend_pid:
            return True
        with psycopg.connect(**self._params) as other:
            for _ in range(SHARING_ROUNDS):
                if _backend_pid(self._connection) != ours or _backend_pid(other) == ours:
                    return False
                other.rollback()
        return True

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


def _backend_pid(connection: psycopg.Connection[tuple[Any, ...]]) -> int | None:
    row = connection.execute("SELECT pg_backend_pid()", prepare=False).fetchone()
    return int(row[0]) if row else None


@contextmanager
def control_session(alias: str, listen_dsn: str | None) -> Iterator[ControlSession]:
    """Open a session on the database of an alias, or on ``listen_dsn`` where a pooler would keep it from listening.

    Raises ``django.db.DatabaseError``, also for what is done in it.
    """
    params = listen_params(alias, listen_dsn, "control client")
    try:
        with psycopg.connect(**params, autocommit=True) as connection:
            yield ControlSession(connection, params)
    except psycopg.Error as error:
        raise DatabaseError(str(error)) from error
