"""The wait for wakeups: a dispatcher's word lives as long as its lease."""

from uuid import UUID, uuid4

import pytest

from django_dispatch.models import Lease, Waiter
from django_dispatch.store.base import Store

from .tables import acquire, add_running, expire


def words() -> dict[UUID, tuple[list[str], bool]]:
    return {waiter.pk: (waiter.queues, waiter.is_waiting) for waiter in Waiter.objects.all()}


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
