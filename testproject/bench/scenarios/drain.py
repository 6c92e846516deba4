"""How fast a backlog of empty bodies is drained, beside plain SQL; and by two dispatchers beside one."""

import statistics
from collections.abc import Iterator

import psutil

from testproject.bench import raw, tasks
from testproject.bench.findings import Finding, Target, by_turns
from testproject.bench.ground import Ground, drain_rate
from testproject.bench.processes import dispatchers

WARM_UP = 200
SCALE = 1.3  # what a second dispatcher adds where there are processors for it
RAW = f"plain SQL, 1 connection, batch {raw.BATCH}"


def drain(ground: Ground) -> Iterator[Finding]:
    """A dispatcher is started on a backlog, and ends when that is done."""
    runs, processes = ground.size(50_000, 10_000), f"--processes={ground.processes}"
    found = by_turns(
        ground.rounds,
        {
            "raw": lambda: raw.drain_rate(ground.url, runs),
            "raw 2": lambda: raw.drain_rate(ground.url, runs, connections=2),
            "sync": lambda: ground.burst(tasks.noop.path, runs, processes),
            "async": lambda: ground.burst(tasks.anoop.path, runs, "--processes=1"),
        },
    )
    ground.known["drain"] = Finding("", "", found["sync"]).value
    limit, floor = (found["raw"], RAW), Target("at least", 0.6)
    sync = f"empty sync bodies, {ground.processes} isolated processes"
    yield Finding(sync, "runs/s", found["sync"], *limit, target=floor)
    yield Finding("empty async bodies, one event loop", "runs/s", found["async"], *limit, target=floor)
    yield Finding("plain SQL, 2 connections", "runs/s", found["raw 2"], *limit)


def scale(ground: Ground) -> Iterator[Finding]:
    """The dispatchers are there first; then the backlog appears in one commit."""
    runs = ground.size(50_000, 10_000)
    busy: list[float] = []
    found = by_turns(
        ground.rounds,
        {"one": lambda: _drain_by(ground, 1, runs, busy), "two": lambda: _drain_by(ground, 2, runs, [])},
    )
    share = statistics.median(busy)
    yield Finding(
        f"two dispatchers, {ground.processes} processes each",
        "runs/s",
        found["two"],
        found["one"],
        "one dispatcher",
        target=Target("at least", SCALE if share * SCALE <= 1 else 1.0),
        note=f"one keeps {share:.0%} of the processors busy",
    )


def _drain_by(ground: Ground, count: int, runs: int, busy: list[float]) -> float:
    """Return runs a second; add the share of the processors that was busy."""
    ground.clean()
    options = (f"--processes={ground.processes}", "--async-concurrency=0")
    with dispatchers(ground.url, count, *options, executors=ground.processes):
        ground.add(tasks.noop.path, 0, WARM_UP - 1)
        ground.wait_until_drained()
        (since,) = ground.row("SELECT clock_timestamp()")
        ground.add(tasks.noop.path, 0, runs - 1)
        psutil.cpu_percent()
        ground.wait_until_drained()
        busy.append(psutil.cpu_percent() / 100)
        return drain_rate(ground.sql, since, runs)
