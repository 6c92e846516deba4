"""Pauses between attempts at something that fails."""

import random

FIRST_PAUSE_SECONDS = 0.1
# A database that is back is noticed within this (twice as long by housekeeping) and CONNECT_SECONDS, or a statement's
# deadline: see docs/recovery.md.
LONGEST_PAUSE_SECONDS = 3.0


class Backoff:
    """Jittered pauses that double from ``first_seconds`` to ``longest_seconds``, until reset()."""

    def __init__(self, *, first_seconds: float = FIRST_PAUSE_SECONDS, longest_seconds: float = LONGEST_PAUSE_SECONDS):
        self._first = first_seconds
        self._longest = longest_seconds
        self._ceiling = first_seconds

    def next_seconds(self) -> float:
        """Return the next pause: between half of it and all, so that a fleet does not come back as one."""
        pause = random.uniform(self._ceiling / 2, self._ceiling)
        self._ceiling = min(self._ceiling * 2, self._longest)
        return pause

    def reset(self) -> None:
        """Start again from the shortest pause."""
        self._ceiling = self._first
