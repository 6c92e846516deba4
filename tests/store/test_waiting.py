"""The wait for wakeups: a dispatcher's word lives as long as its lease, and no transaction that missed it is missed."""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest

from django_dispatch.models import Lease, Waiter
from django_dispatch.store.base import Store
from django_dispatch.store.session import connection_params

from .tables import acquire, add_running, expire

INSERT = "INSERT INTO django_dispatch_run (task) VALUES ('t')"


def words() -> dict[UUID, tuple[list[str], bool]]:
    return {waiter.pk: (waiter.queues, waiter.is_waiting) for waiter in Waiter.objects.all()}


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


def test_what_was_said_last_counts(store: Store) -> None:
    lease_id, others = acquire(store), acquire(store)
    assert store.say_waiting(lease_id, queues=["a", "b*"], is_waiting=True)
    assert store.say_waiting(others, queues=["*"], is_waiting=False)
    assert words() == {lease_id: (["a", "b*"], True), others: (["*"], False)}
    assert store.say_waiting(lease_id, queues=["a", "b*"], is_waiting=False)
    assert words()[lease_id] == (["a", "b*"], False)


def test_without_a_live_lease_nothing_is_said(store: Store) -> None:
    assert not store.say_waiting(uuid4(), queues=["*"], is_waiting=True)
    lease_id = acquire(store)
    assert store.say_waiting(lease_id, queues=["*"], is_waiting=True)
    expire(lease_id)
    assert not store.say_waiting(lease_id, queues=["*"], is_waiting=False)
    assert words() == {lease_id: (["*"], True)}


def test_the_word_goes_when_the_lease_is_surrendered(store: Store) -> None:
    lease_id, others = acquire(store), acquire(store)
    for each in (lease_id, others):
        store.say_waiting(each, queues=["*"], is_waiting=True)
    add_running(store, others)
    assert store.surrender(lease_id)
    assert not store.surrender(others)
    assert list(words()) == [others]


@pytest.mark.parametrize("is_dead", [True, False])
def test_the_word_goes_when_the_lease_is_reclaimed(store: Store, is_dead: bool) -> None:
    lease_id, others = acquire(store), acquire(store)
    for each in (lease_id, others):
        store.say_waiting(each, queues=["*"], is_waiting=True)
    if not is_dead:
        expire(lease_id, seconds=10)
    store.reclaim(grace_seconds=2, max_interruptions=3, dead_leases=[lease_id] if is_dead else [])
    assert list(words()) == [others]


def test_a_word_without_a_lease_goes_with_the_next_sweep(store: Store) -> None:
    """Dispatchers of an older version delete leases too."""
    lease_id = acquire(store)
    store.say_waiting(lease_id, queues=["*"], is_waiting=False)
    Lease.objects.all().delete()
    store.reclaim(grace_seconds=2, max_interruptions=3)
    assert words() == {}


def test_a_mark_has_passed_when_all_have_ended_that_wrote_before_it(
    store: Store, new_session: Callable[[], psycopg.Connection[Any]]
) -> None:
    before, after = new_session(), new_session()
    before.execute(INSERT)
    mark = store.mark()
    after.execute(INSERT)
    assert not store.has_passed(mark)
    before.commit()
    assert store.has_passed(mark)
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
    assert store.has_passed(mark)
