"""How many executors there are to be, and the start of those that are missing. On the dispatcher's loop."""

import asyncio
import itertools
from collections.abc import Callable

from ..executors.fence import Board, now_ns
from ..messages import Kind
from .backoff import Backoff
from .executor import Executor, Zygote
from .stats import Stats

FENCED_SECONDS = 0.1


class Filling:
    """Starts executors through a zygote while there is one. ``wanted`` says how many of a kind there are to be."""

    def __init__(
        self,
        board: Board,
        executors: dict[int, Executor],
        *,
        async_concurrency: int,
        wanted: Callable[[Kind], int],
        on_readable: Callable[[Executor], None],
        stats: Stats,
    ) -> None:
        self._board = board
        self._executors = executors
        self._async_concurrency = async_concurrency
        self._wanted = wanted
        self._on_readable = on_readable
        self._stats = stats
        self._loop = asyncio.get_running_loop()
        self._ids = itertools.count(1)
        self._backoff = Backoff(first_seconds=0.5, longest_seconds=30.0)
        self._respawn: asyncio.TimerHandle | None = None
        self._zygote: Zygote | None = None
        self._is_on = False

    def begin(self, zygote: Zygote) -> None:
        """Start what is missing, now and whenever an executor dies, through this zygote."""
        self._zygote = zygote
        self._is_on = True
        self.fill()

    def stop(self) -> None:
        """Start nothing more until begin()."""
        self._is_on = False

    def zygote_died(self, zygote: Zygote) -> None:
        """Start nothing more through this one."""
        if zygote is self._zygote:
            self._zygote = None
            self._is_on = False

    def fill(self) -> None:
        """Start what is missing, as soon as bodies may run."""
        self._respawn = None
        if self._zygote is None or not self._is_on:
            return
        if now_ns() >= self._board.deadline_ns():  # whoever was born now would be killed at once
            self._respawn = self._loop.call_later(FENCED_SECONDS, self.fill)
            return
        for kind in Kind:
            here = [executor for executor in self._executors.values() if executor.kind == kind]
            present = sum(not (executor.is_doomed or executor.is_apart) for executor in here)
            for _ in range(self._wanted(kind) - present):
                self._spawn(self._zygote, kind)

    def fill_soon(self, *, at_once: bool) -> None:
        """An executor has died: replace it, after a growing pause if it died before it was ready."""
        if at_once and self._respawn is None:
            self.fill()
        elif self._respawn is None:
            self._respawn = self._loop.call_later(self._backoff.next_seconds(), self.fill)

    def note_ready(self) -> None:
        """An executor has become ready: the next one will be, too."""
        self._backoff.reset()

    def spawn_apart(self) -> None:
        """Start an executor for one async run that has to be alone, if that is possible now."""
        if self._zygote is not None and self._is_on and now_ns() < self._board.deadline_ns():
            self._spawn(self._zygote, Kind.ASYNC, is_apart=True)

    def _spawn(self, zygote: Zygote, kind: Kind, *, is_apart: bool = False) -> None:
        taken = {executor.slot for executor in self._executors.values()}
        slot = next((slot for slot in range(self._board.slots) if slot not in taken), None)
        if slot is None:
            return  # so many are still dying; the next exit comes back here
        self._board.clear_slot(slot)
        capacity = 1 if kind == Kind.SYNC or is_apart else self._async_concurrency
        executor = Executor(next(self._ids), kind, slot, capacity, self._loop.time(), self._loop, zygote)
        executor.is_apart = is_apart
        zygote.spawn(executor.id, kind=kind, slot=slot, descriptors=executor.descriptors)
        executor.forget_their_stream()
        self._stats.executors_started[kind.value] += 1
        self._executors[executor.id] = executor
        self._loop.add_reader(executor.stream, self._on_readable, executor)
