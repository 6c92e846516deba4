"""What must not grow: the dispatcher's memory, the number of executors, the query log of DEBUG."""

import psutil
import pytest

from django_dispatch.models import Run
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import wait_until_final
from tests.kit.waiting import wait_for

QUICK = "INSERT INTO django_dispatch_run (task) SELECT 'tests.kit.tasks.quick' FROM generate_series(1, %s)"
WARM_UP = 6_000
MORE = 15_000
BYTES_A_RUN = 150  # a reference, a number and a tuple kept of each run would be more


@pytest.mark.slow
def test_the_dispatcher_keeps_nothing_of_the_runs_that_have_ended(kit: Kit) -> None:
    """With DEBUG too, under which Django would log every query."""
    a = kit.dispatchers(processes=2, env={"DEBUG": "1"})
    dispatcher = psutil.Process(a.pid)
    sizes = []
    for number in (WARM_UP, MORE):
        kit.sql.execute(QUICK, [number])
        wait_for(lambda: not Run.objects.filter(finished_at=None).exists(), 120, what="all runs ended")
        sizes.append(dispatcher.memory_info().rss)
    assert Run.objects.filter(status="SUCCESSFUL", attempt=1).count() == WARM_UP + MORE
    assert sizes[1] - sizes[0] < MORE * BYTES_A_RUN, sizes


def test_executors_are_as_many_after_a_burst_as_before(kit: Kit) -> None:
    a = kit.dispatchers(processes=2)
    before = sorted(a.executor_pids)
    runs = wait_until_final(*tasks.takes.delay_many([(0.02,)] * 50), seconds=60)
    assert {run.status for run in runs} == {"SUCCESSFUL"}
    assert {row.pid for row in kit.ledger.rows()} == set(before)
    assert sorted(a.executor_pids) == before


def test_the_query_log_of_debug_is_empty_between_runs(kit: Kit) -> None:
    kit.dispatchers(env={"DEBUG": "1"}, database={"CONN_MAX_AGE": 600})
    runs = wait_until_final(*(tasks.count_queries.delay() for _ in range(3)))
    assert [run.result for run in runs] == [0, 0, 0]
