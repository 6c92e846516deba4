"""Whether slots are used: by bodies of 5 ms, and by short bodies while long ones run beside them."""

import time
from collections.abc import Iterator

from django.db import transaction

from django_dispatch import Task
from testproject.bench import marks, tasks
from testproject.bench.findings import Finding, Target
from testproject.bench.ground import Ground
from testproject.bench.processes import dispatchers

NAP_SECONDS = 0.005
LONG_SECONDS = 1.0
SHORT = 5  # before and after the long one of a group
GAP_SECONDS = 0.5
TRAINING = 200
# A long body begins every half second and takes one: two or three slots of four are taken at most.
MIXED_SLOTS = 4


def busy(ground: Ground) -> Iterator[Finding]:
    """Bodies that sleep for 5 ms, as many at once as there are slots."""
    for slots in (ground.processes, 8):
        runs = int(ground.size(10, 2) / NAP_SECONDS * slots)
        shares = [_busy_share(ground, slots, runs) for _ in range(ground.size(3, 1))]
        yield Finding(
            f"bodies of 5 ms, {slots} processes: busy share of slots",
            "%",
            [100 * share for share in shares],
            target=Target("at least", 95, "value"),
        )


def _busy_share(ground: Ground, slots: int, runs: int) -> float:
    """The time in bodies, out of all the slots' time from the first body's beginning to the last one's end."""
    ground.clean()
    marks.clear(runs)
    with dispatchers(ground.url, 1, f"--processes={slots}", "--async-concurrency=0", executors=slots):
        tasks.nap.delay_many((index, NAP_SECONDS) for index in range(runs))
        ground.wait_until_drained()
    began = [marks.marked_at(index) for index in range(runs)]
    ended = [marks.ended_at(index) for index in range(runs)]
    return (sum(ended) - sum(began)) / (slots * (max(ended) - min(began)))


def mixed(ground: Ground) -> Iterator[Finding]:
    """Groups of short runs with a long one among them, of the same task or of another; a slot is always free."""
    for whose, long in (("of another task", tasks.long_nap), ("of the same task", tasks.nap)):
        waits = _waits_beside(ground, long)
        what = f"short runs beside bodies of 1 s {whose}, a slot free: wait"
        yield Finding(f"{what}, p99", "ms", waits, at=0.99, target=Target("at most", 50, "value"))
        yield Finding(f"{what}, p50", "ms", waits)


def _waits_beside(ground: Ground, long: Task[[int, float], None]) -> list[float]:
    """Return the milliseconds from a group's commit until each of its short bodies begins."""
    groups = ground.size(40, 8)
    total = TRAINING + groups * (2 * SHORT + 1)
    ground.clean()
    marks.clear(total)
    sent: dict[int, int] = {}
    options = (f"--processes={MIXED_SLOTS}", "--async-concurrency=0")
    with dispatchers(ground.url, 1, *options, executors=MIXED_SLOTS):
        tasks.nap.delay_many((index, 0.0) for index in range(TRAINING))  # the task proves to be tiny
        ground.wait_until_drained()
        for first in range(TRAINING, total, 2 * SHORT + 1):
            middle = first + SHORT
            shorts = [*range(first, middle), *range(middle + 1, middle + 1 + SHORT)]
            with transaction.atomic():
                tasks.nap.delay_many((index, 0.0) for index in shorts[:SHORT])
                long.delay(middle, LONG_SECONDS)
                tasks.nap.delay_many((index, 0.0) for index in shorts[SHORT:])
            sent |= dict.fromkeys(shorts, time.monotonic_ns())
            time.sleep(GAP_SECONDS)
        ground.wait_until_drained()
        return [max(0.0, (marks.marked_at(index) - at) / 1e6) for index, at in sent.items()]
