"""What there is in the queues, asked of the database when somebody looks, and not too often. In the dispatcher."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from ..metrics.backlogs import FRESH_SECONDS, PATIENCE_SECONDS, SHARE
from ..store.values import Backlog
from .store_thread import StoreThread


class Backlogs:
    """The last known backlog of each queue. ``soon`` runs a coroutine that the database may fail."""

    def __init__(self, store: StoreThread, soon: Callable[[str, Coroutine[Any, Any, None]], None]) -> None:
        self._store = store
        self._soon = soon
        self._asking: asyncio.Event | None = None
        self._not_before = float("-inf")
        self.known: Sequence[Backlog] = ()
        self.known_at: float | None = None
        """When the database said so, by time.monotonic()."""

    async def refresh(self) -> None:
        """Ask, unless that was done a moment ago; return when there is an answer, or patience is at an end."""
        if self._asking is None and time.monotonic() >= self._not_before:
            self._asking = asyncio.Event()
            self._soon("ask for the backlogs", self._ask(self._asking))
        if self._asking is not None:
            try:
                async with asyncio.timeout(PATIENCE_SECONDS):
                    await self._asking.wait()
            except TimeoutError:
                pass

    @property
    def age_seconds(self) -> float | None:
        """How old the figures are."""
        return None if self.known_at is None else time.monotonic() - self.known_at

    async def _ask(self, asking: asyncio.Event) -> None:
        began = time.monotonic()
        try:
            self.known = await self._store.call(self._store.store.backlogs)
            self.known_at = time.monotonic()
        finally:
            now = time.monotonic()
            self._not_before = now + max(FRESH_SECONDS, (now - began) / SHARE)
            self._asking = None
            asking.set()
