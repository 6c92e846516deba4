"""Keeps a zygote alive and the pool filled from it; replaces it when the project is to be imported afresh.

On the dispatcher's loop.
"""

import asyncio
import logging
import os
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import uuid4

from .. import retry
from ..conf import DispatchSettings
from ..executors.fence import ZYGOTES, Board, now_ns
from ..finish import TaskFacts
from ..messages import Kind
from ..store.schedule_rows import Declaration
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
    """The zygote, started again when it dies. ``soon`` runs a named coroutine; ``may_fill`` says if bodies may run.

    ``on_known`` is told whenever the tasks are known, of this code or of that which succeeds it.
    """

    def __init__(
        self,
        settings: DispatchSettings,
        board: Board,
        pool: Pool,
        *,
        verbosity: int,
        soon: Callable[[str, Coroutine[Any, Any, None]], None],
        may_fill: Callable[[], bool],
        on_known: Callable[[], None],
    ) -> None:
        self._board = board
        self._pool = pool
        self._soon = soon
        self._may_fill = may_fill
        self._on_known = on_known
        self._loop = asyncio.get_running_loop()
        self._backoff = Backoff(first_seconds=1.0, longest_seconds=30.0)
        self._zygote: ZygoteProcess | None = None
        self._successor: ZygoteProcess | None = None
        self._living: set[ZygoteProcess] = set()
        self._is_closing = False
        self.boot_mark = uuid4().hex
        """In the environment of the zygote and all that descends from it, so that they are found when we are dead."""
        self._ready_timeout_seconds = settings.executor_ready_timeout_seconds
        self.look_seconds = min(LONGEST_LOOK_SECONDS, settings.margin_seconds / 8)
        """How often look_at_zygotes() is to be called."""
        # In looks, for a machine that was suspended as a whole has not looked either.
        self._most_looks = int(max(SHORTEST_STANDSTILL_SECONDS, settings.lease_ttl_seconds / 2) / self.look_seconds)
        self._overdue_seconds = settings.margin_seconds / 4
        self._config = _config(settings, board, verbosity)

    @property
    def zygote_pid(self) -> int | None:
        return self._zygote.pid if self._zygote is not None else None

    @property
    def _is_ready(self) -> bool:
        return self._zygote is not None and self._zygote.is_ready

    def start(self) -> None:
        """Start a zygote, unless the dispatcher is ending, or a successor has come first."""
        if not self._is_closing and self._zygote is None:
            self._zygote = self._launch()

    def recycle(self) -> bool:
        """Import the project afresh; once that is done, no executor of the old code gets anything more.

        False: that is under way already, or there is nothing old yet, or executors of too many older codes are left.
        """
        if self._successor is not None or self._is_closing or not self._is_ready or len(self._living) >= ZYGOTES:
            return False
        self._successor = self._launch()
        return True

    def _launch(self) -> ZygoteProcess:
        zygote = ZygoteProcess(
            self._config,
            self._board,
            next(number for number in range(ZYGOTES) if number not in {zygote.number for zygote in self._living}),
            self.boot_mark,
            on_news=lambda event, facts: self._on_news(zygote, event, facts),
            on_gone=lambda status: self._on_gone(zygote, status),
        )
        self._living.add(zygote)
        self._loop.call_later(self._ready_timeout_seconds, self._give_up, zygote)
        return zygote

    def fill(self) -> None:
        """Have the pool start what it is missing, if a zygote is there and bodies may run."""
        if self._zygote is not None and self._is_ready and self._may_fill() and not self._is_closing:
            self._pool.fill(self._zygote)

    def look_at_zygotes(self) -> None:
        """Replace a zygote that does nothing any more: the switch must work. Its executors are killed with it."""
        for zygote in [zygote for zygote in self._living if zygote.is_ready]:
            turned, now = zygote.look(), now_ns()
            overdue = (now - self._board.deadline_ns()) / 1e9
            has_bodies = any(executor.is_ready for executor in self._pool.children_of(zygote))
            if overdue > self._overdue_seconds and has_bodies:
                logger.error(
                    "The zygote has not killed what had to be dead %.1f s ago; it is killed, and they.", overdue
                )
            elif zygote.looks_at_same_turn > self._most_looks:
                still = (now - turned) / 1e9
                logger.error("The zygote has stood still for %.1f s; it is killed with its executors.", still)
            else:
                continue
            for executor in self._pool.children_of(zygote):
                executor.kill_past_zygote()
            zygote.destroy()
        process.reap_adopted({zygote.pid for zygote in self._living})

    async def close(self) -> None:
        """End the zygote, which kills what is left of its executors."""
        self._is_closing = True
        for zygote in list(self._living):
            zygote.close()
        if not await until(lambda: not self._living, seconds=CLOSE_SECONDS):
            for zygote in self._living:
                zygote.destroy()

    def _give_up(self, zygote: ZygoteProcess) -> None:
        if zygote is self._successor or (zygote is self._zygote and not self._is_ready):
            logger.error("The project was not imported within %g s; the zygote is killed.", self._ready_timeout_seconds)
            zygote.destroy()

    def _on_news(self, zygote: ZygoteProcess, event: str, facts: dict[str, Any]) -> None:
        if event == "spawned":
            self._pool.on_spawned(facts["executor"], facts["pid"])
        elif event == "exited":
            self._pool.on_exited(facts["executor"], facts["status"], facts["cause"], facts["peak_kb"], facts["note"])
            self._end_old()
        elif event == "ready":
            if zygote is self._successor and facts["broken"]:
                return self._refuse_successor(facts["broken"])
            if zygote is self._successor:
                self._succeed(zygote)
            zygote.is_ready = True
            self._on_ready(facts["tasks"], facts["broken"])

    def _refuse_successor(self, broken: dict[str, str]) -> None:
        """Runs of tasks that were known so far must not fail as unknown."""
        successor, self._successor = self._successor, None
        if successor is not None:
            successor.close()
        for module, error in broken.items():
            text = error.strip().rsplit("\n", 1)[-1]
            logger.error("The project was not imported afresh, the old code goes on: module %s: %s", module, text)

    def _succeed(self, successor: ZygoteProcess) -> None:
        """Let go of the executors of the old code; the fill that follows is of the new."""
        old, self._zygote, self._successor = self._zygote, successor, None
        logger.info("The project was imported afresh; executors of the old code end when they have ended their runs.")
        self._pool.filling.stop()
        if old is not None:
            for executor in self._pool.children_of(old):
                self._pool.let_go(executor)
        self._end_old()

    def _end_old(self) -> None:
        """End zygotes that were succeeded, when the last of their executors is gone."""
        for zygote in self._living - {self._zygote, self._successor}:
            if not self._pool.children_of(zygote):
                zygote.close()

    def _on_ready(self, tasks: dict[str, dict[str, Any]], broken: dict[str, str]) -> None:
        self._pool.facts = {path: _facts_of(task) for path, task in tasks.items()}
        self._on_known()
        for module, error in broken.items():
            logger.error("The task module %s cannot be imported: %s", module, error.strip().rsplit("\n", 1)[-1])
        self._backoff.reset()
        logger.info("Ready: %s known.", "1 task" if len(tasks) == 1 else f"{len(tasks)} tasks")
        self.fill()

    def _on_gone(self, zygote: ZygoteProcess, status: int) -> None:
        self._living.discard(zygote)
        if zygote is self._successor:
            self._successor = None
            logger.error("The project could not be imported afresh (status %s); the old code goes on.", status)
            return
        pause = None
        if zygote is self._zygote:
            self._zygote = None
            pause = self._backoff.next_seconds()
            if not self._is_closing:
                logger.error("The zygote is gone (status %s); a new one is started in %.1f s.", status, pause)
        self._soon("bury", self._bury(zygote, pause))

    async def _bury(self, zygote: ZygoteProcess, pause: float | None) -> None:
        """The kernel kills the executors with their zygote; settle what they had when they are surely gone.

        Only then, after a ``pause``, comes a new zygote in its place; None: there is one, or none is needed.
        """
        pids = [executor.pid for executor in self._pool.children_of(zygote) if executor.pid is not None]
        for pid in pids:  # what bodies started does not die with the zygote
            process.kill_group(pid)
        await until(lambda: not any(process.start_time(pid) for pid in pids), seconds=float("inf"))
        self._pool.zygote_died(zygote)
        if pause is not None:
            self._loop.call_later(pause, self.start)


def _facts_of(task: dict[str, Any]) -> TaskFacts:
    """What a zygote tells of a task."""
    kind, backoff = Kind(task["kind"]), retry.from_document(task["backoff"])
    schedules = tuple(Declaration(**schedule) for schedule in task["schedules"])
    return TaskFacts(**{**task, "kind": kind, "backoff": backoff, "schedules": schedules})


def _config(settings: DispatchSettings, board: Board, verbosity: int) -> dict[str, Any]:
    """What a zygote is told at its start."""
    return {
        "dispatcher_pid": os.getpid(),
        "node": settings.node,
        "board": board.descriptor,
        "slots": board.slots,
        "verbosity": verbosity,
        "log_format": settings.log_format,
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
