"""Runs that were on an event loop together when its executor died: each runs alone next time. On the dispatcher's loop.

One of them may have killed it, and nobody knows which. Alone, the guilty one is found out, and the others pay no more.
"""

from collections.abc import Callable, Iterable

from .executor import Executor, Flight

MOST_APART = 16  # executors, each for one run
MOST_SUSPECTS = 10_000  # that are remembered


class Quarantine:
    """``spawn`` starts an executor that is apart from the others, for one run, if that is possible now."""

    def __init__(self, spawn: Callable[[], None]) -> None:
        self._spawn = spawn
        self._suspects: dict[int, None] = {}

    def suspect(self, flights: Iterable[Flight]) -> None:
        """Remember runs that were lost together."""
        for flight in flights:
            self._suspects[flight.run.id] = None
        while len(self._suspects) > MOST_SUSPECTS:
            del self._suspects[next(iter(self._suspects))]

    def acquit(self, flight: Flight) -> None:
        """Forget a run that was alone, and has killed nobody."""
        self._suspects.pop(flight.run.id, None)

    def holds(self, flight: Flight) -> bool:
        """Whether this run is to run alone."""
        return bool(self._suspects) and flight.run.id in self._suspects

    def assign(self, flight: Flight, executors: Iterable[Executor]) -> bool:
        """Put a suspect to an executor of its own; False: it has to wait for one."""
        apart = [executor for executor in executors if executor.is_apart]
        unused = [executor for executor in apart if not executor.is_doomed]
        for executor in unused:
            if executor.is_ready:
                executor.assign(flight)
                executor.is_doomed = executor.is_let_go = True  # it gets nothing more, and ends when this has ended
                return True
        if not unused and len(apart) < MOST_APART:
            self._spawn()
        return False
