"""Keeps a zygote alive and the pool filled from it. On the dispatcher's loop."""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

from ..conf import DispatchSettings
from ..executors.fence import Board, now_ns
from ..finish import TaskFacts
from ..messages import Kind
from . import process
from .backoff import Backoff
from .pool import Pool
from .shutdown import until
from .zygote import ZygoteProcess

LONGEST_CHECK_SECONDS = 2.0  # how soon PostgreSQL ends the statement of a dead executor
CLOSE_SECONDS = 3.0
SHORTEST_STANDSTILL_SECONDS = 3.0
LONGEST_LOOK_SECONDS = 0.25

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
        self.look_seconds = min(LONGEST_LOOK_SECONDS, settings.margin_seconds / 8)
        """How often look_at_zygote() is to be called."""
        # In looks, for a machine that was suspended as a whole has not looked either.
        self._most_looks = int(max(SHORTEST_STANDSTILL_SECONDS, settings.lease_ttl_seconds / 2) / self.look_seconds)
        self._looks_at_same = 0
        self._last_turn_ns = 0
        self._overdue_seconds = settings.margin_seconds / 4
        self._config = _config(settings, board, verbosity)

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

    def look_at_zygote(self) -> None:
        """Replace a zygote that does nothing any more: the switch must work. Its executors are killed with it."""
        if self._zygote is None or not self._is_ready:
            return
        now, turned = now_ns(), self._board.last_turn_ns()
        self._looks_at_same = self._looks_at_same + 1 if turned == self._last_turn_ns else 0
        self._last_turn_ns = turned
        overdue = (now - self._board.deadline_ns()) / 1e9
        if overdue > self._overdue_seconds and any(executor.is_ready for executor in self._pool.executors.values()):
            logger.error("The zygote has not killed what had to be dead %.1f s ago; it is killed, and they.", overdue)
        elif self._looks_at_same > self._most_looks:
            still = (now - turned) / 1e9
            logger.error("The zygote has stood still for %.1f s; it is killed with its executors.", still)
        else:
            return
        self._is_ready = False
        self._pool.kill_past_zygote()
        self._zygote.destroy()

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
            self._pool.on_exited(facts["executor"], facts["status"], facts["cause"], facts["peak_kb"], facts["note"])
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
        pause = self._backoff.next_seconds()
        if not self._is_closing:
            logger.error("The zygote is gone (status %s); a new one is started in %.1f s.", status, pause)
        self._soon("bury", self._bury(pause))

    async def _bury(self, pause: float) -> None:
        """The kernel kills the executors with their zygote; settle what they had when they are surely gone.

        Only then comes a new zygote, whose executors must not be taken for those.
        """
        pids = [executor.pid for executor in self._pool.executors.values() if executor.pid is not None]
        for pid in pids:  # what bodies started does not die with the zygote
            process.kill_group(pid)
        await until(lambda: not any(process.start_time(pid) for pid in pids), seconds=float("inf"))
        self._pool.zygote_died()
        self._loop.call_later(pause, self.start)


def _config(settings: DispatchSettings, board: Board, verbosity: int) -> dict[str, Any]:
    """What a zygote is told at its start."""
    return {
        "dispatcher_pid": os.getpid(),
        "node": settings.node,
        "board": board.descriptor,
        "slots": board.slots,
        "verbosity": verbosity,
        "async_concurrency": settings.async_concurrency,
        "connection_check_seconds": min(LONGEST_CHECK_SECONDS, settings.margin_seconds / 2),
        # A partition begins at most one renewal before the last that succeeded: so the session ends with the lease.
        "connection_silence_seconds": settings.lease_ttl_seconds - settings.renew_seconds,
        "limits": {
            "max_runs": settings.executor_max_runs,
            "max_age_seconds": settings.executor_max_age_seconds,
            "max_memory_mb": settings.executor_max_memory_mb,
        },
    }
