"""What is known of Redis: whether it is worth trying. One line when it fails, one when it works again."""

import logging
import threading
import time
from collections.abc import Callable

PAUSE_SECONDS = 3.0

logger = logging.getLogger("django_dispatch.wakeups")


class Breaker:
    """After a failure nobody tries for ``pause_seconds``, then one at a time. Any thread may ask and tell."""

    def __init__(self, *, pause_seconds: float = PAUSE_SECONDS, clock: Callable[[], float] = time.monotonic) -> None:
        self._pause_seconds = pause_seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._failing_since: float | None = None
        self._closed_until = 0.0

    def may_try(self) -> bool:
        """Return whether to try; whoever is told so after a failure is the only one for a while."""
        if self._failing_since is None:
            return True
        with self._lock:
            now = self._clock()
            if now < self._closed_until:
                return False
            self._closed_until = now + self._pause_seconds
            return True

    def failed(self, error: Exception) -> None:
        """Note a failure; log the first."""
        with self._lock:
            now = self._clock()
            is_first, self._closed_until = self._failing_since is None, now + self._pause_seconds
            if is_first:
                self._failing_since = now
        if is_first:
            text = str(error).strip().split("\n", 1)[0].rstrip(".")
            logger.warning("Wakeups by Redis fail: %s. Runs are found without them.", text or _name_of(error))

    def succeeded(self) -> None:
        """Note that it works; log it if it did not."""
        if self._failing_since is None:
            return
        with self._lock:
            since, self._failing_since = self._failing_since, None
        if since is not None:
            logger.warning("Wakeups by Redis work again, after %.1f s.", self._clock() - since)


def _name_of(error: Exception) -> str:
    return "no answer in time" if isinstance(error, TimeoutError) else type(error).__name__
