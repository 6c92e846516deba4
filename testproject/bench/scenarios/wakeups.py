"""What each kind of wakeup costs and brings, by turns, beside the bare round trips."""

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from django.conf import settings
from django.test import override_settings

from testproject.bench import marks, tasks
from testproject.bench.findings import Finding
from testproject.bench.ground import Ground
from testproject.bench.processes import Dispatcher, wait_for
from testproject.redis_server import RedisServer

from .latency import CHANNEL, INSERT_AND_NOTIFY, WARM_UP, pause, time_until_marked

WAYS = {"pg_notify": ["pg_notify"], "arq": ["arq"], "both": ["pg_notify", "arq"], "poll": []}
BARE_NOTIFY, BARE_REDIS, FIRST_WAY = 1, 2, 3
KEY = "bench:bare"
QUANTILES = {"p50": 0.5, "p95": 0.95, "p99": 0.99}


def wakeups(ground: Ground) -> Iterator[Finding]:
    """An enqueue to a dispatcher that idles, by each kind of wakeup; a dispatcher and a queue of its own for each."""
    ground.clean()
    marks.clear(FIRST_WAY + len(WAYS))
    ground.sql.execute("CREATE TABLE IF NOT EXISTS bench_bare (id bigserial, args jsonb)")
    with (
        tempfile.TemporaryDirectory() as folder,
        RedisServer(Path(folder)) as redis,
        override_settings(CACHES=redis.caches),
        _listeners(ground, redis),
    ):
        sides: dict[str, Callable[[], float]] = {
            "bare NOTIFY": lambda: time_until_marked(
                BARE_NOTIFY, lambda: ground.sql.execute(INSERT_AND_NOTIFY, prepare=True)
            ),
            "bare ZADD": lambda: time_until_marked(BARE_REDIS, lambda: redis.client.zadd(KEY, {"x": 1})),
            "SELECT 1": lambda: _time(lambda: ground.sql.execute("SELECT 1", prepare=True)),
            "PING": lambda: _time(redis.client.ping),
        }
        for index, way in enumerate(WAYS, FIRST_WAY):
            sides[way] = lambda way=way, index=index: _enqueue(way, index)  # type: ignore[misc]
        found: dict[str, list[float]] = {name: [] for name in sides}
        for _ in range(WARM_UP + ground.size(200, 30)):
            for name, side in sides.items():
                found[name].append(side())
                pause()
    beside = {
        "pg_notify": ("bare NOTIFY", "a bare INSERT + NOTIFY until its listener wakes"),
        "arq": ("bare ZADD", "a bare ZADD until its BZPOPMIN wakes"),
        "both": ("bare NOTIFY", "a bare INSERT + NOTIFY until its listener wakes"),
        "poll": ("", ""),
    }
    samples = {name: values[WARM_UP:] for name, values in found.items()}
    for way in WAYS:
        other, its_name = beside[way]
        for name, at in QUANTILES.items():
            what = f"wakeups by {way}: from before .delay() to the body, {name}"
            yield Finding(
                what, "ms", samples[way], samples.get(other, []), f"{its_name}, {name}" if other else "", at=at
            )
    for trip, its_name in (("SELECT 1", "a SELECT 1 by PostgreSQL"), ("PING", "a PING by Redis")):
        for name, at in QUANTILES.items():
            yield Finding(f"a bare round trip: {its_name}, {name}", "ms", samples[trip], at=at)


@contextlib.contextmanager
def _listeners(ground: Ground, redis: RedisServer) -> Iterator[None]:
    """Start a dispatcher for each kind, and what listens for the bare measurements; end them."""
    module = "testproject.bench"
    bare = [
        subprocess.Popen([sys.executable, "-m", f"{module}.listener", ground.url, CHANNEL, str(BARE_NOTIFY)]),
        subprocess.Popen([sys.executable, "-m", f"{module}.popper", redis.url, KEY, str(BARE_REDIS)]),
    ]
    started: list[Dispatcher] = []
    try:
        for way, names in WAYS.items():
            env = {"REDIS_URL": redis.url, "WAKEUPS": json.dumps(names)}
            options = (f"--node=bench-{way}", f"--queues={way}", "--processes=1", "--async-concurrency=0")
            started.append(Dispatcher(ground.url, *options, env=env))
        for dispatcher in started:
            dispatcher.wait_until_ready(1)
        wait_for(lambda: marks.marked_at(BARE_NOTIFY) and marks.marked_at(BARE_REDIS), "the bare listeners")
        yield
    finally:
        for dispatcher in started:
            dispatcher.stop()
        for process in bare:
            process.terminate()
            process.wait()


def _enqueue(way: str, index: int) -> float:
    with override_settings(DISPATCH=settings.DISPATCH | {"WAKEUPS": WAYS[way]}):
        return time_until_marked(index, lambda: tasks.mark.apply_async((index,), queue=way))


def _time(send: Callable[[], object]) -> float:
    """Return the milliseconds that a call takes."""
    before = time.monotonic_ns()
    send()
    return (time.monotonic_ns() - before) / 1e6
