"""The verbs of a lease, as somebody calls them who runs runs by a loop of his own."""

from collections.abc import Iterator

import pytest

from django_dispatch.leases import LeaseManager
from django_dispatch.models import Lease, Run
from django_dispatch.store.values import Settlement
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import fresh
from tests.kit.waiting import wait_for


@pytest.fixture
def manager(kit: Kit) -> Iterator[LeaseManager]:
    with LeaseManager(ttl_seconds=30, node="by hand") as manager:
        yield manager


def test_a_run_is_claimed_and_finished_under_a_lease(manager: LeaseManager) -> None:
    one, two = tasks.quick.delay(), tasks.quick.apply_async(queue="other")
    lease = manager.acquire(queues=["default"], slots=2)
    assert Lease.objects.get().node == "by hand"
    assert manager.renew(lease)
    (claimed,) = manager.claim(lease, ["default"], limit=5)
    assert (claimed.id, claimed.epoch, claimed.attempt) == (one.pk, 1, 1)
    assert fresh(one).status == "RUNNING"
    stale = Settlement(claimed.id, claimed.epoch - 1, "SUCCESSFUL")
    assert manager.finish(lease, [stale]) == [one.pk]
    assert manager.finish(lease, [Settlement(claimed.id, claimed.epoch, "SUCCESSFUL", result="42")]) == []
    assert (fresh(one).status, fresh(one).result, fresh(two).status) == ("SUCCESSFUL", 42, "READY")
    assert manager.release(lease)


def test_release_gives_everything_back_at_no_cost(manager: LeaseManager) -> None:
    runs = tasks.quick.delay_many([()] * 3)
    lease = manager.acquire()
    assert len(manager.claim(lease, ["default"], limit=3)) == 3
    assert manager.release(lease)
    assert not manager.renew(lease)
    assert not manager.release(lease)
    assert [(fresh(run).status, fresh(run).attempt, fresh(run).epoch) for run in runs] == [("READY", 0, 1)] * 3
    assert not Lease.objects.exists()


def test_what_an_expired_lease_held_is_reclaimed_and_its_outcome_does_not_count(
    kit: Kit, manager: LeaseManager
) -> None:
    run = tasks.quick.delay()
    lease = manager.acquire()
    (claimed,) = manager.claim(lease, ["default"])
    assert manager.reclaim() == []
    kit.sql.execute("UPDATE django_dispatch_lease SET expires_at = clock_timestamp() - interval '3 s'")
    assert not manager.renew(lease)
    assert manager.claim(lease, ["default"]) == []
    (reclaimed,) = wait_for(manager.reclaim)
    assert (reclaimed.run_id, reclaimed.status, reclaimed.lease_id) == (run.pk, "READY", lease)
    assert manager.finish(lease, [Settlement(claimed.id, claimed.epoch, "SUCCESSFUL")]) == [run.pk]
    assert Run.objects.get().status == "READY"
