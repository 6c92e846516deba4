"""The board in shared memory: until when bodies may run, and which sync body is to stop. All dispatcher's processes.

The LeaseKeeper writes the deadline, the zygote enforces it from outside, every executor looks at it before a body
starts. Times are nanoseconds of CLOCK_BOOTTIME, which goes on while the machine is suspended, as the database does.
"""

import mmap
import os
import struct
import time
from time import clock_gettime_ns  # bodies may put something else in its place

from ..messages import Stop
from .last_lines import LARGEST_LINES, clear

_CELL = 8  # bytes; one aligned store each, so a cell is never seen half-written
_VERSION, _LEASE_HIGH, _LEASE_LOW, _DEADLINE, _TURNED = range(5)
ZYGOTES = 4
"""So many may be alive at once, each with a cell from _TURNED on."""
_RUN_ID, _EPOCH, _REASON, _HEARTBEAT = range(4)
_LOG_LEVEL = _TURNED + ZYGOTES
_CELLS_EACH = _LOG_LEVEL + 1
_HALVES = struct.Struct("!qq")
NEVER = 2**63 - 1
_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def now_ns() -> int:
    """Nanoseconds since boot, suspended time included (where the platform has such a clock)."""
    return clock_gettime_ns(_CLOCK)


class Board:
    """A page of shared integers: one fence, and a slot for each executor. Each cell has one writer and any readers."""

    def __init__(self, descriptor: int, slots: int) -> None:
        cells = (slots + 1) * _CELLS_EACH * _CELL
        size = cells + slots * LARGEST_LINES
        self.descriptor = descriptor
        self.slots = slots
        if os.fstat(descriptor).st_size < size:
            os.ftruncate(descriptor, size)
        memory = memoryview(mmap.mmap(descriptor, size))
        self._cells = memory[:cells].cast("q")
        self._lines = memory[cells:]

    @classmethod
    def create(cls, slots: int) -> "Board":
        """Make a new board: no body may start, and there is nothing to kill. Pass its descriptor on to share it."""
        board = cls(os.memfd_create("django_dispatch"), slots)
        board._write_fence((0, 0), NEVER)
        return board

    # the fence

    def raise_fence(self, lease: bytes, deadline_ns: int) -> None:
        """Let bodies of this lease (the 16 bytes of its id) run until the deadline."""
        self._write_fence(_HALVES.unpack(lease), deadline_ns)

    def lower_fence(self) -> None:
        """Let no body start, and have all be killed: the lease is lost, whatever its deadline was."""
        self._write_fence((0, 0), now_ns())

    def allows(self, lease: bytes) -> bool:
        """Return whether a body of this lease may start now."""
        halves, deadline = self._read_fence()
        return halves == _HALVES.unpack(lease) and now_ns() < deadline

    def deadline_ns(self) -> int:
        """Return when every body must be dead, whatever its lease."""
        return self._cells[_DEADLINE]

    def turn(self, zygote: int) -> None:
        """Say that this zygote (a number below ZYGOTES), which enforces the deadline on its executors, is awake."""
        self._cells[_TURNED + zygote] = now_ns()

    def last_turn_ns(self, zygote: int) -> int:
        """Return when it last said so."""
        return self._cells[_TURNED + zygote]

    # the log

    def set_log_level(self, level: int) -> None:
        """Have the loggers of every executor follow, each from its next body on."""
        self._cells[_LOG_LEVEL] = level

    def log_level(self) -> int:
        """Return the level that was set; 0: none was."""
        return self._cells[_LOG_LEVEL]

    def _write_fence(self, halves: tuple[int, ...], deadline_ns: int) -> None:
        cells = self._cells
        version = cells[_VERSION]
        cells[_VERSION] = version + 1  # odd: being written
        cells[_LEASE_HIGH], cells[_LEASE_LOW] = halves
        cells[_DEADLINE] = deadline_ns
        cells[_VERSION] = version + 2

    def _read_fence(self) -> tuple[tuple[int, int], int]:
        cells = self._cells
        while True:
            version = cells[_VERSION]
            fence = (cells[_LEASE_HIGH], cells[_LEASE_LOW]), cells[_DEADLINE]
            if version % 2 == 0 and cells[_VERSION] == version:
                return fence

    # the slots

    def clear_slot(self, slot: int) -> None:
        """Make a slot fresh for a new executor."""
        for cell in range(_CELLS_EACH):
            self._cells[self._base(slot) + cell] = 0
        clear(self.lines(slot))

    def order_stop(self, slot: int, token: tuple[int, int], reason: Stop) -> None:
        """Name the attempt, by run id and epoch, that the signal which follows is meant for."""
        base = self._base(slot)
        self._cells[base + _REASON] = 0
        self._cells[base + _RUN_ID], self._cells[base + _EPOCH] = token
        self._cells[base + _REASON] = reason

    def stop_ordered(self, slot: int, token: tuple[int, int]) -> Stop | None:
        """Return why this attempt is to stop, if it is."""
        base = self._base(slot)
        reason = self._cells[base + _REASON]
        if reason and (self._cells[base + _RUN_ID], self._cells[base + _EPOCH]) == token:
            return Stop(reason)
        return None

    def beat(self, slot: int) -> None:
        """Say that this executor's event loop turns."""
        self._cells[self._base(slot) + _HEARTBEAT] = now_ns()

    def last_beat_ns(self, slot: int) -> int:
        """Return when it last said so; 0: never."""
        return self._cells[self._base(slot) + _HEARTBEAT]

    def lines(self, slot: int) -> memoryview:
        """Return the bytes that this executor's last lines are in. See last_lines.py."""
        return self._lines[slot * LARGEST_LINES : (slot + 1) * LARGEST_LINES]

    @staticmethod
    def _base(slot: int) -> int:
        return (slot + 1) * _CELLS_EACH
