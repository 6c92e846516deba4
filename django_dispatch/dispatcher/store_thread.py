"""The one thread on which the dispatcher's loop talks to the store: calls in order, each with a deadline."""

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from django.db import InterfaceError

from ..store.base import Store

P = ParamSpec("P")
R = TypeVar("R")


class StoreThread:
    """``await thread.call(store.verb, …)`` runs the verb there. A call past its deadline has its connection broken."""

    def __init__(self, store: Store, *, deadline_seconds: float) -> None:
        self.store = store
        self.deadline_seconds = deadline_seconds
        self._is_closing = False
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="store")
        self._turn = asyncio.Lock()

    async def call(self, verb: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a verb of the store and return what it returns. Raises ``django.db.Error``."""
        loop = asyncio.get_running_loop()
        async with self._turn:  # so that the deadline begins with the call
            future = loop.run_in_executor(self._executor, lambda: self._call(verb, *args, **kwargs))
            self._set_alarm()
            try:
                # Shielded: a cancelled caller must not leave a call under way that nobody knows of.
                return await asyncio.shield(future)
            finally:
                self._alarm.cancel()

    def _set_alarm(self) -> None:
        self._alarm = asyncio.get_running_loop().call_later(self.deadline_seconds, self._break_off)

    def _call(self, verb: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        if self._is_closing:  # its caller is gone, and each may take seconds to find out that the database is, too
            raise InterfaceError("The dispatcher ends.")
        return verb(*args, **kwargs)

    def _break_off(self) -> None:
        """Break the connection under the call; again later, if there is none yet."""
        self._set_alarm()
        self.store.abort()

    async def close(self) -> None:
        """Let the call under way end, none that waits begin, then close the connection."""
        self._is_closing = True
        loop = asyncio.get_running_loop()
        await loop.run_in_executor(self._executor, self.store.close)
        self._executor.shutdown(wait=False)
