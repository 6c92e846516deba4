"""What is due later starts when it is due, by a timer on the next due time, however many others wait."""

from datetime import datetime, timedelta

import pytest

from django_dispatch.models import Run
from tests.kit import retries, tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import wait_until_final
from tests.kit.waiting import wait_for

WAITING = 100_000
# So rarely does a dispatcher look for what nothing tells it of: only a timer can be sooner.
POLL_SECONDS = 60
TTL_SECONDS = 2
LATE = timedelta(seconds=5)
SCHEDULED = f"""
INSERT INTO django_dispatch_run (task, source, status, run_after)
SELECT 'tests.kit.tasks.note', 'app', 'SCHEDULED', clock_timestamp() + n * interval '1 hour'
FROM generate_series(1, {WAITING}) AS n
"""


@pytest.fixture
def due(kit: Kit) -> list[tuple[Run, datetime]]:
    """Runs due in a moment, among many that are not."""
    kit.sql.execute(SCHEDULED)
    kit.dispatchers(poll_interval=POLL_SECONDS, lease_ttl=90)
    runs = [tasks.note.apply_async(countdown=seconds) for seconds in (0.4, 0.8, 1.2)]
    return [(run, run.run_after) for run in runs if run.run_after is not None]


def test_due_runs_start_on_time_among_a_hundred_thousand_that_wait(kit: Kit, due: list[tuple[Run, datetime]]) -> None:
    assert len(due) == 3
    wait_until_final(*(run for run, _ in due))
    lateness = [kit.ledger.rows(run)[0].started_at - run_after for run, run_after in due]
    assert all(timedelta(0) <= late < LATE for late in lateness), lateness

    (run,) = wait_until_final(retries.decides.delay(["raise", "Retry", {"after": 0.5}], ["done"]))
    failed, again = kit.ledger.rows(run)
    assert failed.ended_at is not None
    late = again.started_at - failed.ended_at - timedelta(seconds=0.5)
    assert timedelta(0) <= late < LATE
    assert Run.objects.filter(status="SCHEDULED").count() == WAITING


@pytest.mark.slow
def test_neither_a_delay_nor_a_body_longer_than_many_leases_makes_a_run_start_twice(kit: Kit) -> None:
    """Dispatchers that promote runs die meanwhile: who waits for his time holds no lease that could be lost."""
    kit.dispatchers("steady", queues="long", lease_ttl=TTL_SECONDS)
    long = tasks.gated.apply_async(("long",), queue="long")
    kit.gate.wait_until_reached("long")
    later = [tasks.note.apply_async(countdown=3 * TTL_SECONDS) for _ in range(10)]
    for number in range(3):
        kit.dispatchers(f"short-lived-{number}", queues="nothing", lease_ttl=TTL_SECONDS).kill9()
    kit.dispatchers("last", queues="default", lease_ttl=TTL_SECONDS)
    ended = wait_until_final(*later, seconds=60)
    assert {run.status for run in ended} == {"SUCCESSFUL"}
    for run in later:
        (start,) = kit.ledger.rows(run)
        assert run.run_after is not None
        assert start.started_at >= run.run_after
    is_old = "SELECT clock_timestamp() > started_at + %s * interval '1 second' FROM django_dispatch_run WHERE id = %s"
    wait_for(lambda: kit.sql.execute(is_old, [3 * TTL_SECONDS, long.pk]).fetchone() == (True,), 30, what="a long body")
    kit.gate.open("long")
    (long,) = wait_until_final(long)
    assert (long.status, long.epoch, kit.ledger.starts(long)) == ("SUCCESSFUL", 1, 1)
