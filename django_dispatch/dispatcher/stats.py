"""What a dispatcher counts, and when each of its loops last did its work: for ``status``, and for whoever measures.

Plain numbers, changed on the dispatcher's loop and read there; counters begin at 0 with the process and never fall.
"""

import time
from collections import Counter
from dataclasses import dataclass, field

from ..store.base import ClaimedRun

LATE_FACTOR = 3.0
LATE_SECONDS = 15.0


@dataclass(slots=True)
class Loop:
    """One loop: how often it means to work, when it last did, and how long a silence says that it cannot."""

    period_seconds: float
    late_seconds: float
    began_at: float
    last_success_at: float | None = None


@dataclass(slots=True)
class Stats:
    """Times are time.time()."""

    started_at: float = field(default_factory=time.time)
    messages_received: int = 0
    """Payloads on the channels of control commands and of messages, chunks each."""
    control_commands: Counter[str] = field(default_factory=Counter)
    """By command; ``unknown`` for all that there is none of."""
    messages_refused: Counter[str] = field(default_factory=Counter)
    """By kind: see docs/control.md."""
    wakeups_received: int = 0
    runs_received: int = 0
    """Runs that this dispatcher recorded for messages."""
    runs_claimed: int = 0
    runs_finished: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    """By task, queue and the status that the claim ended with, READY and SCHEDULED among them. (One of these two may be
    CANCELLED in the database: if that was asked for at the last moment.)"""
    outcomes_dropped: int = 0
    """Outcomes of runs whose lease was lost."""
    executors_started: Counter[str] = field(default_factory=Counter)
    """By kind."""
    executors_exited: Counter[str] = field(default_factory=Counter)
    """By cause; ``itself`` if it was none of ours."""
    leases_lost: int = 0
    loops: dict[str, Loop] = field(default_factory=dict)

    def expect(self, loop: str, period_seconds: float) -> None:
        """Take note of a loop that begins now."""
        self.loops[loop] = Loop(period_seconds, _late_seconds(period_seconds), time.time())

    def succeed(self, loop: str, pause_seconds: float | None = None) -> None:
        """Note that a loop has done its work, and with what pause it means to do it again, if not its period."""
        it = self.loops[loop]
        it.last_success_at = time.time()
        it.late_seconds = _late_seconds(it.period_seconds if pause_seconds is None else pause_seconds)

    def count_finished(self, run: ClaimedRun, status: str) -> None:
        """Count a run whose outcome is written."""
        self.runs_finished[run.task, run.queue, status] += 1

    def late(self) -> list[str]:
        """Return the loops that have not done their work for too long."""
        now = time.time()
        return [
            name
            for name, loop in self.loops.items()
            if now - (loop.last_success_at or loop.began_at) > loop.late_seconds
        ]


def _late_seconds(pause_seconds: float) -> float:
    return max(LATE_SECONDS, LATE_FACTOR * pause_seconds)
