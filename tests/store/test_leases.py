"""Leases: a dispatcher's right to its runs lives by the database's clock, and ends for good."""

from datetime import timedelta
from uuid import uuid4

import pytest
from django.db import IntegrityError

from django_dispatch.models import Lease
from django_dispatch.store.base import Store
from django_dispatch.store.values import Neighbour
from tests.wakeups import Ear

from .tables import acquire, add_running, expire, finish, success


def test_a_lease_is_live_for_its_ttl_and_says_whose_it_is(store: Store) -> None:
    lease_id = acquire(
        store, ttl_seconds=15.0, node="n1", host="h1", pid=7, process={"boot": "x"}, queues=["a", "b"], slots=3
    )
    lease = Lease.objects.get()
    assert (lease.pk, lease.node, lease.host, lease.pid, lease.slots) == (lease_id, "n1", "h1", 7, 3)
    assert (lease.process, lease.queues, lease.version, lease.state) == ({"boot": "x"}, ["a", "b"], "1.0", "ACTIVE")
    assert lease.expires_at - lease.acquired_at == timedelta(seconds=15)
    assert lease.renewed_at == lease.acquired_at


def test_a_new_lease_wakes_the_dispatchers_of_its_host(store: Store, ear: Ear) -> None:
    acquire(store, host="h1")
    assert ear.heard() == ["lease:h1"]


def test_a_lease_is_acquired_once(store: Store, other: Store) -> None:
    lease_id = acquire(store)
    with pytest.raises(IntegrityError):
        acquire(other, id=lease_id)


@pytest.mark.parametrize(("is_draining", "state"), [(False, "ACTIVE"), (True, "DRAINING")])
def test_renewing_extends_a_live_lease_from_now(store: Store, is_draining: bool, state: str) -> None:
    lease_id = acquire(store, ttl_seconds=5.0)
    before = Lease.objects.get()
    assert store.renew(lease_id, ttl_seconds=30.0, is_draining=is_draining)
    after = Lease.objects.get()
    assert after.renewed_at > before.renewed_at
    assert timedelta(seconds=29.9) < after.expires_at - after.renewed_at < timedelta(seconds=30.1)
    assert after.state == state
    assert after.acquired_at == before.acquired_at


def test_an_expired_lease_cannot_be_renewed(store: Store) -> None:
    lease_id = acquire(store)
    expire(lease_id)
    before = Lease.objects.values().get()
    assert not store.renew(lease_id, ttl_seconds=30.0, is_draining=False)
    assert Lease.objects.values().get() == before


def test_a_lease_that_does_not_exist_cannot_be_renewed(store: Store) -> None:
    assert not store.renew(uuid4(), ttl_seconds=30.0, is_draining=False)


def test_renewing_leaves_the_leases_of_others_alone(store: Store, other: Store) -> None:
    lease_id, others = acquire(store), acquire(other)
    before = Lease.objects.values().get(pk=others)
    assert store.renew(lease_id, ttl_seconds=90.0, is_draining=True)
    assert Lease.objects.values().get(pk=others) == before


def test_a_lease_is_surrendered_when_it_holds_no_run(store: Store, other: Store) -> None:
    lease_id, others = acquire(store), acquire(other)
    run = add_running(store, lease_id)
    add_running(other, others)
    assert not store.surrender(lease_id)
    assert Lease.objects.filter(pk=lease_id).exists()
    finish(store, lease_id, success(run))
    assert store.surrender(lease_id)
    assert not store.surrender(lease_id)
    assert Lease.objects.get().pk == others


def test_neighbours_are_the_other_leases_of_the_host(store: Store) -> None:
    own = acquire(store, host="here", node="own")
    near = acquire(store, host="here", node="near", process={"boot": "x", "pid": 7})
    acquire(store, host="there", node="far")
    neighbour = Neighbour(near, "near", {"boot": "x", "pid": 7})
    assert store.neighbours(host="here", besides=own) == [neighbour]
    assert {found.lease_id for found in store.neighbours(host="here", besides=None)} == {own, near}
