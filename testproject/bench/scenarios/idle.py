"""What a dispatcher costs that has nothing to do, and how soon a new one claims."""

import subprocess
import sys
import time
from collections.abc import Iterator

from testproject.bench import tasks
from testproject.bench.findings import Finding, Target, by_turns
from testproject.bench.ground import Ground
from testproject.bench.processes import Dispatcher, cpu_seconds, dispatchers, environment, proportional_mb, wait_for

SETUP = "import django; django.setup(); from django.db import connection; connection.ensure_connection()"


def idle(ground: Ground) -> Iterator[Finding]:
    """Processor time over a while, and each process's proportional share of memory."""
    ground.clean()
    seconds = ground.size(30, 5)
    executors = ground.processes + 1
    options = (f"--processes={ground.processes}",)
    with dispatchers(ground.url, 1, *options, executors=executors) as (dispatcher,):
        for task in (tasks.noop, tasks.anoop):
            ground.add(task.path, 1, 200)
        ground.wait_until_drained()
        time.sleep(2.0)
        zygote, children = dispatcher.zygote, dispatcher.executors
        assert zygote is not None
        groups = {"dispatcher": [dispatcher.process], "its zygote and executors": [zygote, *children]}
        before = {name: sum(map(cpu_seconds, group)) for name, group in groups.items()}
        time.sleep(seconds)
        used = {name: (sum(map(cpu_seconds, group)) - before[name]) / seconds * 100 for name, group in groups.items()}
        sizes = {"dispatcher": [proportional_mb(dispatcher.process)], "zygote": [proportional_mb(zygote)]}
        each = [proportional_mb(child) for child in children]
    yield Finding("idle dispatcher: of a core", "%", [used["dispatcher"]], target=Target("at most", 1, "value"))
    yield Finding("its zygote and executors: of a core", "%", [used["its zygote and executors"]])
    yield Finding("idle dispatcher: memory (PSS)", "MB", sizes["dispatcher"], target=Target("at most", 80, "value"))
    yield Finding("its zygote: memory (PSS)", "MB", sizes["zygote"])
    largest = Target("at most", 60, "value")
    yield Finding(f"largest of {len(each)} idle executors: memory (PSS)", "MB", each, at=1.0, target=largest)


def start(ground: Ground) -> Iterator[Finding]:
    """From the command to the first claim, beside a process that only sets Django up and connects."""
    found = by_turns(
        ground.size(7, 2), {"ours": lambda: _seconds_to_claim(ground), "bare": lambda: _seconds_to_connect(ground)}
    )
    what, beside = "from the command to the first claim", "django.setup() and a connection"
    yield Finding(what, "s", found["ours"], found["bare"], beside, target=Target("at most", 1.5, "value"))


def _seconds_to_claim(ground: Ground) -> float:
    ground.clean()
    run = tasks.noop.delay(1)
    began = time.time()
    dispatcher = Dispatcher(ground.url, f"--processes={ground.processes}")
    try:
        wait_for(lambda: ground.row("SELECT started_at IS NOT NULL FROM django_dispatch_run")[0], "the claim")
    finally:
        dispatcher.stop()
    run.refresh_from_db()
    assert run.started_at is not None
    return run.started_at.timestamp() - began


def _seconds_to_connect(ground: Ground) -> float:
    began = time.perf_counter()
    subprocess.run([sys.executable, "-c", SETUP], env=environment(ground.url), check=True)
    return time.perf_counter() - began
