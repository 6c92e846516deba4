"""What the dispatcher's counting costs a run."""

import time
from collections.abc import Iterator

from django_dispatch.dispatcher.stats import Stats
from django_dispatch.store.values import ClaimedRun
from testproject.bench.findings import Finding, Target
from testproject.bench.ground import Ground

RUNS = 1000
TASKS = 20
QUEUES = 5


def stats(ground: Ground) -> Iterator[Finding]:
    """All that is counted between a claim and its finish: of a batch of runs, as the database gives them."""
    counted = Stats()
    samples = [_count(counted) for _ in range(ground.size(3000, 500))]
    target = Target("at most", 1000, "value")
    # Not the median: who shares the core, and its caches, makes anything so small take twice as long.
    yield Finding("counting for the metrics, of a processor, p5", "ns a run", samples, at=0.05, target=target)


def _count(counted: Stats) -> float:
    """Count a batch; return the nanoseconds of processor time that it took a run."""
    runs = [_run(number) for number in range(RUNS)]  # new texts each time, as they come off the wire
    began = time.thread_time_ns()
    counted.runs_claimed += len(runs)
    counted.claim_seconds.observe(0.004)
    counted.claim_runs.observe(len(runs))
    for run in runs:
        tally = counted.tally(run)
        tally.count_started(0.02)
        tally.count_ended(0.003)
        tally.count_finished("SUCCESSFUL")
    return (time.thread_time_ns() - began) / RUNS


def _run(number: int) -> ClaimedRun:
    return ClaimedRun(
        id=number,
        epoch=1,
        task=f"shop.tasks.task_{number % TASKS}",
        queue=f"queue_{number % QUEUES}",
        priority=0,
        attempt=1,
        failures=0,
        interruptions=0,
        max_attempts=None,
        timeout_seconds=None,
        on_lost="",
        args="[]",
        kwargs="{}",
    )
