"""What the store's tests put into the tables and read from them: Django's models, and the database's clock."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID, uuid4

from django.db import connection
from django.db.models import F
from django.db.models.functions import Now

from django_dispatch.models import Lease, Run, Status
from django_dispatch.store.base import Store
from django_dispatch.store.sqlite_session import callers_transaction
from django_dispatch.store.sqlite_turns import line_up
from django_dispatch.store.values import ClaimedRun, NewLease, Settlement

LONG_AGO = datetime.fromisoformat("2001-01-01T00:00:00+00:00")
FAR_OFF = datetime.fromisoformat("2060-01-01T00:00:00+00:00")


def add_run(**columns: Any) -> int:
    """Add a run, READY unless said otherwise, with what its status needs."""
    status = columns.get("status")
    if status == Status.SCHEDULED:
        columns.setdefault("run_after", FAR_OFF)
    if status in (Status.SUCCESSFUL, Status.FAILED, Status.CANCELLED):
        columns.setdefault("finished_at", LONG_AGO)
    is_gated = connection.vendor != "sqlite"
    run = Run.objects.create(**{"task": "shop.add", "source": "app", **(columns if is_gated else _gated(columns))})
    if run.fair_key is not None and not is_gated:
        with callers_transaction("default") as tx:
            line_up(tx, [run.pk])
    return run.pk


def _gated(columns: dict[str, Any]) -> dict[str, Any]:
    """What the table's gate does on PostgreSQL, whoever inserts a run; on SQLite the store itself, for its own."""
    is_waiting = columns.get("concurrency_key") is not None and not columns.get("places")
    if is_waiting and columns.get("status", Status.READY) == Status.READY:
        columns["status"] = Status.BLOCKED
    if columns.get("status") == Status.BLOCKED:
        at_queue = f"queue:{columns.get('queue', 'default')}"
        columns = {"blocked_by": columns.get("concurrency_key") or at_queue, **columns}
    return columns


def add_runs(count: int, **columns: Any) -> list[int]:
    return [add_run(**columns) for _ in range(count)]


def stored(run_id: int) -> Run:
    return Run.objects.get(pk=run_id)


def columns_of(run_id: int) -> dict[str, Any]:
    """Return the whole row, to see that nothing of it changed."""
    return Run.objects.values().get(pk=run_id)


def statuses(run_ids: Sequence[int]) -> list[str]:
    return [stored(run_id).status for run_id in run_ids]


def acquire(store: Store, *, ttl_seconds: float = 60.0, **identity: Any) -> UUID:
    """Acquire a lease as a dispatcher does at boot, and return its id."""
    facts = {"node": "a node", "host": "a host", "pid": 4711, "process": {"pid": 4711}, "queues": ["default"]}
    lease = NewLease(**{"id": uuid4(), "slots": 4, "version": "1.0", **facts, **identity})
    store.acquire(lease, ttl_seconds=ttl_seconds)
    return lease.id


def expire(lease_id: UUID, *, seconds: float = 0.001) -> None:
    """Make a lease one that expired so many seconds ago."""
    assert Lease.objects.filter(pk=lease_id).update(expires_at=Now() - timedelta(seconds=seconds)) == 1


def claim(
    store: Store, lease_id: UUID, *, limit: int = 100, queues: Sequence[str] = ("default",), **options: Any
) -> Sequence[ClaimedRun]:
    return store.exchange(lease_id, [], queues=queues, limit=limit, **options).claimed


def finish(store: Store, lease_id: UUID, *settlements: Settlement) -> Sequence[int]:
    """Write settlements without claiming; return the ids that were refused."""
    exchange = store.exchange(lease_id, settlements, queues=(), limit=0)
    assert (exchange.claimed, exchange.busy) == ([], [])
    return exchange.refused


def success(run: ClaimedRun, **changes: Any) -> Settlement:
    return Settlement(run.id, run.epoch, **{"status": "SUCCESSFUL", **changes})


def add_running(store: Store, lease_id: UUID, **columns: Any) -> ClaimedRun:
    """Add a run and claim it; columns that a claim needs otherwise are set after it."""
    later = {name: columns.pop(name) for name in ("cancel_requested_at",) if name in columns}
    run_id = add_run(queue="added", **columns)
    (run,) = claim(store, lease_id, queues=["added"])
    assert run.id == run_id
    Run.objects.filter(pk=run_id).update(queue="default", **later)
    return run


def seconds_from_now(field: str, run_id: int) -> float:
    """Return how far from now a moment of a run is, by the database's clock."""
    distance = Run.objects.annotate(distance=F(field) - Now()).values_list("distance", flat=True).get(pk=run_id)
    assert isinstance(distance, timedelta)
    return distance.total_seconds()
