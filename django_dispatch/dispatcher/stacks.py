"""Asks an executor where a body of its own is. On the dispatcher's loop; the executor's side is executors/stacks.py."""

import asyncio
import os
from pathlib import Path

from ..executors.stacks import STACK_SIGNAL
from ..messages import Kind, Stack
from .executor import Executor, Flight, Token
from .pool import Pool

ANSWER_SECONDS = 0.7  # so that the reply as a whole comes within one
LOOK_SECONDS = 0.01
LARGEST_DUMP = 200_000
# The last line of the main thread, which comes last: an executor is forked from a module that was run.
END_OF_DUMP = b"in _run_module_as_main\n"
SILENT = (
    "Its executor does not answer: it is stopped, or waits for a disk, or its body has taken the signal for itself."
)
OURS = str(Path(__file__).resolve().parent.parent) + os.sep


class Stacks:
    """``await stacks.of(executor, flight)``: one at a time, so that no two dumps are taken for one another."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._turn = asyncio.Lock()
        self._awaited: tuple[Token, asyncio.Future[str]] | None = None

    def on_stack(self, message: Stack) -> None:
        """Take what an event loop says."""
        if self._awaited is not None:
            token, future = self._awaited
            if token == (message.run_id, message.epoch) and not future.done():
                future.set_result(message.text)

    async def of(self, executor: Executor, flight: Flight) -> str:
        """Return the stack of a body: of its coroutine, or of its executor's threads if there is none."""
        async with self._turn:
            if flight.started_at is None:
                return "It has not started."
            if executor.kind != Kind.ASYNC:
                return await self._dump(executor) or SILENT
            if text := await self._ask_loop(executor, flight):
                return text
            dump = await self._dump(executor)
            return f"The event loop is blocked:\n{dump}" if dump else SILENT

    async def _ask_loop(self, executor: Executor, flight: Flight) -> str:
        future = asyncio.get_running_loop().create_future()
        self._awaited = (flight.token, future)
        executor.order_stack(flight)
        try:
            async with asyncio.timeout(ANSWER_SECONDS / 2):
                return str(await future)
        except TimeoutError:
            return ""
        finally:
            self._awaited = None

    async def _dump(self, executor: Executor) -> str:
        """Have the executor dump its threads; empty if it does not."""
        if executor.id not in self._pool.executors:
            return ""
        os.ftruncate(executor.stacks, 0)
        os.lseek(executor.stacks, 0, os.SEEK_SET)  # the executor has the same offset
        executor.zygote.signal(executor.id, STACK_SIGNAL)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + ANSWER_SECONDS / 2
        data = b""
        while END_OF_DUMP not in data and loop.time() < deadline:
            await asyncio.sleep(LOOK_SECONDS)
            if executor.id not in self._pool.executors:
                break
            data = os.pread(executor.stacks, LARGEST_DUMP, 0)
        return _of_the_body(data.decode(errors="replace"))


def _of_the_body(dump: str) -> str:
    """Leave out our own frames, which are below the body's, and what is below them."""
    lines: list[str] = []
    is_below = False
    for line in dump.splitlines():
        if not line.startswith("  "):
            is_below = False
        elif line.startswith(f'  File "{OURS}'):
            is_below = True
        if not is_below:
            lines.append(line)
    return "\n".join(lines).strip()
