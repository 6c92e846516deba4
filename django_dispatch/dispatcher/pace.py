"""How often the claims loop looks for READY runs, and what it spares the database. On the dispatcher's loop."""

import asyncio
from collections import deque
from collections.abc import Callable

# Second looks after one that found work: they find what a thinned or gated wakeup did not announce.
SECOND_LOOKS_SECONDS = (0.05, 0.25)
# Looks that find nothing: so many at once, then so many a second. A flood of wakeups costs no flood of statements.
VAIN_LOOKS = 20
VAIN_LOOKS_PER_SECOND = 50.0

LONG_WALK_SECONDS = 0.05
WALKS = 3
WALKING_SHARE = 0.2


class Pace:
    """``look`` is called when it is time for another look, ``wake`` when one that was put off may be made."""

    def __init__(self, *, look: Callable[[], None], wake: Callable[[], None]) -> None:
        self._look = look
        self._wake = wake
        self._loop = asyncio.get_running_loop()
        self._no_look_before = 0.0
        self._no_picking_before = 0.0
        self._walks: deque[float] = deque(maxlen=WALKS)
        self._second_looks: list[asyncio.TimerHandle] = []
        self._rest: asyncio.TimerHandle | None = None

    def may_look(self) -> bool:
        """Return whether a look that may well find nothing can be made now."""
        return self._loop.time() >= self._no_look_before

    def may_pick(self) -> bool:
        """Return whether one lane's runs may be picked from among the other's now."""
        return self._loop.time() >= self._no_picking_before

    def found_nothing(self) -> None:
        """After a look in vain: the next one has to wait if there were too many lately."""
        now = self._loop.time()
        # Each puts it off by its share of a second; a quiet time is worth so many at once.
        self._no_look_before = max(self._no_look_before, now - VAIN_LOOKS / VAIN_LOOKS_PER_SECOND)
        self._no_look_before += 1 / VAIN_LOOKS_PER_SECOND
        if self._no_look_before > now:
            self._loop.call_at(self._no_look_before, self._wake)

    def found_all(self) -> None:
        """After a look that found less than there was room for: look again soon."""
        for handle in self._second_looks:
            handle.cancel()
        self._second_looks = [self._loop.call_later(seconds, self._look) for seconds in SECOND_LOOKS_SECONDS]

    @property
    def has_rest(self) -> bool:
        """Whether a claim has left something out that is yet to be looked at."""
        return self._rest is not None

    def look_at_rest(self, seconds: float) -> None:
        """After a claim that has not looked at everything: look again when the next one does."""
        if self._rest is not None:
            self._rest.cancel()
        self._rest = self._loop.call_later(seconds, self._look_at_rest)

    def _look_at_rest(self) -> None:
        self._rest = None
        self._look()

    def picked(self, began: float) -> None:
        """Picking one lane's runs from among the other's walks the backlog; walks that prove long are not all we do.

        One slow answer proves nothing: a commit, or the machine, may have been slow.
        """
        now = self._loop.time()
        self._walks.append(now - began)
        shortest = min(self._walks)
        if len(self._walks) == WALKS and shortest > LONG_WALK_SECONDS:
            self._no_picking_before = now + shortest / WALKING_SHARE
            self._loop.call_at(self._no_picking_before, self._look)
