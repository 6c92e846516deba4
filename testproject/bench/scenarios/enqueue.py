"""What an enqueue costs: one by one beside Django's own create(), in bulk beside COPY."""

import time
from collections.abc import Iterator

from django_dispatch.models import Run
from testproject.bench import tasks
from testproject.bench.findings import Finding, Target, by_turns
from testproject.bench.ground import Ground

BLOCK = 100
BULK = 20_000
COPY = "COPY django_dispatch_run (task, args, source) FROM STDIN"


def enqueue(ground: Ground) -> Iterator[Finding]:
    """No dispatcher runs; each call is a commit."""
    ground.clean()
    found = by_turns(
        ground.size(40, 10), {"delay": lambda: _rate(BLOCK, _delay), "create": lambda: _rate(BLOCK, _create)}
    )
    name = "Model.objects.create() of the same row"
    yield Finding(".delay()", "runs/s", found["delay"], found["create"], name, target=Target("at least", 0.8))


def _rate(calls: int, call: object) -> float:
    assert callable(call)
    began = time.perf_counter()
    for _ in range(calls):
        call()
    return calls / (time.perf_counter() - began)


def _delay() -> None:
    tasks.noop.delay(1)


def _create() -> None:
    Run.objects.create(task=tasks.noop.path, args=[1], source="app")


def bulk(ground: Ground) -> Iterator[Finding]:
    """20,000 in one call and one commit, into an empty table."""
    found = by_turns(ground.rounds, {"delay_many": lambda: _delay_many(ground), "copy": lambda: _copy(ground)})
    what = f"delay_many() of {BULK:,}"
    yield Finding(what, "runs/s", found["delay_many"], found["copy"], "COPY", target=Target("at least", 0.5))


def _delay_many(ground: Ground) -> float:
    ground.clean()
    began = time.perf_counter()
    tasks.noop.delay_many((index,) for index in range(BULK))
    return BULK / (time.perf_counter() - began)


def _copy(ground: Ground) -> float:
    ground.clean()
    began = time.perf_counter()
    with ground.sql.cursor().copy(COPY) as copy:
        for first in range(0, BULK, 1000):
            copy.write("".join(f"{tasks.noop.path}\t[{n}]\tapp\n" for n in range(first, first + 1000)))
    return BULK / (time.perf_counter() - began)
