"""For how long a run has been due: since it was enqueued, or its time came, or it was READY again."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db.models.functions import Now

from django_dispatch.models import Lease, Run, Status
from django_dispatch.store.base import Store
from django_dispatch.store.values import Settlement

from .tables import acquire, add_run, add_running, claim, expire, finish, stored

HOUR = 3600.0


def hour_old(run_id: int) -> None:
    Run.objects.filter(pk=run_id).update(enqueued_at=Now() - timedelta(hours=1))


def due_seconds(store: Store, run_id: int) -> float:
    """Return what a claim says, and the backlog before it, if that is one thing."""
    (backlog,) = store.backlogs()
    assert backlog.ready == 1
    (run,) = claim(store, acquire(store), queues=["default", "added"])
    assert run.id == run_id
    assert run.due_seconds == pytest.approx(backlog.oldest_seconds, abs=30)
    return run.due_seconds


def test_since_it_was_enqueued(store: Store) -> None:
    run_id = add_run()
    hour_old(run_id)
    assert due_seconds(store, run_id) == pytest.approx(HOUR, abs=60)


def test_since_its_time_came(store: Store) -> None:
    run_id = add_run(status=Status.SCHEDULED)
    hour_old(run_id)
    Run.objects.filter(pk=run_id).update(run_after=Now() - timedelta(seconds=100))
    store.promote(limit=10)
    assert due_seconds(store, run_id) == pytest.approx(100, abs=60)


@pytest.mark.parametrize("was_started", [True, False])
def test_since_it_was_given_back_unless_it_never_started(store: Store, was_started: bool) -> None:
    lease_id = acquire(store)
    run = add_running(store, lease_id)
    hour_old(run.id)
    assert finish(store, lease_id, Settlement(run.id, run.epoch, "READY", was_started=was_started)) == []
    assert due_seconds(store, run.id) == pytest.approx(0 if was_started else HOUR, abs=60)


def test_since_it_was_reclaimed(store: Store) -> None:
    lease_id = acquire(store)
    run = add_running(store, lease_id)
    hour_old(run.id)
    expire(lease_id, seconds=10)
    store.reclaim(grace_seconds=2.0, max_interruptions=3)
    assert stored(run.id).status == Status.READY
    assert due_seconds(store, run.id) == pytest.approx(0, abs=60)


def test_a_backlog_is_counted_by_queue_and_its_oldest_may_have_the_lowest_priority(store: Store) -> None:
    first = add_run(queue="a", priority=-100)
    for priority in (100, 0, 0):
        add_run(queue="a", priority=priority)
    add_run(queue="b")
    add_run(queue="c", status=Status.SCHEDULED)
    hour_old(first)
    found = {backlog.queue: backlog for backlog in store.backlogs()}
    assert {queue: backlog.ready for queue, backlog in found.items()} == {"a": 4, "b": 1}
    assert found["a"].oldest_seconds == pytest.approx(HOUR, abs=60)
    assert found["b"].oldest_seconds < 60


def test_live_leases_are_counted_by_state(store: Store) -> None:
    assert store.live_leases() == {}
    expire(acquire(store))
    for _ in range(2):
        acquire(store)
    Lease.objects.create(id=uuid4(), state="DRAINING", expires_at=Now() + timedelta(seconds=60))
    assert store.live_leases() == {"ACTIVE": 2, "DRAINING": 1}
