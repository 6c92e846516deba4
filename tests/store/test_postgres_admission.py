"""Two admissions at once, on PostgreSQL: who waits counts what the other one has admitted."""

from typing import Any

import pytest
from django.db import DatabaseError

from django_dispatch.store.postgres import PostgresStore

from .tables import statuses, stored
from .test_admission import NOTHING, TestRates, admit, blocked
from .test_postgres_races import backend_of, begin, commit, other, start, store, wait_until_blocked

__all__ = ["other", "start", "store"]

RATE = TestRates.RATE
del TestRates  # else it would be run here once more


def test_who_waits_for_another_admission_counts_what_it_admitted(
    store: PostgresStore, other: PostgresStore, start: Any
) -> None:
    runs = blocked(4)
    backend = backend_of(other)
    begin(store)
    admit(store, "hot")
    second = start(admit, other, "hot")
    wait_until_blocked(backend, second)
    commit(store)
    assert second.result() == NOTHING
    assert statuses(runs) == ["READY", "READY", "BLOCKED", "BLOCKED"]


def test_a_rate_is_not_paid_with_one_token_twice(store: PostgresStore, other: PostgresStore, start: Any) -> None:
    runs = blocked(4, **RATE)
    backend = backend_of(other)
    begin(store)
    admit(store, "api")
    second = start(admit, other, "api")
    wait_until_blocked(backend, second)
    commit(store)
    assert second.result().queues == []
    assert statuses(runs).count("READY") == 3


def test_other_keys_are_not_waited_for(store: PostgresStore, other: PostgresStore) -> None:
    blocked()
    (cold,) = blocked(concurrency_key="cold")
    begin(store)
    admit(store, "hot")
    admit(other, "cold")
    commit(store)
    assert stored(cold).status == "READY"


def test_under_another_isolation_level_nobody_is_admitted(store: PostgresStore) -> None:
    store.session.execute("SET default_transaction_isolation = 'repeatable read'")
    with pytest.raises(DatabaseError, match="under READ COMMITTED only"):
        admit(store, "hot")
