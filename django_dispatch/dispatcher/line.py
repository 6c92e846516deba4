"""The session for what must not wait: replies, cancels, runs that come as messages. On the dispatcher's loop.

A session of its own, opened when it is needed and closed when it was not for a while, so that a long sweep does not
hold up an answer. When it cannot be had, because all connections are taken say, the store's is used.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import TypeVar

from django.db import Error as DatabaseError

from ..store.base import Store
from .store_thread import StoreThread

R = TypeVar("R")

IDLE_SECONDS = 60.0

logger = logging.getLogger("django_dispatch.control")


class Line:
    """``await line.call(lambda store: store.verb(…))`` makes the call on whichever session can be had."""

    def __init__(self, own: StoreThread, other: StoreThread) -> None:
        self._own = own
        self._other = other
        self._hang_up: asyncio.TimerHandle | None = None
        self._hanging_up: asyncio.Task[None] | None = None

    async def call(self, verb: Callable[[Store], R]) -> R:
        """Run a verb and return what it returns. Raises ``django.db.Error``."""
        self._keep_open()
        try:
            return await self._own.call(verb, self._own.store)
        except DatabaseError as error:
            if not _is_about_the_connection(error):
                raise
            logger.debug("The session for control cannot be had (%s); the store's is used.", error)
        return await self._other.call(verb, self._other.store)

    def _keep_open(self) -> None:
        if self._hang_up is not None:
            self._hang_up.cancel()
        self._hang_up = asyncio.get_running_loop().call_later(IDLE_SECONDS, self._close_idle)

    def _close_idle(self) -> None:
        self._hanging_up = asyncio.get_running_loop().create_task(
            self._own.call(self._own.store.close), name="close idle session"
        )

    async def close(self) -> None:
        """Close the session."""
        if self._hang_up is not None:
            self._hang_up.cancel()
        await self._own.close()


def _is_about_the_connection(error: DatabaseError) -> bool:
    """Whether no statement can have been carried out, or its answer was lost: all verbs here can be repeated."""
    state = getattr(error.__cause__, "sqlstate", None)
    return state is None or str(state)[:2] in ("08", "53", "57")
