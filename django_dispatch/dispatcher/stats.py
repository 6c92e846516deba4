"""What a dispatcher counts, and when each of its loops last did its work: for ``status``, and for whoever measures.

Plain numbers, changed on the dispatcher's loop and read there; counters begin at 0 with the process and never fall.
"""

import time
from collections import Counter, defaultdict
from dataclasses import dataclass, field

from ..metrics.families import (
    BATCH_BOUNDS,
    BODY_BOUNDS,
    CALL_BOUNDS,
    MOST_QUEUES,
    MOST_TASKS,
    OTHER,
    WAIT_BOUNDS,
    Histogram,
    Names,
)
from ..patterns import shown
from ..store.values import ClaimedRun

LATE_FACTOR = 3.0
LATE_SECONDS = 15.0


@dataclass(slots=True)
class Loop:
    """One loop: how often it means to work, when it last did, and how long a silence says that it cannot."""

    period_seconds: float
    late_seconds: float
    began_at: float
    last_success_at: float | None = None


class Tally:
    """What is counted of the runs of one task and queue, by the values that their labels have. A microsecond a run."""

    __slots__ = ("bodies", "finished", "queue", "started", "task", "waits")

    def __init__(self, task: str, queue: str, waits: Histogram, bodies: Histogram) -> None:
        self.task = task
        self.queue = queue
        self.started = 0
        self.finished: dict[str, int] = defaultdict(int)
        self.waits = waits
        self.bodies = bodies

    def count_started(self, wait_seconds: float) -> None:
        """Count a body that has begun."""
        self.started += 1
        self.waits.observe(wait_seconds)

    def count_ended(self, body_seconds: float) -> None:
        """Count a body that has ended, by itself or with its executor."""
        self.bodies.observe(body_seconds)

    def count_finished(self, status: str) -> None:
        """Count a claim that has ended, by the status that was written."""
        self.finished[status] += 1


MOST_TALLIES = 10_000  # that are remembered by their true names


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
    wakeups_received: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By source and kind."""
    wakeups_refused: Counter[str] = field(default_factory=Counter)
    """By source: what came there and is no wakeup."""
    wakeup_seconds: dict[str, Histogram] = field(default_factory=dict)
    """By source: from the sending of a wakeup to ourselves to its arrival."""
    runs_enqueued: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By task and queue: what bodies here enqueued, and messages."""
    runs_received: int = 0
    """Runs that this dispatcher recorded for messages."""
    runs_claimed: int = 0
    runs_reclaimed: Counter[tuple[str, str]] = field(default_factory=Counter)
    """By queue and the status that they have since: runs of other dispatchers, and those of our lost leases."""
    claim_seconds: Histogram = field(default_factory=lambda: Histogram(CALL_BOUNDS))
    """Of each statement that finishes and claims."""
    claim_runs: Histogram = field(default_factory=lambda: Histogram(BATCH_BOUNDS))
    """Runs of each claim that there was room for."""
    outcomes_dropped: int = 0
    """Outcomes of runs whose lease was lost."""
    executors_started: Counter[str] = field(default_factory=Counter)
    """By kind."""
    executors_exited: Counter[str] = field(default_factory=Counter)
    """By cause; ``itself`` if it was none of ours."""
    leases_lost: int = 0
    loops: dict[str, Loop] = field(default_factory=dict)
    wait_seconds: dict[str, Histogram] = field(default_factory=dict)
    """By queue: from when a run was due to the start of its body."""
    body_seconds: dict[str, Histogram] = field(default_factory=dict)
    """By task."""
    _tallies: dict[tuple[str, str], Tally] = field(default_factory=dict)
    _by_labels: dict[tuple[str, str], Tally] = field(default_factory=dict)
    _tasks: Names = field(default_factory=lambda: Names(MOST_TASKS))
    _queues: Names = field(default_factory=lambda: Names(MOST_QUEUES))

    def expect(self, loop: str, period_seconds: float) -> None:
        """Take note of a loop that begins now."""
        self.loops[loop] = Loop(period_seconds, _late_seconds(period_seconds), time.time())

    def succeed(self, loop: str, pause_seconds: float | None = None) -> None:
        """Note that a loop has done its work, and with what pause it means to do it again, if not its period."""
        it = self.loops[loop]
        it.last_success_at = time.time()
        it.late_seconds = _late_seconds(it.period_seconds if pause_seconds is None else pause_seconds)

    def tally(self, run: ClaimedRun, *, is_known: bool = True) -> Tally:
        """Return where to count a run. ``is_known``: its task is one of ours, of which there are few."""
        task = run.task if is_known else OTHER
        return self._tallies.get((task, run.queue)) or self._new_tally(task, run.queue)

    def _new_tally(self, task: str, queue: str) -> Tally:
        labels = self._tasks.admit(task), self._queues.admit(shown(queue))
        tally = self._by_labels.get(labels)
        if tally is None:
            waits = self.wait_seconds.setdefault(labels[1], Histogram(WAIT_BOUNDS))
            bodies = self.body_seconds.setdefault(labels[0], Histogram(BODY_BOUNDS))
            tally = self._by_labels[labels] = Tally(*labels, waits, bodies)
        if len(self._tallies) < MOST_TALLIES:
            self._tallies[task, queue] = tally
        return tally

    def count_exchange(self, seconds: float, claimed: int | None) -> None:
        """Count a statement that finishes and claims; None: there was no room for any run."""
        self.claim_seconds.observe(seconds)
        if claimed is not None:
            self.claim_runs.observe(claimed)

    def count_enqueued(self, task: str, queue: str, number: int) -> None:
        """Count runs that were enqueued through this dispatcher."""
        self.runs_enqueued[self._tasks.admit(task), self._queues.admit(shown(queue))] += number

    def count_reclaimed(self, queue: str, status: str) -> None:
        """Count a run taken back."""
        self.runs_reclaimed[self._queues.admit(shown(queue)), status] += 1

    def count_echo(self, source: str, seconds: float) -> None:
        """Count a wakeup that came back to us."""
        self.wakeup_seconds.setdefault(source, Histogram(CALL_BOUNDS)).observe(seconds)

    @property
    def runs_started(self) -> dict[tuple[str, str], int]:
        """By task and queue."""
        return {(tally.task, tally.queue): tally.started for tally in self._by_labels.values() if tally.started}

    @property
    def runs_finished(self) -> dict[tuple[str, str, str], int]:
        """By task, queue and the status that the claim ended with, READY and SCHEDULED among them."""
        return {
            (tally.task, tally.queue, status): number
            for tally in self._by_labels.values()
            for status, number in tally.finished.items()
        }

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
