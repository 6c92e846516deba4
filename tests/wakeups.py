"""Ears for the tests: what was sent on the channel of wakeups."""

from typing import Any

import psycopg

from django_dispatch.store.session import connection_params
from django_dispatch.wakeups.base import CHANNEL


class Ear:
    """A session that listens from now on."""

    def __init__(self, alias: str = "default") -> None:
        self._session: psycopg.Connection[Any] = psycopg.connect(**connection_params(alias, "test"), autocommit=True)
        self._session.execute(f"LISTEN {CHANNEL}")

    def heard(self) -> list[str]:
        """Return what was sent since this was last asked: all that comes before a wakeup of our own."""
        self._session.execute("SELECT pg_notify(%s, 'test:end')", [CHANNEL])
        payloads: list[str] = []
        for notification in self._session.notifies(timeout=10):
            if notification.payload == "test:end":
                return payloads
            payloads.append(notification.payload)
        raise AssertionError("the listener's own wakeup did not come back")

    def close(self) -> None:
        self._session.close()
