"""A claims loop by itself, and a store that says what its lease holds when the test lets it."""

import asyncio
from typing import Any
from unittest.mock import Mock
from uuid import UUID

from django_dispatch.dispatcher.claims import Claims, Hooks
from django_dispatch.dispatcher.queues import Queues
from django_dispatch.dispatcher.stats import Stats
from django_dispatch.dispatcher.trouble import Trouble


def new_claims(
    exchangers: Any,
    store: Any,
    pool: Any,
    *,
    max_runs: int | None = None,
    hooks: Hooks | None = None,
    stats: Any = None,
) -> Claims:
    return Claims(
        exchangers,
        store,
        pool,
        queues=Queues(("default",)),
        max_interruptions=1,
        max_runs=max_runs,
        hooks=hooks or Hooks(),
        trouble=Trouble(),
        stats=stats or Stats(),
    )


class HeldByTest:
    """A store that is asked for what is held, and is answered by the test; from ``let()`` on, that it is nothing."""

    deadline_seconds = 60.0
    store = Mock()

    def __init__(self) -> None:
        self.asked: asyncio.Queue[asyncio.Future[list[tuple[int, int]]]] = asyncio.Queue()
        self._is_let = False

    def let(self) -> None:
        self._is_let = True
        while not self.asked.empty():
            self.asked.get_nowait().set_result([])

    async def call(self, verb: Any, lease_id: UUID) -> list[tuple[int, int]]:
        answer: asyncio.Future[list[tuple[int, int]]] = asyncio.get_running_loop().create_future()
        if self._is_let:
            return []
        self.asked.put_nowait(answer)
        return await answer
