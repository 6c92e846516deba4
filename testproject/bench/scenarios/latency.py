"""How long it takes from an enqueue to the first line of the body: idle, and at half of the drain rate."""

import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

from testproject.bench import marks, tasks
from testproject.bench.findings import Finding, Target
from testproject.bench.ground import INSERT, WAKE, Ground
from testproject.bench.processes import dispatchers, wait_for

PAUSE_SECONDS = (0.01, 0.04)  # at random: nobody's own rhythm is to be met each time
SETTLE_SECONDS = 30.0
WARM_UP = 10
OURS, BARE = 1, 2
CHANNEL = "bench_bare"
INSERT_AND_NOTIFY = f"""
WITH i AS (INSERT INTO bench_bare (args) VALUES ('[1]') RETURNING id) SELECT pg_notify('{CHANNEL}', id::text) FROM i
"""
TICK_SECONDS = 0.01
COUNTDOWN_SECONDS = 0.2
SCHEDULED = f"""
INSERT INTO django_dispatch_run (task, source, status, run_after, args)
SELECT '{tasks.mark.path}', 'app', 'SCHEDULED', clock_timestamp() + n * interval '1 hour', '[2]'
FROM generate_series(1, %s) AS n
"""


def idle_latency(ground: Ground) -> Iterator[Finding]:
    """By turns: an enqueue to an idle dispatcher, and a bare INSERT + NOTIFY to an idle listener.

    Both begin here and end in another process, which had been waiting for a while.
    """
    ground.clean()
    marks.clear(3)
    options = (f"--processes={ground.processes}",)
    listener = subprocess.Popen([sys.executable, "-m", "testproject.bench.listener", ground.url, CHANNEL, str(BARE)])
    ours, bare = [], []
    try:
        with dispatchers(ground.url, 1, *options, executors=ground.processes + 1):
            ground.sql.execute("CREATE TABLE IF NOT EXISTS bench_bare (id bigserial, args jsonb)")
            wait_for(lambda: marks.marked_at(BARE), "the listener")
            for _ in range(WARM_UP + ground.size(400, 100)):
                ours.append(time_until_marked(OURS, lambda: tasks.mark.delay(OURS)))
                pause()
                bare.append(time_until_marked(BARE, lambda: ground.sql.execute(INSERT_AND_NOTIFY, prepare=True)))
                pause()
    finally:
        listener.terminate()
        listener.wait()
    ours, bare = ours[WARM_UP:], bare[WARM_UP:]
    name = "bare INSERT + NOTIFY until its listener wakes"
    what = "idle dispatcher: from before .delay() to the body"
    yield Finding(f"{what}, p50", "ms", ours, bare, f"{name}, p50", target=Target("at most", 2))
    yield Finding(f"{what}, p99", "ms", ours, bare, f"{name}, p99", at=0.99, target=Target("at most", 4))


def pause() -> None:
    """Wait a little between two turns."""
    time.sleep(random.uniform(*PAUSE_SECONDS))


def time_until_marked(index: int, send: Callable[[], object]) -> float:
    """Send; return the milliseconds until the other side has marked ``index``."""
    before = time.monotonic_ns()
    send()
    deadline = time.monotonic() + SETTLE_SECONDS
    while marks.marked_at(index) < before:
        if time.monotonic() > deadline:
            raise RuntimeError(f"Nothing had arrived after {SETTLE_SECONDS:g} s.")
        time.sleep(0.0002)
    return (marks.marked_at(index) - before) / 1e6


def loaded_latency(ground: Ground) -> Iterator[Finding]:
    """Runs arrive every 10 ms, in all half as many a second as a dispatcher drains."""
    rate = ground.known.get("drain") or ground.burst(tasks.noop.path, 10_000, f"--processes={ground.processes}")
    seconds = ground.size(10, 3)
    each = max(1, round(rate / 2 * TICK_SECONDS))
    ticks = min(round(seconds / TICK_SECONDS), marks.CAPACITY // each)
    ground.clean()
    marks.clear(ticks * each)
    sent: list[int] = []
    options = (f"--processes={ground.processes}",)
    with dispatchers(ground.url, 1, *options, executors=ground.processes + 1):
        begin = time.monotonic()
        for tick in range(ticks):
            time.sleep(max(0.0, begin + tick * TICK_SECONDS - time.monotonic()))
            sent.append(time.monotonic_ns())
            ground.sql.execute(INSERT, [tasks.mark.path, tick * each, (tick + 1) * each - 1], prepare=True)
            ground.sql.execute(WAKE, prepare=True)
        took = time.monotonic() - begin
        ground.wait_until_drained()
    waits = [(marks.marked_at(index) - sent[index // each]) / 1e6 for index in range(ticks * each)]
    what = "half of the drain rate: from before the INSERT to the body"
    note = f"offered {ticks * each / took:,.0f} runs/s of the {rate / 2:,.0f} that are half"
    yield Finding(f"{what}, p50", "ms", waits)
    yield Finding(f"{what}, p99", "ms", waits, at=0.99, target=Target("at most", 50, "value"), note=note)


def delays(ground: Ground) -> Iterator[Finding]:
    """Runs with a countdown, to an idle dispatcher, among many that are due much later."""
    ground.clean()
    marks.clear(3)
    waiting = ground.size(100_000, 100_000)
    ground.sql.execute(SCHEDULED, [waiting])
    options = (f"--processes={ground.processes}",)
    with dispatchers(ground.url, 1, *options, executors=ground.processes + 1):
        late = [_lateness(OURS) for _ in range(WARM_UP + ground.size(100, 30))][WARM_UP:]
    what = f"a countdown, idle, {waiting:,} SCHEDULED: from the moment it is due to the body"
    yield Finding(f"{what}, p50", "ms", late)
    yield Finding(f"{what}, p99", "ms", late, at=0.99, target=Target("at most", 50, "value"))


def _lateness(index: int) -> float:
    """Return by how many milliseconds a run started after it was due."""
    run_after = tasks.mark.apply_async((index,), countdown=COUNTDOWN_SECONDS).run_after
    assert run_after is not None
    due = time.monotonic_ns() + round(run_after.timestamp() * 1e9) - time.time_ns()
    wait_for(lambda: marks.marked_at(index) >= due, "the run that is due")
    return (marks.marked_at(index) - due) / 1e6
