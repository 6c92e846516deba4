"""The dispatcher's asyncio tasks: named, held, and missed when they fail. On its loop."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from django.db import Error as DatabaseError

CANCEL_SECONDS = 2.0

logger = logging.getLogger("django_dispatch.dispatcher")


class OwnTasks:
    """``on_failed`` is called when a task fails: the dispatcher cannot go on without."""

    def __init__(self, on_failed: Callable[[], None]) -> None:
        self._on_failed = on_failed
        self._loop = asyncio.get_running_loop()
        self._tasks: set[asyncio.Task[Any]] = set()

    def own(self, name: str, work: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine as a named task."""
        task = self._loop.create_task(work, name=name)
        task.add_done_callback(self._on_done)
        self._tasks.add(task)

    def soon(self, name: str, work: Coroutine[Any, Any, None]) -> None:
        """Do something once, out of turn. If the database fails it, a timer comes to it later."""

        async def once() -> None:
            try:
                await work
            except DatabaseError as error:
                logger.debug("Could not %s: %s", name, error)

        self.own(name, once())

    async def cancel(self) -> None:
        """End them all."""
        for task in self._tasks:
            task.remove_done_callback(self._on_done)
            task.cancel()
        await asyncio.wait(self._tasks, timeout=CANCEL_SECONDS)

    def _on_done(self, task: asyncio.Task[Any]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.critical("The %s task failed; the dispatcher ends.", task.get_name(), exc_info=task.exception())
            self._on_failed()
