"""What async bodies do to the event loop that they share, by name."""

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from typing import Any, NoReturn

from asgiref.sync import sync_to_async

from .misdeeds import Leaves

_left: list[Any] = []  # what is to outlive its body


class OnTheLoop:
    """Bodies that meddle with the event loop that they share."""

    @staticmethod
    async def exit_in_a_subtask() -> None:
        async def leave() -> None:
            await asyncio.sleep(0)
            sys.exit("so long")

        await asyncio.gather(leave())

    @staticmethod
    async def interrupt_in_a_callback() -> str:
        def interrupt() -> NoReturn:
            raise KeyboardInterrupt

        asyncio.get_running_loop().call_soon(interrupt)
        await asyncio.sleep(0.01)
        return "went on"

    @staticmethod
    async def stop_the_loop() -> str:
        asyncio.get_running_loop().stop()
        await asyncio.sleep(0.01)
        return "went on"

    @staticmethod
    async def leave_a_task() -> None:
        async def work() -> None:
            await asyncio.Event().wait()

        _left.append(asyncio.create_task(work()))

    @staticmethod
    async def leave_a_generator() -> None:
        async def count() -> AsyncIterator[int]:
            try:
                while True:
                    yield 1
            finally:
                await asyncio.sleep(0)

        async for _ in count():
            break

    @staticmethod
    async def leave_a_transaction() -> None:
        await sync_to_async(Leaves.open_transaction)()

    @staticmethod
    async def fork_and_return() -> str:
        return "the child" if os.fork() == 0 else "the parent"

    @staticmethod
    async def fork_and_await() -> str:
        if os.fork() == 0:
            while True:  # noqa: ASYNC110
                await asyncio.sleep(0)
        return "the parent"
