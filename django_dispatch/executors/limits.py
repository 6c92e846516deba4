"""When an executor makes room for a fresh one: after enough runs, at a great age, above a size. In executors."""

import random
import resource
import sys
from dataclasses import dataclass
from time import monotonic  # bodies may put something else in its place

LOOK_SECONDS = 0.02  # age and size are not looked at after every tiny run
_UNITS_PER_KB = 1024 if sys.platform == "darwin" else 1  # ru_maxrss is in bytes there


@dataclass(frozen=True, slots=True)
class Limits:
    """None means no limit."""

    max_runs: int | None
    max_age_seconds: float | None
    max_memory_mb: int | None


class Lifetime:
    """One executor's use of its limits."""

    def __init__(self, limits: Limits) -> None:
        # Spread, so that executors born together do not retire together.
        spread = random.uniform(0.9, 1.1)
        self._max_runs = limits.max_runs
        self._ends_at = monotonic() + limits.max_age_seconds * spread if limits.max_age_seconds else float("inf")
        self._max_memory_kb = limits.max_memory_mb * 1024 if limits.max_memory_mb else None
        self._runs = 0
        self._next_look_at = 0.0
        self._is_ended = False

    def end(self) -> None:
        """Retire before the next run, whatever the limits."""
        self._is_ended = True

    def count_run(self) -> None:
        self._runs += 1

    def is_over(self) -> bool:
        """Return whether to retire before the next run."""
        if self._is_ended:
            return True
        if self._runs == 0:
            return False  # whoever is born too large would never run anything
        if self._max_runs is not None and self._runs >= self._max_runs:
            return True
        now = monotonic()
        if now < self._next_look_at:
            return False
        self._next_look_at = now + LOOK_SECONDS
        if now >= self._ends_at:
            return True
        if self._max_memory_kb is None:
            return False
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // _UNITS_PER_KB > self._max_memory_kb
