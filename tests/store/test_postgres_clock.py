"""Time is the database's clock at the moment of the statement, not the beginning of a transaction.

Each verb runs in a transaction that began before the moment that it must see.
"""

from collections.abc import Callable
from datetime import datetime
from uuid import UUID

import pytest
from django.db import connection

from django_dispatch.models import Lease, Status
from django_dispatch.store.base import Store
from django_dispatch.store.postgres import PostgresStore
from django_dispatch.store.postgres_enqueue import cancel, enqueue
from django_dispatch.store.values import NewRun, Settlement

from .tables import acquire, add_run, add_running, claim, finish, stored, success


def at_this_moment(statement: str, *params: object) -> datetime:
    with connection.cursor() as cursor:
        cursor.execute(f"{statement} RETURNING clock_timestamp()" if statement else "SELECT clock_timestamp()", params)
        moment: datetime = cursor.fetchone()[0]
        return moment


def now() -> datetime:
    return at_this_moment("")


def expire_now(lease_id: UUID) -> None:
    at_this_moment("UPDATE django_dispatch_lease SET expires_at = clock_timestamp() WHERE id = %s", lease_id)


@pytest.fixture
def store(new_store: Callable[[], Store]) -> PostgresStore:
    """A store in the middle of a transaction."""
    store = new_store()
    assert isinstance(store, PostgresStore)
    store.session.execute("BEGIN")
    store.session.execute("SELECT now()")
    return store


@pytest.fixture
def lease_id(other: Store) -> UUID:
    return acquire(other)


def test_a_renewal(store: PostgresStore, lease_id: UUID) -> None:
    expire_now(lease_id)
    assert not store.renew(lease_id, ttl_seconds=30.0, is_draining=False)


def test_the_end_of_a_renewed_lease(store: PostgresStore, lease_id: UUID) -> None:
    moment = now()
    assert store.renew(lease_id, ttl_seconds=0.0, is_draining=False)
    store.session.execute("COMMIT")
    lease = Lease.objects.get()
    assert lease.expires_at > moment
    assert lease.renewed_at > moment


def test_the_beginning_and_end_of_a_new_lease(store: PostgresStore) -> None:
    moment = now()
    acquire(store, ttl_seconds=0.0)
    store.session.execute("COMMIT")
    lease = Lease.objects.get()
    assert lease.acquired_at > moment
    assert lease.expires_at > moment


def test_a_claim(store: PostgresStore, lease_id: UUID) -> None:
    add_run()
    expire_now(lease_id)
    assert claim(store, lease_id) == []


def test_a_claim_of_what_has_expired(store: PostgresStore, lease_id: UUID) -> None:
    late = add_run()
    at_this_moment("UPDATE django_dispatch_run SET expires_at = clock_timestamp() WHERE id = %s", late)
    assert claim(store, lease_id) == []


def test_the_times_of_a_run(store: PostgresStore, lease_id: UUID) -> None:
    add_run()
    before_start = now()
    (run,) = claim(store, lease_id)
    before_end = now()
    finish(store, lease_id, success(run, error='{"attempt": 1}'))
    store.session.execute("COMMIT")
    row = stored(run.id)
    assert row.started_at is not None
    assert row.finished_at is not None
    assert before_start < row.started_at < before_end < row.finished_at
    assert datetime.fromisoformat(row.errors[0]["at"]) > before_end


def test_the_delay_of_a_retry(store: PostgresStore, other: Store, lease_id: UUID) -> None:
    run = add_running(other, lease_id)
    moment = now()
    finish(store, lease_id, Settlement(run.id, run.epoch, "SCHEDULED", delay_seconds=0.0))
    store.session.execute("COMMIT")
    run_after = stored(run.id).run_after
    assert run_after is not None
    assert run_after > moment


@pytest.mark.parametrize("interruptions", [0, 1])
def test_a_reclaim(store: PostgresStore, other: Store, lease_id: UUID, interruptions: int) -> None:
    run = add_running(other, lease_id, interruptions=interruptions)
    expire_now(lease_id)
    moment = now()
    assert len(store.reclaim(grace_seconds=0.0, max_interruptions=2)) == 1
    store.session.execute("COMMIT")
    row = stored(run.id)
    assert "its lease expired" in row.errors[0]["message"]
    assert datetime.fromisoformat(row.errors[0]["at"]) > moment
    assert row.finished_at is None or row.finished_at > moment


def test_promote_expire_and_prune(store: PostgresStore) -> None:
    due, late, old = add_run(status=Status.SCHEDULED), add_run(), add_run(status=Status.FAILED)
    at_this_moment("UPDATE django_dispatch_run SET expires_at = clock_timestamp() WHERE id = %s", late)
    assert store.expire(limit=10)[:2] == (1, None)
    at_this_moment("UPDATE django_dispatch_run SET run_after = clock_timestamp() WHERE id = %s", due)
    assert store.promote(limit=10) == (["default"], None, [])
    at_this_moment("UPDATE django_dispatch_run SET finished_at = clock_timestamp() WHERE id = %s", old)
    assert store.prune(status="FAILED", age_seconds=0.0, limit=10) == 1


def test_a_callers_enqueue_and_cancel(transactional_db: None) -> None:
    connection.set_autocommit(False)
    with connection.cursor() as cursor:
        cursor.execute("SELECT now()")
    try:
        moment = now()
        recorded = enqueue("default", NewRun("shop.add", delay_seconds=0.0))
        later = enqueue("default", NewRun("shop.add", delay_seconds=0.001))
        cancel("default", [recorded.id])
        row = stored(recorded.id)
        assert later.run_after is not None
        assert later.run_after > moment
        assert row.finished_at is not None
        assert row.finished_at > moment
    finally:
        connection.rollback()
        connection.set_autocommit(True)
