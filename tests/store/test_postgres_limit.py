"""What is bounded takes the first and no more than it was asked for, whatever plan the planner chooses for it."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import pytest
from django.db import connection

from django_dispatch.models import Run, Status
from django_dispatch.store.base import Store
from django_dispatch.store.postgres import PostgresStore
from django_dispatch.store.session import PLAN

from .tables import LONG_AGO, acquire, add_run, claim, statuses

CLAIMERS = 8
LIMIT = 3
# How many runs there are, how many of them the statistics know of, and how often each claimer claims. In a table of one
# page that is believed to be one row, a sub-select with LIMIT under IN is run for every row.
TABLES = [(10_000, None, 12), (10_000, 10_000, 12), (60, 1, 2)]
WAYS = ["hashjoin", "mergejoin", "material", "nestloop", "indexscan"]
# The session's own settings, the server's, and the server's without some ways to join and look.
DISABLED: list[tuple[str, ...] | None] = [None, (), *((way,) for way in WAYS), tuple(WAYS)]


@pytest.mark.slow
@pytest.mark.parametrize("plan_cache_mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("disabled", DISABLED, ids=str)
@pytest.mark.parametrize(("runs", "analyzed_at", "claims_each"), TABLES)
def test_each_claim_is_within_its_limit_and_each_run_claimed_once(
    new_store: Callable[[], Store],
    *,
    runs: int,
    analyzed_at: int | None,
    claims_each: int,
    disabled: tuple[str, ...] | None,
    plan_cache_mode: str,
) -> None:
    with connection.cursor() as cursor:
        for first, last in ((1, 1), (2, runs)):
            cursor.execute(
                "INSERT INTO django_dispatch_run (task, source, queue, priority)"
                " SELECT 'shop.add', 'app', 'q' || n %% 2, n %% 5 FROM generate_series(%s::bigint, %s) AS n",
                [first, last],
            )
            if analyzed_at == last:
                cursor.execute("ANALYZE django_dispatch_run, django_dispatch_lease")

    def take() -> list[list[int]]:
        store = new_store()
        assert isinstance(store, PostgresStore)
        if disabled is not None:
            for name in PLAN:
                store.session.execute(f"SET {name} TO DEFAULT")
            for way in disabled:
                store.session.execute(f"SET enable_{way} TO off")
        store.session.execute(f"SET plan_cache_mode TO {plan_cache_mode}")
        lease_id = acquire(store)
        return [
            [run.id for run in claim(store, lease_id, limit=LIMIT, queues=["q0", "q1"])] for _ in range(claims_each)
        ]

    with ThreadPoolExecutor(CLAIMERS) as threads:
        claims = [ids for claimer in [threads.submit(take) for _ in range(CLAIMERS)] for ids in claimer.result(60)]
    assert [len(ids) for ids in claims] == [LIMIT] * CLAIMERS * claims_each
    taken = list(itertools.chain.from_iterable(claims))
    assert len(set(taken)) == len(taken)
    running = Run.objects.filter(status=Status.RUNNING)
    assert set(running.values_list("pk", flat=True)) == set(taken)
    assert set(running.values_list("epoch", "attempt")) == {(1, 1)}


def test_sweeps_take_the_longest_due_without_an_index_that_says_so(
    new_store: Callable[[], Store],
) -> None:
    """Behind a pooler the planner is free to read the whole of a small table."""
    store = new_store()
    assert isinstance(store, PostgresStore)
    for way in ("seqscan", "indexscan"):
        store.session.execute(f"SET enable_{way} TO {'on' if way == 'seqscan' else 'off'}")
    later, first = (add_run(status=Status.SCHEDULED, run_after=LONG_AGO + timedelta(days=days)) for days in (1, 0))
    store.promote(limit=1)
    assert statuses([first, later]) == [Status.READY, Status.SCHEDULED]
    late, latest = (add_run(expires_at=LONG_AGO + timedelta(days=days)) for days in (1, 0))
    assert store.expire(limit=1)[0] == 1
    assert statuses([latest, late]) == [Status.CANCELLED, Status.READY]
    newer, _ = (add_run(status=Status.FAILED, finished_at=LONG_AGO + timedelta(days=days)) for days in (1, 0))
    assert store.prune(status="FAILED", age_seconds=60.0, limit=1) == 1
    assert set(Run.objects.filter(status=Status.FAILED).values_list("pk", flat=True)) == {newer}
    kept: list[Any] = [{"FAILED": 90.0}, {"FAILED": 60.0}]
    longer, _ = (add_run(status=Status.FAILED, finished_at=LONG_AGO, retention=retention) for retention in kept)
    assert store.prune_own(limit=1) == 1
    assert set(Run.objects.filter(status=Status.FAILED).values_list("pk", flat=True)) == {newer, longer}
