"""When each body began and ended, in memory that all processes share: one clock, and no traffic of its own."""

import mmap
import os
import time
from functools import cache
from pathlib import Path

CAPACITY = 1 << 18
ENVIRONMENT = "DISPATCH_BENCH_MARKS"


@cache
def _cells() -> "memoryview[int]":
    path = Path(os.environ[ENVIRONMENT])
    with path.open("r+b") as file:
        return memoryview(mmap.mmap(file.fileno(), 2 * CAPACITY * 8)).cast("q")


def create(path: Path) -> None:
    """Make the file, and let child processes find it."""
    path.write_bytes(bytes(2 * CAPACITY * 8))
    os.environ[ENVIRONMENT] = str(path)
    _cells.cache_clear()


def clear(count: int) -> None:
    """Forget the first ``count`` marks."""
    cells = _cells()
    for first in (0, CAPACITY):
        cells[first : first + count] = memoryview(bytes(count * 8)).cast("q")


def mark(index: int) -> None:
    """Write down now, on the monotonic clock that all processes of the machine share."""
    _cells()[index] = time.monotonic_ns()


def mark_end(index: int) -> None:
    """Write down now as the end of what ``index`` marks."""
    _cells()[CAPACITY + index] = time.monotonic_ns()


def marked_at(index: int) -> int:
    """Return when ``index`` was marked, in nanoseconds; 0: not yet."""
    return _cells()[index]


def ended_at(index: int) -> int:
    """Return when ``index`` ended, in nanoseconds; 0: not yet."""
    return _cells()[CAPACITY + index]
