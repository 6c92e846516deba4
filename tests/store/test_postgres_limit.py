"""A claim takes no more than it was asked for and no run twice, whatever plan the planner chooses for it."""

import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from django.db import connection

from django_dispatch.models import Run, Status
from django_dispatch.store.base import Store
from django_dispatch.store.postgres import PostgresStore
from django_dispatch.store.session import PLAN

from .tables import acquire, claim

RUNS = 10_000
CLAIMERS = 8
CLAIMS_EACH = 12
JOINS = ["hashjoin", "mergejoin", "material", "nestloop"]
# The session's own settings, the server's, and the server's without some ways to join.
DISABLED: list[tuple[str, ...] | None] = [None, (), *((join,) for join in JOINS), tuple(JOINS)]


@pytest.mark.parametrize("plan_cache_mode", ["force_generic_plan", "force_custom_plan"])
@pytest.mark.parametrize("disabled", DISABLED, ids=str)
@pytest.mark.parametrize("is_analyzed", [False, True], ids=["before ANALYZE", "after ANALYZE"])
def test_each_claim_is_within_its_limit_and_each_run_claimed_once(
    new_store: Callable[[], Store], is_analyzed: bool, disabled: tuple[str, ...] | None, plan_cache_mode: str
) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_dispatch_run (task, source, queue, priority)"
            " SELECT 'shop.add', 'app', 'q' || n %% 2, n %% 5 FROM generate_series(1::bigint, %s) AS n",
            [RUNS],
        )
        if is_analyzed:
            cursor.execute("ANALYZE django_dispatch_run, django_dispatch_lease")

    def take() -> list[list[int]]:
        store = new_store()
        assert isinstance(store, PostgresStore)
        if disabled is not None:
            for name in PLAN:
                store.session.execute(f"SET {name} TO DEFAULT")
            for join in disabled:
                store.session.execute(f"SET enable_{join} TO off")
        store.session.execute(f"SET plan_cache_mode TO {plan_cache_mode}")
        lease_id = acquire(store)
        return [[run.id for run in claim(store, lease_id, limit=3, queues=["q0", "q1"])] for _ in range(CLAIMS_EACH)]

    with ThreadPoolExecutor(CLAIMERS) as threads:
        claims = [ids for claimer in [threads.submit(take) for _ in range(CLAIMERS)] for ids in claimer.result(60)]
    assert [len(ids) for ids in claims] == [3] * CLAIMERS * CLAIMS_EACH
    taken = list(itertools.chain.from_iterable(claims))
    assert len(set(taken)) == len(taken)
    running = Run.objects.filter(status=Status.RUNNING)
    assert set(running.values_list("pk", flat=True)) == set(taken)
    assert set(running.values_list("epoch", "attempt")) == {(1, 1)}
