"""The wait for wakeups: no transaction is missed that wrote a run before it could see that somebody waits."""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from django_dispatch.store.base import Store
from django_dispatch.store.session import connection_params
from tests.kit.waiting import wait_for

from .tables import acquire

INSERT = "INSERT INTO django_dispatch_run (task) VALUES ('t')"


@pytest.fixture
def new_session(transactional_db: None) -> Iterator[Callable[[], psycopg.Connection[Any]]]:
    """Open a session of somebody who inserts by SQL, by transactions of its own."""
    opened: list[psycopg.Connection[Any]] = []

    def new() -> psycopg.Connection[Any]:
        opened.append(psycopg.connect(**connection_params("default", "test")))
        return opened[-1]

    yield new
    for session in opened:
        session.close()


def test_a_mark_has_passed_when_all_have_ended_that_wrote_before_it(
    store: Store, new_session: Callable[[], psycopg.Connection[Any]]
) -> None:
    before, after = new_session(), new_session()
    before.execute(INSERT)
    mark = store.mark()
    after.execute(INSERT)
    assert not store.has_passed(mark)
    before.commit()
    wait_for(lambda: store.has_passed(mark), what="those of other databases, too")
    assert not store.has_passed(store.mark())
    after.rollback()


def test_a_mark_is_newer_than_who_wrote_while_the_word_was_being_committed(
    store: Store, new_session: Callable[[], psycopg.Connection[Any]]
) -> None:
    """The newest of all transactions: no snapshot counts it as running, and it did not see that we wait."""
    waiter, writer = new_session(), new_session()
    lease_id = acquire(store)
    store.say_waiting(lease_id, queues=["*"], is_waiting=False)
    waiter.execute("UPDATE django_dispatch_waiter SET is_waiting = true")
    writer.execute(INSERT)
    waiter.commit()
    mark = store.mark()
    assert not store.has_passed(mark)
    writer.commit()
    wait_for(lambda: store.has_passed(mark), what="those of other databases, too")
