"""Admission: runs that wait at a limit take the places there that are free. In the dispatcher, on its loop.

Who comes at once: the keys of which a wakeup tells, those whose run has ended here, and those whose rate is due. All
keys at which anybody waits are looked at in turn besides, for what nobody told: a holder was lost, or cancelled by SQL.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence

from django.db import Error as DatabaseError

from ..rates import Limit
from ..store.values import ClaimedRun
from ..wakeups.base import ANY_KEY
from .store_thread import StoreThread

KEYS_AT_ONCE = 100
MOST_OF_A_KEY = 100
BREATH_SECONDS = 0.1  # between two parts of a sweep
MOST_DUE = 10_000  # keys whose next token's time is kept in mind; the sweep finds the others
SOONEST_SECONDS = 0.001
# After an admission: it finds what a thinned wakeup did not announce.
SECOND_LOOK_SECONDS = 0.25


class Admission:
    """Admits runs over all queues. ``announce`` is told of queues that have READY runs now.

    ``sweep_pause`` says for how many seconds no sweep is needed; ``hurry`` has step() called soon.
    """

    def __init__(
        self,
        store: StoreThread,
        limits: Mapping[str, Limit],
        *,
        announce: Callable[[Sequence[str]], Awaitable[None]],
        sweep_pause: Callable[[], float],
        hurry: Callable[[], None],
    ) -> None:
        self._store = store
        self.limited_queues = list(limits)
        self._limits = _document(limits)
        self._announce = announce
        self._sweep_pause = sweep_pause
        self._hurry = hurry
        self._wanted: dict[str, None] = {}
        self._due: dict[str, float] = {}
        self._cursor = ""
        self._sweep_at = 0.0
        self._turn = asyncio.Lock()

    def admit_soon(self, keys: Iterable[str]) -> None:
        """There may be a free place at these keys, or somebody who waits."""
        self._wanted |= dict.fromkeys(keys)
        if ANY_KEY in self._wanted:
            del self._wanted[ANY_KEY]
            self._sweep_at = 0.0
        self._hurry()

    def on_freed(self, runs: Sequence[ClaimedRun]) -> None:
        """These runs do not run here any more: there may be free places, where they have limits."""
        limited = self.limited_queues
        keys = [run.concurrency_key for run in runs if run.concurrency_key is not None]
        if limited:
            keys += [f"queue:{run.queue}" for run in runs if run.queue in limited]
        if keys:
            self.admit_soon(keys)

    def sweep_soon(self) -> None:
        """There may be free places anywhere: begin the next sweep now."""
        self._sweep_at = 0.0
        self._hurry()

    async def step(self) -> float:
        """Admit what is wanted or due, and a part of what else there may be; return in how many seconds to go on."""
        async with self._turn:
            return await self._step()

    def swept(self, keys: Sequence[str], pause: float) -> float:
        """Somebody waits at these keys, the first ones of all: a sweep has begun, and no other is needed in ``pause``.

        Return in how many seconds step() is needed.
        """
        now = asyncio.get_running_loop().time()
        if now < self._sweep_at and not self._cursor and not self._turn.locked():
            self._note(keys, now, pause)
        return self._pause()

    async def settle(self) -> None:
        """Look at every key at which anybody waits, once."""
        async with self._turn:
            self._cursor, self._sweep_at = "", 0.0
            await self._step()
            while self._cursor or self._wanted:
                self._sweep_at = 0.0 if self._cursor else self._sweep_at
                await self._step()

    async def _step(self) -> float:
        now = asyncio.get_running_loop().time()
        if now >= self._sweep_at:
            await self._sweep(now)
        for key in [key for key, due_at in self._due.items() if due_at <= now]:
            del self._due[key]
            self._wanted[key] = None
        keys = list(self._wanted)[:KEYS_AT_ONCE]
        for key in keys:
            del self._wanted[key]
        if keys:
            await self._admit(keys)
        return self._pause()

    def _pause(self) -> float:
        if self._wanted:
            return 0.0
        next_at = min(self._sweep_at, *self._due.values()) if self._due else self._sweep_at
        return max(SOONEST_SECONDS, next_at - asyncio.get_running_loop().time())

    async def _sweep(self, now: float) -> None:
        """Note the next keys at which somebody waits, after those of the last time."""
        keys = await self._store.call(self._store.store.blocked_keys, after=self._cursor, limit=KEYS_AT_ONCE)
        self._note(keys, now, self._sweep_pause())

    def _note(self, keys: Sequence[str], now: float, pause: float) -> None:
        self._wanted |= dict.fromkeys(key for key in keys if key not in self._due)
        is_over = len(keys) < KEYS_AT_ONCE
        self._cursor = "" if is_over else keys[-1]
        self._sweep_at = now + (pause if is_over else BREATH_SECONDS)

    async def _admit(self, keys: Collection[str]) -> None:
        try:
            admitted = await self._store.call(
                self._store.store.admit, list(keys), most=MOST_OF_A_KEY, queue_limits=self._limits
            )
        except DatabaseError:
            self._wanted |= dict.fromkeys(keys)
            raise
        self._wanted |= dict.fromkeys(admitted.next_keys)
        now = asyncio.get_running_loop().time()
        again = dict.fromkeys(keys, SECOND_LOOK_SECONDS) if admitted.queues else {}
        for key, seconds in (again | dict(admitted.later)).items():
            if len(self._due) < MOST_DUE:
                self._due[key] = now + seconds
        if admitted.queues and self._cursor:
            self._sweep_at = 0.0  # there may be as much to admit at the next keys
        await self._announce(admitted.queues)


def _document(limits: Mapping[str, Limit]) -> str:
    """The limits of queues as the store wants them."""
    return json.dumps(
        {
            queue: {
                "concurrency": limit.concurrency,
                "rate_amount": limit.rate.amount if limit.rate else None,
                "rate_seconds": limit.rate.seconds if limit.rate else None,
            }
            for queue, limit in limits.items()
        }
    )
