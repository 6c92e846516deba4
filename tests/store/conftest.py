"""Stores for the tests, each on a session of its own as each dispatcher has, and the wakeups they send."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from django_dispatch.store.base import Store
from django_dispatch.store.postgres import open_store
from django_dispatch.store.session import connection_params
from django_dispatch.wakeups.base import CHANNEL

# Every implementation of Store keeps the contract: one line here runs it over another one.
IMPLEMENTATIONS: dict[str, Callable[[], Store]] = {
    "postgres": lambda: open_store("default", "test", statement_timeout_seconds=20.0),
}


@pytest.fixture(params=IMPLEMENTATIONS)
def new_store(request: pytest.FixtureRequest, transactional_db: None) -> Iterator[Callable[[], Store]]:
    """Open another dispatcher's store."""
    opened: list[Store] = []

    def new() -> Store:
        opened.append(IMPLEMENTATIONS[request.param]())
        return opened[-1]

    yield new
    for store in opened:
        store.close()


@pytest.fixture
def store(new_store: Callable[[], Store]) -> Store:
    return new_store()


@pytest.fixture
def other(new_store: Callable[[], Store]) -> Store:
    """The store of a second dispatcher."""
    return new_store()


@pytest.fixture
def listen(transactional_db: None) -> Iterator[Callable[[], Callable[[], list[str]]]]:
    """Start to listen; what is returned tells the wakeups heard since it was last asked."""
    with contextlib.ExitStack() as stack:

        def start() -> Callable[[], list[str]]:
            listening: psycopg.Connection[Any] = psycopg.connect(
                **connection_params("default", "test"), autocommit=True
            )
            stack.callback(listening.close)
            listening.execute(f"LISTEN {CHANNEL}")
            return lambda: heard_by(listening)

        yield start


def heard_by(listening: psycopg.Connection[Any]) -> list[str]:
    """Return all that came before a wakeup of our own."""
    listening.execute("SELECT pg_notify(%s, 'test:end')", [CHANNEL])
    heard: list[str] = []
    for notification in listening.notifies(timeout=10):
        if notification.payload == "test:end":
            return heard
        heard.append(notification.payload)
    raise AssertionError("the listener's own wakeup did not come back")
