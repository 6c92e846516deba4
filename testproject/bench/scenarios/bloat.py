"""A steady load while a long transaction elsewhere keeps every dead row alive: claims before, during and after."""

import time
from collections.abc import Iterator
from dataclasses import dataclass, field

import psycopg

from testproject.bench import raw, tasks
from testproject.bench.claimer import Claimer
from testproject.bench.findings import Finding, Target, quantile
from testproject.bench.ground import INSERT, Ground

# 30 minutes of 200 runs a second, as fast as they go; the long transaction is open for 20 of these minutes.
RUNS = 360_000
PROBES = 20  # claims whose p95 is watched after the long transaction's end,
PATIENCE_SECONDS = 90.0  # for so long at most
RECOVERED = 1.5  # times what it was before
SIZES = (
    "SELECT n_dead_tup, pg_table_size(relid), pg_indexes_size(relid)"
    " FROM pg_stat_user_tables WHERE relname = 'django_dispatch_run'"
)


@dataclass
class Phase:
    """Milliseconds of claims of one run and of a batch, and what the table had come to in the end."""

    lone: list[float] = field(default_factory=list)
    batch: list[float] = field(default_factory=list)
    sizes: tuple[int, ...] = (0, 0, 0)
    seconds: float = 0.0
    recovered_after: float | None = None


def bloat(ground: Ground) -> Iterator[Finding]:
    """Each round enqueues a batch, finishes and claims one, and claims a single run, as a lone wakeup does."""
    rounds = ground.size(RUNS, RUNS // 12) // (raw.BATCH + 1)
    ground.clean()
    ground.sql.execute("VACUUM django_dispatch_run")
    before, during, after = Phase(), Phase(), Phase()
    with Claimer.on("default") as load, Claimer.on("default") as prober:
        both = (load, prober)
        _work(ground, both, before, rounds // 6)
        with psycopg.connect(ground.url) as elsewhere:
            elsewhere.execute("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")
            elsewhere.execute("SELECT count(*) FROM django_dispatch_run")
            _work(ground, both, during, rounds * 4 // 6)
        _work(ground, both, after, rounds // 6, usual=quantile(before.lone, 0.95))
        while after.recovered_after is None and after.seconds < PATIENCE_SECONDS:
            _work(ground, both, after, PROBES, usual=quantile(before.lone, 0.95))
    yield from _claims(before, during, after)
    yield from _recovery(before, after)
    yield from _table(before, during, after)


def _work(
    ground: Ground, claimers: tuple[Claimer, Claimer], phase: Phase, rounds: int, usual: float | None = None
) -> None:
    load, prober = claimers
    began = time.monotonic()
    for _ in range(max(rounds, PROBES)):
        ground.sql.execute(INSERT, [tasks.noop.path, 0, raw.BATCH], prepare=True)
        phase.lone.append(prober.exchange(1))
        phase.batch.append(load.exchange(raw.BATCH))
        is_usual = usual is not None and quantile(phase.lone[-PROBES:], 0.95) <= RECOVERED * usual
        if is_usual and phase.recovered_after is None and len(phase.lone) >= PROBES:
            phase.recovered_after = phase.seconds + time.monotonic() - began
    phase.seconds += time.monotonic() - began
    ground.sql.execute("SELECT pg_stat_clear_snapshot()")
    phase.sizes = tuple(int(size) for size in ground.row(SIZES))


def _claims(before: Phase, during: Phase, after: Phase) -> Iterator[Finding]:
    beside = "before it"
    held = "while a long transaction is open"
    for what, of in ((f"finish + claim of {raw.BATCH}", "batch"), ("finish + claim of 1", "lone")):
        usual = getattr(before, of)
        worst = getattr(during, of)
        yield Finding(f"{what}, {held}, p95", "ms", worst, usual, beside, at=0.95, target=Target("at most", 5))
        yield Finding(f"{what}, after its end, p95", "ms", getattr(after, of), usual, beside, at=0.95)


def _recovery(before: Phase, after: Phase) -> Iterator[Finding]:
    seconds = float("inf") if after.recovered_after is None else after.recovered_after
    what = f"until claims take {RECOVERED:g} times what they took before, at most"
    yield Finding(what, "s", [seconds], target=Target("at most", 60, "value"))


def _table(before: Phase, during: Phase, after: Phase) -> Iterator[Finding]:
    for name, phase in (("before", before), ("at the end of", during), ("after", after)):
        dead, table, indexes = phase.sizes
        note = f"table {table / 1e6:,.0f} MB, indexes {indexes / 1e6:,.0f} MB"
        yield Finding(f"dead rows {name} the long transaction", "rows", [float(dead)], note=note)
