"""Where a claim begins: at the front of the line, unless what it walks over on the way is dear.

While an old snapshot anywhere in the cluster keeps dead rows alive, every claim walks over all that was consumed since;
and a claim that leaves out the tasks of a full lane walks over their whole backlog. Both are paid once in a while: a
*whole* claim that proves dear is followed by claims that begin where it ended, and the next whole one comes when it is
a twentieth of the time. So a new run starts at once, and one that comes in further ahead (it is tried again, or its
transaction was long) waits for the next whole claim, seconds at most.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from .values import ClaimedRun, Exchange, Wanted

DEAR_SECONDS = 0.01
PROOFS = 3  # so many in a row: one alone may have waited for the machine, or for a disk;
BEYOND_DOUBT = 10.0  # but not for so many times as long
ROW_SECONDS = 50e-6  # what claiming or finishing one run may take: that is no walk
PAUSE_FACTOR = 20.0
FIRST_PAUSE_SECONDS = 1.0  # at most, and later
LONGEST_PAUSE_SECONDS = 5.0
VAIN_SECONDS = 30.0  # so long no claim begins further on, where that has proved no cheaper
MOST_LINES = 8
LOWEST, HIGHEST = -100, 100  # priorities
FRONT = -(2**63)

Part = tuple[str, int, int, int]
"""Of a queue, the priorities from one to another, from this place on."""


@dataclass(slots=True)
class Line:
    """What is known of claims that leave out the same tasks. Times are the clock's, in seconds."""

    is_new: bool = True
    dear_in_a_row: int = 0
    """Of whole claims, the last ones."""
    whole_at: float = 0.0
    whole_seconds: float = 0.0
    least_seconds: float = float("inf")
    """What the cheapest took of those that began further on."""
    not_before: float = 0.0
    tail: int = FRONT
    """Beyond all that the last whole claim could see, if that found less than was wanted."""
    places: dict[str, dict[int, int]] = field(default_factory=dict)
    """Of each queue and priority, the last place that was claimed."""

    @property
    def is_dear(self) -> bool:
        """Whether whole claims are."""
        return self.dear_in_a_row >= PROOFS

    def parts(self, queues: Sequence[str]) -> Iterator[Part]:
        """Yield what to look at, in the order in which runs are claimed."""
        for queue in queues:
            top = HIGHEST
            for priority, place in sorted(self.places.get(queue, {}).items(), reverse=True):
                if priority < top:
                    yield queue, priority + 1, top, self.tail
                yield queue, priority, priority, max(place, self.tail)
                top = priority - 1
            if top >= LOWEST:
                yield queue, LOWEST, top, self.tail

    def learn(self, claimed: Sequence[ClaimedRun]) -> None:
        """Take note of how far a claim has come. Everything that stands before was looked at."""
        for run in claimed:
            places = self.places.setdefault(run.queue, {})
            places[run.priority] = max(run.place, places.get(run.priority, FRONT))


class Walks:
    """Of one session. ``clock`` is in seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lines: dict[tuple[str, ...], Line] = {}

    def begin(self, wanted: Wanted) -> "Walk":
        """Return the claim that comes next."""
        if not (wanted["limit"] and wanted["queues"]):
            return Walk(self._clock, Line(is_new=False))  # it goes nowhere
        key = tuple(sorted(wanted.get("excluded_tasks", ())))
        if key not in self._lines and len(self._lines) >= MOST_LINES:
            del self._lines[next(iter(self._lines))]
        return Walk(self._clock, self._lines.setdefault(key, Line()))


class Walk:
    """One claim. It is whole, or begins further on."""

    def __init__(self, clock: Callable[[], float], line: Line) -> None:
        self._clock = clock
        self._line = line
        self._began = clock()
        self._tail = FRONT
        self.is_whole = self._began >= line.whole_at

    @property
    def wants_tail(self) -> bool:
        """Whether to ask first how far the table goes, as it is likely that what follows begins there."""
        return self.is_whole and (self._line.is_new or self._line.dear_in_a_row >= PROOFS - 1)

    def set_tail(self, rows: Sequence[tuple[int]]) -> None:
        """Say where the table ends: at the first place that no run has; there is no row if there is no run."""
        self._tail = rows[0][0] if rows else FRONT
        self._began = self._clock()

    def params(self, queues: Sequence[str]) -> dict[str, list[Any]]:
        """Return what the statement that begins further on wants instead of the queues."""
        names, lows, highs, places = zip(*self._line.parts(queues), strict=True)
        return {"queues": list(names), "lows": list(lows), "highs": list(highs), "places": list(places)}

    def end(self, exchange: Exchange, *, limit: int, finished: int) -> Exchange:
        """Take note of what the claim brought; return it with the seconds until what it left out is to be looked at."""
        line, now, claimed = self._line, self._clock(), exchange.claimed
        seconds = now - self._began - ROW_SECONDS * (len(claimed) + finished)
        is_short = len(claimed) < limit
        if self.is_whole:
            self._end_whole(seconds, now, is_short=is_short)
        else:
            line.least_seconds = min(line.least_seconds, seconds)
        if line.is_dear:
            line.learn(claimed)
        if self.is_whole or not is_short:
            return exchange
        return replace(exchange, rest_seconds=max(0.0, line.whole_at - now))

    def _end_whole(self, seconds: float, now: float, *, is_short: bool) -> None:
        line = self._line
        if line.least_seconds < float("inf") and line.least_seconds > line.whole_seconds / 2:
            line.not_before = now + VAIN_SECONDS
        line.whole_seconds, line.least_seconds = seconds, float("inf")
        line.is_new = False
        line.places.clear()
        line.tail = self._tail if is_short else FRONT
        is_beyond_doubt = seconds >= BEYOND_DOUBT * DEAR_SECONDS
        in_a_row = max(line.dear_in_a_row + 1, PROOFS if is_beyond_doubt else 0)
        line.dear_in_a_row = in_a_row if seconds >= DEAR_SECONDS and now >= line.not_before else 0
        # Where the table ends nobody may have asked before it: then it is asked before the next one.
        has_ended_somewhere = line.tail > FRONT or not is_short
        longest_seconds = LONGEST_PAUSE_SECONDS if line.dear_in_a_row > PROOFS else FIRST_PAUSE_SECONDS
        pause_seconds = min(PAUSE_FACTOR * seconds, longest_seconds)
        line.whole_at = now + pause_seconds if line.is_dear and has_ended_somewhere else 0.0
