"""While a long transaction elsewhere keeps dead rows alive: what a claim reads, what a renewal adds, what comes after.

Pages are counted, not milliseconds.
"""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
from django.db import connection

from django_dispatch.store.base import Store
from django_dispatch.store.exchange import Call
from django_dispatch.store.postgres import PostgresStore
from django_dispatch.store.postgres_enqueue import enqueue_many
from django_dispatch.store.values import NewRun, Wanted
from django_dispatch.store.walks import Walks
from tests.kit.waiting import wait_for

from .tables import acquire, claim, success

CONSUMED = 4_000
BATCH = 100
RENEWALS = 300
PAGE_BYTES = 8192


@pytest.fixture
def store(new_store: Callable[[], Store]) -> PostgresStore:
    store = new_store()
    assert isinstance(store, PostgresStore)
    return store


@pytest.fixture
def horizon(transactional_db: None) -> Iterator[psycopg.Connection[Any]]:
    """A transaction elsewhere that sees the tables as they were."""
    with psycopg.connect(**connection.get_connection_params()) as elsewhere:
        elsewhere.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        elsewhere.execute("SELECT count(*) FROM django_dispatch_run")
        yield elsewhere


def pages_of_a_claim(store: PostgresStore, lease_id: Any) -> int:
    """Claim one run and put it back; return how many pages the server looked at."""
    wanted = Wanted(queues=["default"], limit=1)
    call = Call(lease_id, [], wanted, Walks().begin(wanted))
    store.session.execute("BEGIN")
    statement = f"EXPLAIN (ANALYZE, BUFFERS, TIMING OFF, FORMAT JSON) {call.statement}"
    row = store.session.execute(statement, call.params).fetchone()
    store.session.execute("ROLLBACK")
    assert row is not None
    plan = row[0][0]["Plan"]
    assert plan["Actual Rows"] == 1
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"])


def consume(store: PostgresStore, lease_id: Any) -> None:
    settlements = [success(run) for run in claim(store, lease_id, limit=BATCH)]
    while settlements:
        exchange = store.exchange(lease_id, settlements, queues=["default"], limit=BATCH)
        settlements = [success(run) for run in exchange.claimed]


def test_a_claim_walks_over_what_was_consumed_once_and_not_at_all_when_it_is_over(
    store: PostgresStore, horizon: psycopg.Connection[Any]
) -> None:
    with connection.cursor() as cursor:
        cursor.execute("ALTER TABLE django_dispatch_run SET (autovacuum_enabled = off)")
    try:
        lease_id = acquire(store)
        enqueue_many("default", [NewRun("shop.add")] * CONSUMED)
        consume(store, lease_id)
        enqueue_many("default", [NewRun("shop.add")])
        held = pages_of_a_claim(store, lease_id)
        assert CONSUMED / 100 < held < 5 * CONSUMED
        horizon.rollback()
        # The first one marks what it walks over as dead; an autovacuum elsewhere may see them for a while.
        wait_for(lambda: pages_of_a_claim(store, lease_id) < CONSUMED / 40, what="claims that walk over nothing")
    finally:
        with connection.cursor() as cursor:
            cursor.execute("ALTER TABLE django_dispatch_run RESET (autovacuum_enabled)")


def test_renewals_write_no_run_and_little_else(store: PostgresStore, horizon: psycopg.Connection[Any]) -> None:
    lease_id = acquire(store)
    enqueue_many("default", [NewRun("shop.add", args=f'["{"x" * 2000}"]')] * BATCH)
    assert len(claim(store, lease_id)) == BATCH

    def sizes() -> tuple[int, int]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_relation_size('django_dispatch_run'), pg_relation_size('django_dispatch_lease')")
            runs, leases = cursor.fetchone()
            return runs, leases

    before = sizes()
    for _ in range(RENEWALS):
        assert store.renew(lease_id, ttl_seconds=60.0, is_draining=False)
    after = sizes()
    assert after[0] == before[0]
    assert after[1] - before[1] <= RENEWALS * 400 + PAGE_BYTES
