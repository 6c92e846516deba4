"""How long it takes from ``kill -9`` of a dispatcher to the second start of its run by another one."""

import time
from collections.abc import Iterator

from testproject.bench import marks, tasks
from testproject.bench.findings import Finding, Target
from testproject.bench.ground import Ground
from testproject.bench.processes import dispatchers, wait_for

INDEX = 0
# Runs go back when the lease has ended and a grace has passed, at the next sweep: after half a TTL and 20 % at most.
GRACE_SECONDS = 2
SWEEP_SHARE = 0.6


def kill(ground: Ground) -> Iterator[Finding]:
    """Both dispatchers are on this host."""
    seconds = [_second_start(ground, ttl=15) for _ in range(ground.size(5, 1))]
    what = "kill -9, another dispatcher on the same host: until the run's second start"
    yield Finding(what, "s", seconds, target=Target("at most", 2, "value"))


def dead_host(ground: Ground) -> Iterator[Finding]:
    """The dead dispatcher's lease names another host, so that nobody can look after its process."""
    ttl = ground.size(15, 3)
    seconds = [_second_start(ground, ttl=ttl, host="elsewhere") for _ in range(ground.size(3, 1))]
    what = f"kill -9 on another host, LEASE_TTL {ttl} s: until the run's second start"
    yield Finding(what, "s", seconds, target=Target("at most", ttl * (1 + SWEEP_SHARE) + GRACE_SECONDS, "value"))


def _second_start(ground: Ground, *, ttl: int, host: str = "") -> float:
    ground.clean()
    marks.clear(INDEX + 1)
    options = ("--processes=1", "--async-concurrency=0", f"--lease-ttl={ttl}")
    with dispatchers(ground.url, 1, *options, executors=1) as (victim,):
        tasks.hold.delay(INDEX)
        wait_for(lambda: marks.marked_at(INDEX), "the first start")
        if host:
            ground.sql.execute("UPDATE django_dispatch_lease SET host = %s", [host])
        with dispatchers(ground.url, 1, *options, executors=1):
            time.sleep(2.0)  # it has learnt by now who its neighbours are
            killed_at = victim.kill()
            wait_for(lambda: marks.ended_at(INDEX), "the second start", pause_seconds=0.005)
    return (marks.ended_at(INDEX) - killed_at) / 1e9
