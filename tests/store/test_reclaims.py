"""Reclaim: the runs of a lost dispatcher go back, exactly those, and not for ever."""

from datetime import timedelta
from typing import Any
from uuid import UUID

import pytest
from django.utils import timezone

from django_dispatch.models import Lease, OnLost, Run, Status
from django_dispatch.store.base import Store
from django_dispatch.store.values import Reclaimed

from .tables import LONG_AGO, acquire, add_running, add_runs, claim, columns_of, expire, seconds_from_now, stored


def reclaim(store: Store, *, grace_seconds: float = 0.0, max_interruptions: int = 3, **options: Any) -> list[Reclaimed]:
    return list(store.reclaim(grace_seconds=grace_seconds, max_interruptions=max_interruptions, **options))


def lose(store: Store, **columns: Any) -> tuple[UUID, int]:
    """Claim a run under a lease that expires then."""
    lease_id = acquire(store, node="lost node")
    run = add_running(store, lease_id, **columns)
    expire(lease_id)
    return lease_id, run.id


def test_the_runs_of_an_expired_lease_are_ready_again_and_the_lease_is_gone(store: Store, other: Store) -> None:
    lease_id, run_id = lose(store, unique_key="k")
    Run.objects.filter(pk=run_id).update(queue="mail")
    assert reclaim(other) == [Reclaimed(run_id, "shop.add", "mail", "READY", lease_id)]
    row = stored(run_id)
    assert (row.status, row.lease_id, row.unique_key) == (Status.READY, None, "k")
    assert (row.epoch, row.attempt, row.interruptions, row.failures) == (1, 1, 1, 0)
    assert (row.run_after, row.finished_at) == (None, None)
    assert not Lease.objects.exists()
    assert not store.renew(lease_id, ttl_seconds=30.0, is_draining=False)


def test_a_lost_attempt_is_on_record(store: Store) -> None:
    _, run_id = lose(store, attempt=1, errors=[{"attempt": 1}])
    reclaim(store)
    first, lost = stored(run_id).errors
    assert first == {"attempt": 1}
    assert timezone.datetime.fromisoformat(lost.pop("at")) > LONG_AGO
    assert lost == {
        "attempt": 2,
        "kind": "lost",
        "message": "The dispatcher was lost: its lease expired (node lost node, pid 4711 on a host)",
        "executor": "lost node",
    }


def test_live_leases_and_those_within_the_grace_keep_their_runs(store: Store, other: Store) -> None:
    live = add_running(store, acquire(store))
    _, within = lose(store)
    before = [columns_of(run_id) for run_id in (live.id, within)]
    assert reclaim(other, grace_seconds=60.0) == []
    assert [columns_of(run_id) for run_id in (live.id, within)] == before
    assert Lease.objects.count() == 2


def test_the_grace_ends(store: Store) -> None:
    lease_id, run_id = lose(store)
    expire(lease_id, seconds=61.0)
    assert [run.run_id for run in reclaim(store, grace_seconds=60.0)] == [run_id]


def test_a_dead_lease_is_reclaimed_before_it_expires(store: Store, other: Store) -> None:
    dead, live = acquire(store, node="dead node"), acquire(store)
    lost, kept = add_running(store, dead), add_running(store, live)
    assert [run.run_id for run in reclaim(other, dead_leases=[dead])] == [lost.id]
    assert "its process died" in stored(lost.id).errors[0]["message"]
    assert stored(kept.id).lease_id == live
    assert Lease.objects.get().pk == live


def test_runs_whose_lease_does_not_exist_are_reclaimed(store: Store, other: Store) -> None:
    lease_id = acquire(store)
    run = add_running(store, lease_id)
    kept = add_running(other, acquire(other))
    Lease.objects.filter(pk=lease_id).delete()
    assert reclaim(other, grace_seconds=60.0) == [Reclaimed(run.id, "shop.add", "default", "READY", lease_id)]
    row = stored(run.id)
    assert (row.status, row.lease_id, row.interruptions) == (Status.READY, None, 1)
    assert "its lease does not exist" in row.errors[0]["message"]
    assert stored(kept.id).status == Status.RUNNING


@pytest.mark.parametrize("is_orphan", [False, True])
@pytest.mark.parametrize(
    ("columns", "status", "delay_seconds"),
    [
        ({"interruptions": 0}, Status.READY, None),
        ({"interruptions": 1}, Status.SCHEDULED, 2),
        ({"interruptions": 2}, Status.SCHEDULED, 4),
        ({"interruptions": 3}, Status.SCHEDULED, 8),
        ({"interruptions": 98}, Status.SCHEDULED, 3600),
        ({"interruptions": 99}, Status.FAILED, None),
        ({"on_lost": OnLost.FAIL}, Status.FAILED, None),
        ({"cancel_requested_at": LONG_AGO}, Status.CANCELLED, None),
        ({"cancel_requested_at": LONG_AGO, "on_lost": OnLost.FAIL}, Status.CANCELLED, None),
        ({"cancel_requested_at": LONG_AGO, "interruptions": 1}, Status.CANCELLED, None),
    ],
)
def test_what_becomes_of_a_lost_run(
    store: Store, columns: dict[str, Any], status: Status, delay_seconds: float | None, is_orphan: bool
) -> None:
    lease_id, run_id = lose(store, unique_key="k", **columns)
    if is_orphan:
        Lease.objects.filter(pk=lease_id).delete()
    assert [run.status for run in reclaim(store, max_interruptions=100)] == [status]
    row = stored(run_id)
    assert (row.status, row.lease_id) == (status, None)
    assert row.interruptions == columns.get("interruptions", 0) + 1
    assert (row.finished_at is not None, row.unique_key) == ((True, None) if row.is_final else (False, "k"))
    if delay_seconds is None:
        assert row.run_after is None
    else:
        assert delay_seconds - 1 < seconds_from_now("run_after", run_id) <= delay_seconds


def test_a_run_claimed_as_at_most_once_is_not_repeated(store: Store, other: Store) -> None:
    lease_id = acquire(store)
    add_runs(1, task="shop.pay")
    claim(store, lease_id, at_most_once_tasks=["shop.pay"])
    expire(lease_id)
    assert [run.status for run in reclaim(other)] == ["FAILED"]


def test_reclaiming_twice_takes_once(store: Store, other: Store) -> None:
    _, run_id = lose(store)
    assert len(reclaim(store)) == 1
    before = columns_of(run_id)
    assert reclaim(other) == []
    assert columns_of(run_id) == before


def test_an_expired_lease_without_runs_goes_too(store: Store) -> None:
    expire(acquire(store))
    assert reclaim(store) == []
    assert not Lease.objects.exists()


def test_a_mass_death_is_reclaimed_oldest_first_in_a_few_sweeps(store: Store) -> None:
    lost = [lose(store) for _ in range(25)]
    for age, (lease_id, _) in enumerate(lost):
        Lease.objects.filter(pk=lease_id).update(expires_at=LONG_AGO - timedelta(days=age))
    first = {run.run_id for run in reclaim(store)}
    assert 0 < len(first) < 25
    assert first == {run_id for _, run_id in lost[-len(first) :]}
    reclaim(store)
    assert not Run.objects.filter(status=Status.RUNNING).exists()
