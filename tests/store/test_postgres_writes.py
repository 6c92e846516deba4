"""How much is written for a run: one insert and two updates; and a renewal, which touches no index."""

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from django.db import connection

from django_dispatch.store.base import Store
from django_dispatch.store.postgres import PostgresStore
from django_dispatch.store.postgres_enqueue import enqueue, enqueue_many
from django_dispatch.store.values import NewRun

from .tables import acquire, claim, success

COUNTS = "n_tup_ins, n_tup_upd, n_tup_del, n_tup_hot_upd"
RUN, LEASE = "django_dispatch_run", "django_dispatch_lease"


@pytest.fixture
def store(new_store: Callable[[], Store]) -> PostgresStore:
    store = new_store()
    assert isinstance(store, PostgresStore)
    return store


class Writes:
    """The rows written to a table since this was made: inserted, updated, deleted, and of the updates the HOT ones."""

    def __init__(self, table: str, store: PostgresStore) -> None:
        self.table = table
        self.store = store
        self.before = self.read()

    def read(self) -> tuple[int, ...]:
        if connection.pg_version >= 150000:
            flush = "SELECT pg_stat_force_next_flush()"
            self.store.session.execute(flush)
            with connection.cursor() as cursor:
                cursor.execute(flush)
        else:
            # Before version 15 a session reports on its end, and a reader sees it a moment after.
            self.store.close()
            connection.close()
        with psycopg.connect(**connection.get_connection_params(), autocommit=True) as fresh:
            row = fresh.execute(f"SELECT {COUNTS} FROM pg_stat_user_tables WHERE relname = '{self.table}'").fetchone()  # type: ignore[call-overload]
        assert row is not None
        return tuple(row)

    def since(self) -> tuple[int, ...]:
        return tuple(after - before for before, after in zip(self.before, self.read(), strict=True))


@pytest.mark.parametrize("batch", [1, 40])
def test_a_run_costs_one_insert_and_two_updates(store: PostgresStore, batch: int) -> None:
    lease_id = acquire(store)
    runs, leases = Writes(RUN, store), Writes(LEASE, store)
    enqueue_many("default", [NewRun("shop.add", args="[1]")] * (batch - 1))
    enqueue("default", NewRun("shop.add", args="[2]"))
    claimed = claim(store, lease_id, limit=batch)
    exchange = store.exchange(lease_id, [success(run, result="1") for run in claimed], queues=["default"], limit=batch)
    assert (len(claimed), exchange.claimed, exchange.refused) == (batch, [], [])
    assert runs.since()[:3] == (batch, 2 * batch, 0)
    assert leases.since() == (0, 0, 0, 0)


def test_a_renewal_is_one_heap_only_update_whatever_the_lease_holds(store: PostgresStore) -> None:
    lease_id = acquire(store)
    enqueue_many("default", [NewRun("shop.add")] * 20)
    assert len(claim(store, lease_id)) == 20
    runs, leases = Writes(RUN, store), Writes(LEASE, store)
    for _ in range(50):
        assert store.renew(lease_id, ttl_seconds=15.0, is_draining=False)
    assert leases.since() == (0, 50, 0, 50)
    assert runs.since() == (0, 0, 0, 0)


@pytest.mark.parametrize("settlements", [0, 1])
def test_a_look_that_finds_nothing_writes_nothing_but_outcomes(store: PostgresStore, settlements: int) -> None:
    lease_id = acquire(store)
    enqueue_many("default", [NewRun("shop.add")] * settlements)
    outcomes: list[Any] = [success(run) for run in claim(store, lease_id)]
    runs, leases = Writes(RUN, store), Writes(LEASE, store)
    assert store.exchange(lease_id, outcomes, queues=["default"], limit=10).refused == []
    assert runs.since()[:3] == (0, settlements, 0)
    assert leases.since() == (0, 0, 0, 0)
