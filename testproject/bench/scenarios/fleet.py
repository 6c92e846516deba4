"""What must not grow: memory with runs, the cost of a renewal with what is held, idle queries with dispatchers."""

import time
from collections.abc import Iterator

import psycopg

from testproject.bench import tasks
from testproject.bench.claimer import Claimer
from testproject.bench.findings import Finding, Target, by_turns
from testproject.bench.ground import Ground, one_row
from testproject.bench.processes import dispatchers, resident_mb

FLEET = 50
HELD = 10_000
TRANSACTIONS = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = %s"


def memory(ground: Ground) -> Iterator[Finding]:
    """One dispatcher, a chunk of runs after the other."""
    chunk, chunks = ground.size(50_000, 10_000), ground.size(20, 4)
    ground.clean()
    sizes: list[float] = []
    options = (f"--processes={ground.processes}",)
    with dispatchers(ground.url, 1, *options, executors=ground.processes + 1) as (dispatcher,):
        for _ in range(chunks):
            ground.add(tasks.noop.path, 1, chunk)
            ground.wait_until_drained()
            sizes.append(resident_mb(dispatcher.process))
    what = f"resident size of the dispatcher after {chunk * chunks:,} runs"
    yield Finding(what, "MB", sizes[-1:], sizes[:1], f"after {chunk:,} runs", target=Target("at most", 1.05))


def renewal(ground: Ground) -> Iterator[Finding]:
    """By turns: the lease of a dispatcher that holds nothing, and of one that holds many runs."""
    ground.fill(tasks.noop.path, HELD)
    with Claimer.on("default") as idle, Claimer.on("default") as busy:
        busy.exchange(HELD)
        found = by_turns(ground.size(400, 100), {"idle": idle.renew, "busy": busy.renew})
    what = f"renewal of a lease that holds {HELD:,} runs"
    yield Finding(what, "ms", found["busy"], found["idle"], "that holds none", target=Target("at most", 1.2))


def fleet(ground: Ground) -> Iterator[Finding]:
    """Transactions by the server's own count, each a statement; a smaller fleet is counted and multiplied."""
    count, seconds = ground.size(FLEET, 5), ground.size(30, 12)
    ground.clean()
    (database,) = ground.row("SELECT current_database()")
    options = ("--processes=1", "--async-concurrency=0")
    with (
        psycopg.connect(ground.server.database_url("postgres"), autocommit=True) as outside,
        dispatchers(ground.url, count, *options, executors=1),
    ):
        time.sleep(ground.size(30, 20))  # until the last of them is idle
        before, began = one_row(outside, TRANSACTIONS, [database])[0], time.monotonic()
        time.sleep(seconds)
        counted = one_row(outside, TRANSACTIONS, [database])[0] - before
        rate = counted / (time.monotonic() - began) * FLEET / count
    note = "" if count == FLEET else f"{count} counted, times {FLEET / count:g}"
    what = f"{FLEET} idle dispatchers"
    yield Finding(what, "queries/s", [rate], target=Target("at most", 50, "value"), note=note)
