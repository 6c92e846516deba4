"""The listening end of pg_notify: no notification is swallowed, none is kept."""

import asyncio
import gc
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import psutil
import psycopg
import pytest

from django_dispatch.store.session import connection_params
from django_dispatch.wakeups.base import Wakeup
from django_dispatch.wakeups.pg_notify import Listener

NUMBERED = "SELECT pg_notify('django_dispatch', 'ready:' || n) FROM generate_series(%s::int, %s::int) AS n"
Send = Callable[[int, int], Any]


@asynccontextmanager
async def listening(heard: Callable[[Wakeup], None]) -> AsyncIterator[Send]:
    """Listen as a dispatcher does; give what sends numbered wakeups, in one transaction each call."""
    sender = await psycopg.AsyncConnection.connect(**connection_params("default", "test"), autocommit=True)
    connected = asyncio.Event()

    async def send(payload: str) -> None:
        await sender.execute("SELECT pg_notify('django_dispatch', %s)", [payload])

    async def fail(error: Exception) -> None:
        raise AssertionError("the listener fails") from error

    listener = Listener(
        lambda: connection_params("default", "listener"),
        on_wakeup=heard,
        on_connected=connected.set,
        send=send,
        on_failed=fail,
        on_proved=lambda: None,
        proof_seconds=5,
    )
    task = asyncio.create_task(listener.run())
    try:
        async with asyncio.timeout(20):
            await connected.wait()
        yield lambda first, last: sender.execute(NUMBERED, [first, last])
    finally:
        task.cancel()
        await asyncio.wait([task])
        await sender.close()
    assert task.cancelled(), task.exception()


@pytest.mark.django_db(transaction=True)
def test_every_one_of_a_thousand_wakeups_is_heard_in_order() -> None:
    """Each is a notification of its own, and the connection proves itself in between."""
    numbers: list[str] = []

    async def main() -> None:
        done = asyncio.Event()

        def hear(wakeup: Wakeup) -> None:
            numbers.append(wakeup.value)
            if len(numbers) == 1000:
                done.set()

        async with listening(hear) as send:
            for number in range(1000):
                await send(number, number)
            async with asyncio.timeout(30):
                await done.wait()

    asyncio.run(main())
    assert numbers == [str(number) for number in range(1000)]


@pytest.mark.slow
@pytest.mark.django_db(transaction=True)
def test_a_hundred_thousand_wakeups_leave_nothing_behind_in_memory() -> None:
    async def main() -> int:
        count = 0
        sizes: list[int] = []
        turn = asyncio.Event()

        def hear(wakeup: Wakeup) -> None:
            nonlocal count
            count += 1
            if count % 10_000 == 0:
                turn.set()

        async with listening(hear) as send:
            for start in range(0, 110_000, 10_000):
                turn.clear()
                await send(start + 1, start + 10_000)
                async with asyncio.timeout(60):
                    await turn.wait()
                gc.collect()
                sizes.append(psutil.Process().memory_info().rss)
        return sizes[-1] - sizes[0]

    assert asyncio.run(main()) < 4_000_000


@pytest.mark.django_db(transaction=True)
def test_it_is_the_first_wakeup_that_proves_a_listener_and_not_that_it_listens() -> None:
    """Until then polls are not to be rarer: LISTEN succeeds where nothing comes, too."""

    async def main() -> None:
        connected, proved = asyncio.Event(), asyncio.Event()
        sender = await psycopg.AsyncConnection.connect(**connection_params("default", "test"), autocommit=True)
        payloads: asyncio.Queue[str] = asyncio.Queue()

        async def fail(error: Exception) -> None:
            raise AssertionError("the listener fails") from error

        listener = Listener(
            lambda: connection_params("default", "listener"),
            on_wakeup=lambda wakeup: None,
            on_connected=connected.set,
            send=payloads.put,
            on_failed=fail,
            on_proved=proved.set,
            proof_seconds=60,
        )
        task = asyncio.create_task(listener.run())
        async with asyncio.timeout(20):
            await connected.wait()
            payload = await payloads.get()
            assert (listener.is_connected, listener.is_proved) == (True, False)
            await sender.execute("SELECT pg_notify('django_dispatch', %s)", [payload])
            await proved.wait()
        assert listener.is_proved
        task.cancel()
        await asyncio.wait([task])
        await sender.close()

    asyncio.run(main())
