"""Stores for the tests, each on a session of its own as each dispatcher has, and the wakeups they send."""

from collections.abc import Callable, Iterator

import pytest

from django_dispatch.store.base import Store
from django_dispatch.store.postgres import open_store
from tests.wakeups import Ear

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
def ear(transactional_db: None) -> Iterator[Ear]:
    ear = Ear()
    yield ear
    ear.close()
