"""Claims that begin further on: what they find, what they leave for the next whole one, and what they read.

Every claim counts as dear here, by a clock of the test.
"""

from collections.abc import Callable, Iterator
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.db import connection

from django_dispatch.models import Run
from django_dispatch.store import walks
from django_dispatch.store.base import Store
from django_dispatch.store.exchange import Call
from django_dispatch.store.postgres import PostgresStore
from django_dispatch.store.postgres_enqueue import enqueue_many
from django_dispatch.store.values import Exchange, NewRun, Settlement, Wanted
from django_dispatch.store.walks import LONGEST_PAUSE_SECONDS, Walks

from .tables import acquire, add_run, add_runs, claim, finish, success

MANY = 4_000
BACKLOG = 20_000


class DearStore(PostgresStore):
    """Every look at its clock takes two tenths of a second."""

    def __init__(self, store: PostgresStore) -> None:
        super().__init__(store.session)
        self.now = 0.0
        self._walks = Walks(self._clock)

    def _clock(self) -> float:
        self.now += 0.2
        return self.now


@pytest.fixture(autouse=True)
def steady_claims() -> None:
    """They are not."""


@pytest.fixture
def store(new_store: Callable[[], Store], monkeypatch: pytest.MonkeyPatch) -> DearStore:
    monkeypatch.setattr(walks, "VAIN_SECONDS", 0.0)
    monkeypatch.setattr(walks, "FIRST_PAUSE_SECONDS", LONGEST_PAUSE_SECONDS)
    store = new_store()
    assert isinstance(store, PostgresStore)
    return DearStore(store)


def ids(exchange: Exchange) -> list[int]:
    return [run.id for run in exchange.claimed]


def take(store: Store, lease_id: UUID, limit: int, *queues: str, **options: Any) -> Exchange:
    return store.exchange(lease_id, [], queues=queues or ("default",), limit=limit, **options)


def test_they_find_what_has_come_since_in_its_order(store: DearStore) -> None:
    lease_id = acquire(store)
    low = add_runs(3, priority=-1)
    usual = add_runs(3)
    assert ids(take(store, lease_id, 2)) == usual[:2]
    top, mail = add_run(priority=100), add_run(queue="mail")
    exchange = take(store, lease_id, 100, "mail", "default")
    assert ids(exchange) == [mail, top, usual[2], *low]
    assert exchange.rest_seconds is not None
    assert 0.0 < exchange.rest_seconds <= LONGEST_PAUSE_SECONDS


def test_what_comes_in_further_ahead_is_found_by_the_next_whole_one(store: DearStore) -> None:
    lease_id = acquire(store)
    first, _ = add_runs(2)
    claimed = claim(store, lease_id, limit=2)
    finish(store, lease_id, success(claimed[0], status="READY", was_started=False))
    exchange = take(store, lease_id, 1)
    assert ids(exchange) == []
    assert exchange.rest_seconds is not None
    store.now += LONGEST_PAUSE_SECONDS
    exchange = take(store, lease_id, 2)
    assert (ids(exchange), exchange.rest_seconds) == ([first], None)


def test_after_nothing_was_found_they_begin_behind_all_there_was(store: DearStore) -> None:
    lease_id = acquire(store)
    add_run()
    (run,) = claim(store, lease_id, limit=1)
    assert ids(take(store, lease_id, 1, "mail")) == []
    store.now += LONGEST_PAUSE_SECONDS
    assert ids(take(store, lease_id, 1)) == []
    finish(store, lease_id, success(run, status="READY", was_started=False))
    new = add_run()
    assert ids(take(store, lease_id, 2)) == [new]
    store.now += LONGEST_PAUSE_SECONDS
    assert ids(take(store, lease_id, 2)) == [run.id]


def test_finishing_goes_on_meanwhile(store: DearStore) -> None:
    lease_id = acquire(store)
    add_runs(2)
    (first,) = claim(store, lease_id, limit=1)
    exchange = store.exchange(lease_id, [success(first), Settlement(-1, 9, "SUCCESSFUL")], queues=["default"], limit=1)
    assert (len(exchange.claimed), exchange.refused) == (1, [-1])
    assert Run.objects.get(pk=first.id).status == "SUCCESSFUL"


# what they read


def pages_of(store: DearStore, lease_id: UUID, wanted: Wanted) -> tuple[int, bool]:
    """Make a claim and take it back; return how many pages the server looked at, and whether it was whole."""
    walk = store._walks.begin(wanted)
    call = Call(lease_id, [], wanted, walk)
    store.session.execute("BEGIN")
    row = store.session.execute(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {call.statement}", call.params).fetchone()
    store.session.execute("ROLLBACK")
    assert row is not None
    plan = row[0][0]["Plan"]
    assert plan["Actual Rows"] == 1
    return int(plan["Shared Hit Blocks"] + plan["Shared Read Blocks"]), walk.is_whole


@pytest.fixture
def horizon(transactional_db: None) -> Iterator[None]:
    """A transaction elsewhere that sees the tables as they were, and no autovacuum."""
    with psycopg.connect(**connection.get_connection_params()) as elsewhere:
        elsewhere.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
        elsewhere.execute("SELECT count(*) FROM django_dispatch_run")
        yield


def test_they_do_not_walk_over_what_an_old_snapshot_keeps(horizon: None, store: DearStore) -> None:
    lease_id, wanted = acquire(store), Wanted(queues=["default"], limit=1)
    enqueue_many("default", [NewRun("shop.add")] * MANY)
    for _ in range(MANY // 1000):
        assert len(claim(store, lease_id, limit=1000)) == 1000
    add_run()
    further_on, is_whole = pages_of(store, lease_id, wanted)
    assert not is_whole
    store.now += LONGEST_PAUSE_SECONDS
    whole, is_whole = pages_of(store, lease_id, wanted)
    assert is_whole
    assert further_on < 50 < MANY / 100 + 50 < whole


def test_they_do_not_walk_over_the_backlog_of_a_full_lane(store: DearStore) -> None:
    lease_id, wanted = acquire(store), Wanted(queues=["default"], limit=1, excluded_tasks=["shop.add"])
    enqueue_many("default", [NewRun("shop.add")] * BACKLOG)
    assert ids(take(store, lease_id, 1, excluded_tasks=["shop.add"])) == []
    add_run(task="shop.other")
    further_on, is_whole = pages_of(store, lease_id, wanted)
    assert not is_whole
    store.now += LONGEST_PAUSE_SECONDS
    whole, is_whole = pages_of(store, lease_id, wanted)
    assert is_whole
    # Of the index too, where the server can skip through it: from PostgreSQL 18 on.
    assert further_on < 0.6 * whole
