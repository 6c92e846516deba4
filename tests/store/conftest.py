"""Stores for the tests, each on a session of its own as each dispatcher has, and the wakeups they send."""

from collections.abc import Callable, Iterator

import pytest

from django_dispatch.store import walks
from django_dispatch.store.base import Store
from django_dispatch.store.vendors import open_store
from tests.wakeups import Ear


@pytest.fixture(autouse=True)
def steady_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have every claim begin at the front, however slow the machine is."""
    monkeypatch.setattr(walks, "DEAR_SECONDS", float("inf"))


@pytest.fixture
def new_store(any_database: str, transactional_db: None) -> Iterator[Callable[[], Store]]:
    """Open another dispatcher's store. Every implementation keeps the contract."""
    opened: list[Store] = []

    def new() -> Store:
        opened.append(open_store("default", "test", statement_timeout_seconds=20.0))
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
