"""How long it takes from an enqueue to the first line of the body, and from a bare NOTIFY to its listener."""

import subprocess
import sys
import time
from collections.abc import Callable

import psycopg

from testproject.bench import marks, tasks
from testproject.bench.drain import manage

PAUSE_SECONDS = 0.025  # so each side has one turn in 50 ms
SETTLE_SECONDS = 30.0
WARM_UP = 3
OURS, BARE = 1, 2
INSERT_AND_NOTIFY = """
WITH i AS (INSERT INTO bench_bare (args) VALUES ('[1]') RETURNING id) SELECT pg_notify('bench_bare', id::text) FROM i
"""


def measure(url: str, samples: int) -> tuple[list[float], list[float]]:
    """Return milliseconds of ``samples`` enqueues to an idle dispatcher, and of as many bare ones between them.

    Both begin here and end in another process, which had been waiting for a while.
    """
    dispatcher = manage(url, "rundispatcher", "-v0", "--no-reload", "--processes=2")
    listener = subprocess.Popen([sys.executable, "-m", "testproject.bench.listener", url, str(BARE)])
    try:
        with psycopg.connect(url, autocommit=True, prepare_threshold=0) as connection:
            connection.execute("CREATE TABLE IF NOT EXISTS bench_bare (id bigserial, args jsonb)")
            while not marks.marked_at(BARE):  # it listens
                time.sleep(PAUSE_SECONDS)
            for _ in range(WARM_UP):
                _time(OURS, lambda: tasks.mark.delay(OURS))
                _time(BARE, lambda: connection.execute(INSERT_AND_NOTIFY))
            ours, bare = [], []
            for _ in range(samples):
                ours.append(_time(OURS, lambda: tasks.mark.delay(OURS)))
                time.sleep(PAUSE_SECONDS)
                bare.append(_time(BARE, lambda: connection.execute(INSERT_AND_NOTIFY)))
                time.sleep(PAUSE_SECONDS)
        return ours, bare
    finally:
        for process in (dispatcher, listener):
            process.terminate()
            process.wait()


def _time(index: int, send: Callable[[], object]) -> float:
    """Send; return the milliseconds until the other side has marked ``index``."""
    before = time.monotonic_ns()
    send()
    deadline = time.monotonic() + SETTLE_SECONDS
    while marks.marked_at(index) < before:
        if time.monotonic() > deadline:
            raise RuntimeError(f"Nothing had arrived after {SETTLE_SECONDS:g} s.")
        time.sleep(0.0002)
    return (marks.marked_at(index) - before) / 1e6
