"""Tasks with limits, and what becomes of their duplicates: each writes the ledger, its key as the note."""

from django_dispatch import TaskContext, task

from .ledger import Entry


@task(bind=True, concurrency=1, key="{key}")
def one(ctx: TaskContext, key: str, gate: str = "", number: int = 0) -> None:
    """One of each key at once."""
    _body(ctx, key, gate)


@task(bind=True, concurrency=3, key="{key}", max_attempts=3)
def three(ctx: TaskContext, key: str, gate: str = "", number: int = 0) -> None:
    """Three of each key at once."""
    _body(ctx, key, gate)


@task(bind=True, on_duplicate="serial", key="{key}", max_attempts=3)
def serial(ctx: TaskContext, key: str, gate: str = "", number: int = 0, failures: int = 0) -> None:
    """One after the other."""
    _body(ctx, key, gate)
    if ctx.attempt <= failures:
        raise ValueError("not yet")


@task(bind=True, on_duplicate="queue_one", key="{key}")
def queue_one(ctx: TaskContext, key: str, gate: str = "", number: int = 0) -> None:
    """One, and one that waits."""
    _body(ctx, key, gate)


@task(bind=True, rate="20/s", key="{key}")
def rated(ctx: TaskContext, key: str, number: int = 0) -> None:
    """Twenty of each key in a second."""
    _body(ctx, key, "")


@task(bind=True, concurrency=1, key="{key}")
def each(ctx: TaskContext, key: str) -> None:
    """One occurrence after the other."""
    _body(ctx, key, "")


@task(bind=True, fair_key="tenant-{tenant}")
def of_tenant(ctx: TaskContext, tenant: str, gate: str = "") -> None:
    """Each tenant in turn."""
    _body(ctx, tenant, gate)


@task(fair_key=lambda tenant: tenant.upper(), concurrency=2)
def of_tenant_at_a_limit(tenant: str) -> None:
    """Two of all tenants at once, by a function."""


@task(bind=True, on_duplicate="discard")
def discard(ctx: TaskContext, number: int, gate: str = "", *, label: str = "") -> None:
    """Not while there is one with these arguments."""
    _body(ctx, str(number), gate)


@task(on_duplicate="discard", key="order-{number}", unique_for=60)
def once_a_minute(number: int) -> None:
    """Not within a minute of the last."""


@task(on_duplicate="replace", key="{key}")
def replace(key: str, number: int = 0) -> None:
    """The newest that waits."""


@task(concurrency=2, rate="5/m")
def whole(number: int = 0) -> None:
    """A limit of the task as a whole."""


@task(bind=True, atomic=True, concurrency=1, on_duplicate="discard", unique_for=60)
def atomic(ctx: TaskContext, number: int) -> None:
    """One at once, whose success is part of its transaction."""
    _body(ctx, "atomic", "")


def _body(ctx: TaskContext, key: str, gate: str) -> None:
    with Entry(ctx, note=key) as entry:
        if gate:
            entry.wait_at(gate)
        else:
            entry.see()
