"""Trouble with the database, as the parts of a dispatcher know it together: claims, keeper, listener, housekeeping.

However many of them fail, it is one trouble: a line when it begins, one when every part works again, a reminder now
and then. Whoever gets through first has the others try at once, so what the longest pause is, is how long it takes.
"""

import asyncio
import logging
import threading
import time
from collections.abc import Callable

from django.db import DataError

# Between a line and the next beginning or reminder; it doubles while a trouble lasts. The first reminder may know the
# cause better; and a trouble that comes and goes is no flood.
FIRST_SILENCE_SECONDS = 5.0
LONGEST_SILENCE_SECONDS = 60.0
LATELY_SECONDS = 60.0  # parts wait for each other: the last may be failed so much later than the first
UNDEFINED = ("42P01", "42703")  # a table, a column
UNDEFINED_ON_SQLITE = ("no such table", "no such column")

logger = logging.getLogger("django_dispatch.database")


class Trouble:
    """Which parts fail, and since when. On the dispatcher's loop; failed() and succeeded() from any thread."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._failing: set[str] = set()
        self._since = 0.0
        self._spread_at = float("-inf")
        self._failed_at: dict[str, float] = {}
        self._spoke_at = self._silent_until = float("-inf")
        self._silence = FIRST_SILENCE_SECONDS
        self._is_announced = False
        self._relief = asyncio.Event()
        self._on_relief: list[Callable[[], None]] = []

    def failed(self, part: str, error: Exception) -> None:
        """Note that the database fails a part, which will try again after a pause()."""
        with self._lock:
            now = self._clock()
            if not self._failing:
                self._since, self._is_announced, self._silence = now, False, FIRST_SILENCE_SECONDS
            elif part not in self._failing and now - self._since > LONGEST_SILENCE_SECONDS:
                # It may be another trouble: what fails for ever must not hide it.
                self._silent_until = min(self._silent_until, self._spoke_at + FIRST_SILENCE_SECONDS)
            if part not in self._failing:
                self._spread_at = now
            self._failed_at[part] = now
            self._failing.add(part)
            if now < self._silent_until:
                return
            lasted = f" for {now - self._since:.0f} s" if self._is_announced else ""
            self._is_announced, self._spoke_at, self._silent_until = True, now, now + self._silence
            self._silence = min(self._silence * 2, LONGEST_SILENCE_SECONDS)
        logger.warning("Trouble with the database%s (%s): %s; trying again.", lasted, part, text_of(error))

    def succeeded(self, part: str) -> None:
        """Note that a part works; if it failed before, the others may hope."""
        if part not in self._failing:
            return
        with self._lock:
            self._failing.discard(part)
            is_over, seconds = self._is_announced and not self._failing, self._clock() - self._since
        if is_over:
            logger.warning("The trouble with the database is over, after %.1f s.", seconds)
        self._loop.call_soon_threadsafe(self._relieve)

    def explains(self, part: str) -> bool:
        """Return whether the database is why a part does not do its work.

        It has failed that part lately; or it has begun to fail others just now, for whom that one may have to wait.
        """
        with self._lock:
            lately = self._clock() - LATELY_SECONDS
            return self._failed_at.get(part, lately) > lately or (bool(self._failing) and self._spread_at > lately)

    def on_relief(self, callback: Callable[[], None]) -> None:
        """Have ``callback`` called, on the loop, whenever a part that failed works again."""
        self._on_relief.append(callback)

    async def pause(self, seconds: float) -> None:
        """Wait after a failure, until another part gets through, at most ``seconds``."""
        relief = self._relief
        try:
            async with asyncio.timeout(seconds):
                await relief.wait()
        except TimeoutError:
            pass

    def _relieve(self) -> None:
        relief, self._relief = self._relief, asyncio.Event()
        relief.set()
        for callback in self._on_relief:
            callback()


def text_of(error: Exception) -> str:
    """Return the first line of what a database error says, and what to do about it where that is known."""
    text = str(error).strip().split("\n", 1)[0] or type(error).__name__
    if getattr(error.__cause__, "sqlstate", None) in UNDEFINED or text.startswith(UNDEFINED_ON_SQLITE):
        text += "; has manage.py migrate been run on this database?"
    return text


def is_unstorable(error: Exception) -> bool:
    """Return whether the data is to blame: a value that a type cannot hold, or a limit of the program (class 54)."""
    return isinstance(error, DataError) or str(getattr(error.__cause__, "sqlstate", "")).startswith("54")
