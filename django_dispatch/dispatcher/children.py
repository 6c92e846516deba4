"""Keeps a zygote alive and the pool filled from it. On the dispatcher's loop."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

from ..conf import DispatchSettings
from ..executors.fence import Board
from ..finish import TaskFacts
from ..messages import Kind
from . import process
from .backoff import Backoff
from .pool import Pool
from .shutdown import until
from .zygote import ZygoteProcess

LONGEST_CHECK_SECONDS = 2.0  # how soon PostgreSQL ends the statement of a dead executor
CLOSE_SECONDS = 3.0

logger = logging.getLogger("django_dispatch.dispatcher")


class Children:
    """The zygote, started again when it dies. ``soon`` runs a named coroutine; ``may_fill`` says if bodies may run."""

    def __init__(
        self,
        settings: DispatchSettings,
        board: Board,
        pool: Pool,
        *,
        verbosity: int,
        soon: Callable[[str, Coroutine[Any, Any, None]], None],
        may_fill: Callable[[], bool],
    ) -> None:
        self._board = board
        self._pool = pool
        self._soon = soon
        self._may_fill = may_fill
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff(first_seconds=1.0, longest_seconds=30.0)
        self._zygote: ZygoteProcess | None = None
        self._gone = asyncio.Event()
        self._is_ready = False
        self._is_closing = False
        self.boot_mark = uuid4().hex
        """In the environment of the zygote and all that descends from it, so that they are found when we are dead."""
        self._ready_timeout_seconds = settings.executor_ready_timeout_seconds
        self._config = {
            "dispatcher_pid": os.getpid(),
            "node": settings.node,
            "board": board.descriptor,
            "slots": board.slots,
            "verbosity": verbosity,
            "async_concurrency": settings.async_concurrency,
            "connection_check_seconds": min(LONGEST_CHECK_SECONDS, settings.margin_seconds / 2),
            "limits": {
                "max_runs": settings.executor_max_runs,
                "max_age_seconds": settings.executor_max_age_seconds,
                "max_memory_mb": settings.executor_max_memory_mb,
            },
        }

    def start(self) -> None:
        """Start a zygote, unless the dispatcher is ending."""
        if self._is_closing:
            return
        self._is_ready = False
        self._gone.clear()
        self._zygote = ZygoteProcess(
            self._config, self._board, self.boot_mark, on_news=self._on_news, on_gone=self._on_gone
        )
        self._loop.call_later(self._ready_timeout_seconds, self._give_up, self._zygote)

    def fill(self) -> None:
        """Have the pool start what it is missing, if a zygote is there and bodies may run."""
        if self._zygote is not None and self._is_ready and self._may_fill() and not self._is_closing:
            self._pool.fill(self._zygote)

    async def close(self) -> None:
        """End the zygote, which kills what is left of its executors."""
        self._is_closing = True
        zygote = self._zygote
        if zygote is None:
            return
        zygote.close()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await self._gone.wait()
        except TimeoutError:
            zygote.destroy()

    def _give_up(self, zygote: ZygoteProcess) -> None:
        if zygote is self._zygote and not self._is_ready:
            logger.error("The project was not imported within %g s; the zygote is killed.", self._ready_timeout_seconds)
            zygote.destroy()

    def _on_news(self, event: str, facts: dict[str, Any]) -> None:
        if event == "spawned":
            self._pool.on_spawned(facts["executor"], facts["pid"])
        elif event == "exited":
            self._pool.on_exited(facts["executor"], facts["status"], facts["cause"], facts["peak_kb"])
        elif event == "ready":
            self._on_ready(facts["tasks"], facts["broken"])

    def _on_ready(self, tasks: dict[str, dict[str, Any]], broken: dict[str, str]) -> None:
        self._pool.facts = {
            path: TaskFacts(Kind(task["kind"]), task["timeout_seconds"], task["max_attempts"], task["on_lost"])
            for path, task in tasks.items()
        }
        for module, error in broken.items():
            logger.error("The task module %s cannot be imported: %s", module, error.strip().rsplit("\n", 1)[-1])
        self._is_ready = True
        self._backoff.reset()
        logger.info("Ready: %s known.", "1 task" if len(tasks) == 1 else f"{len(tasks)} tasks")
        self.fill()

    def _on_gone(self, status: int) -> None:
        self._gone.set()
        self._zygote = None
        self._soon("bury", self._bury())
        if not self._is_closing:
            pause = self._backoff.next_seconds()
            logger.error("The zygote is gone (status %s); a new one is started in %.1f s.", status, pause)
            self._loop.call_later(pause, self.start)

    async def _bury(self) -> None:
        """The kernel kills the executors with their zygote; settle what they had when they are surely gone."""
        pids = [executor.pid for executor in self._pool.executors.values() if executor.pid is not None]
        await until(lambda: not any(process.start_time(pid) for pid in pids), seconds=float("inf"))
        self._pool.zygote_died()
