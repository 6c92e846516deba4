"""The listening end of pg_notify: a connection that does nothing but LISTEN. On the dispatcher's loop.

A wakeup carries no work, so a lost one costs latency and nothing else. That the listening works is proved, not
believed: every so often the dispatcher sends itself a wakeup, and a connection that does not bring it is replaced.
"""

import asyncio
import contextlib
import os
import random
import socket
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any
from uuid import uuid4

import psycopg
from psycopg import sql

from .base import CHANNEL, Wakeup

CONNECT_SECONDS = 10.0
LISTEN_SECONDS = 5.0
# A proof is sent when nothing was heard for so many times the time in which it must come.
SILENCE_FACTOR = 2.0
SHARING_ROUNDS = 10
SHARING_SECONDS = 2.0


class Deaf(OSError):
    """LISTEN would go through a pooler that keeps no sessions."""


class Listener:
    """Calls ``on_wakeup`` for each wakeup, and ``on_connected`` after each LISTEN: then look at the table.

    ``send`` must send a payload on another connection. After a failure ``on_failed`` returns when to try again. When
    nothing was heard for twice ``proof_seconds``, or a little less, a payload is sent, and must come within
    ``proof_seconds``: so a connection that died in silence is found within three times as long. The first of a fleet
    to send one proves all connections. ``on_message`` gets what comes on other ``channels``, with the channel;
    ``on_echo``, after how many seconds a proof came.
    """

    def __init__(
        self,
        connect_params: Callable[[], dict[str, Any]],
        *,
        on_wakeup: Callable[[Wakeup], None],
        on_connected: Callable[[], None],
        send: Callable[[str], Awaitable[None]],
        on_failed: Callable[[Exception], Awaitable[None]],
        on_proved: Callable[[], None],
        proof_seconds: float,
        channels: Sequence[str] = (),
        on_message: Callable[[str, str], None] = lambda channel, payload: None,
        on_echo: Callable[[float], None] = lambda seconds: None,
    ) -> None:
        self._connect_params = connect_params
        self._on_wakeup = on_wakeup
        self._on_connected = on_connected
        self._send = send
        self._on_failed = on_failed
        self._on_proved = on_proved
        self._proof_seconds = proof_seconds
        self._channels = dict.fromkeys((CHANNEL, *channels))
        self._on_message = on_message
        self._on_echo = on_echo
        self._mark = uuid4().hex
        self._sent_at: float | None = None
        self._heard = asyncio.Event()
        self._heard_at = 0.0
        self._doubt = asyncio.Event()
        self.is_connected = False
        self.is_proved = False

    async def run(self) -> None:
        """Listen for ever; reconnect after every failure."""
        while True:
            try:
                await self._listen()
            except (psycopg.Error, OSError, TimeoutError) as error:
                self.is_connected = self.is_proved = False
                await self._on_failed(error)

    def doubt(self) -> None:
        """Have the connection prove itself now: there was trouble, and it may not know yet."""
        self._doubt.set()

    async def _listen(self) -> None:
        params = await asyncio.get_running_loop().run_in_executor(None, self._connect_params)
        async with asyncio.timeout(CONNECT_SECONDS):
            connection = await psycopg.AsyncConnection.connect(**params, autocommit=True)
        try:
            async with asyncio.timeout(LISTEN_SECONDS):
                if await _are_sessions_shared(connection, params):
                    raise Deaf(
                        "LISTEN would hear nothing through a pooler: runs are found by polling, and control commands"
                        " are not heard. Set DISPATCH['LISTEN_DSN'] to a direct connection, or WAKEUPS to []."
                    )
            connection.add_notify_handler(lambda notify: self._on_notify(notify.channel, notify.payload))
            async with asyncio.timeout(LISTEN_SECONDS):
                for channel in self._channels:
                    await connection.execute(sql.SQL("LISTEN {}").format(sql.Identifier(channel)))
            self.is_connected = True
            self._on_connected()
            async with asyncio.TaskGroup() as both:
                both.create_task(self._hear(connection), name="hear")
                both.create_task(self._prove(), name="prove")
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            await _close(connection)

    async def _hear(self, connection: psycopg.AsyncConnection[Any]) -> None:
        """Read whenever there is something to read: ``connection.notifies()`` would look ten times a second as well."""
        loop = asyncio.get_running_loop()
        broken: asyncio.Future[None] = loop.create_future()

        def read() -> None:
            try:
                connection.pgconn.consume_input()
                while notify := connection.pgconn.notifies():
                    self._on_notify(notify.relname.decode(), notify.extra.decode(errors="replace"))
            except Exception as error:
                loop.remove_reader(watched)
                if not broken.done():
                    broken.set_exception(error)

        # A descriptor of our own: libpq closes its socket when that breaks, and somebody else may get the number.
        with socket.socket(fileno=os.dup(connection.fileno())) as watched:
            loop.add_reader(watched, read)
            read()  # what came with LISTEN
            try:
                await broken
            finally:
                loop.remove_reader(watched)

    def _on_notify(self, channel: str, payload: str) -> None:
        self._heard.set()
        self._heard_at = time.monotonic()
        if channel != CHANNEL:
            self._on_message(channel, payload)
            return
        wakeup = Wakeup.parse(payload)
        if wakeup is not None and wakeup.kind != "test":
            self._on_wakeup(wakeup)
        elif wakeup is not None and wakeup.value == self._mark and self._sent_at is not None:
            self._on_echo(time.monotonic() - self._sent_at)
            self._sent_at = None

    async def _prove(self) -> None:
        """Send ourselves a wakeup whenever nothing was heard for a while; fail when it does not come."""
        while True:
            self._heard.clear()
            self._sent_at = time.monotonic()
            try:
                await self._send(Wakeup("test", self._mark).encode())
            except Exception as error:
                await self._on_failed(error)
                continue
            try:
                async with asyncio.timeout(self._proof_seconds):
                    await self._heard.wait()
            except TimeoutError:
                raise TimeoutError(
                    f"LISTEN brings nothing: a wakeup sent to ourselves did not come within {self._proof_seconds:g} s"
                ) from None
            self.is_proved = True
            await self._be_silent()

    async def _be_silent(self) -> None:
        """Wait until nothing was heard for long enough, or in doubt. Not as long everywhere: one is to be the first."""
        silence_seconds = SILENCE_FACTOR * self._proof_seconds * random.uniform(0.8, 1.0)
        while not self._doubt.is_set() and (left := self._heard_at + silence_seconds - time.monotonic()) > 0:
            self._on_proved()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(left):
                    await self._doubt.wait()
        self._doubt.clear()


async def _are_sessions_shared(connection: psycopg.AsyncConnection[Any], params: dict[str, Any]) -> bool:
    """Whether a pooler lends its sessions for a transaction, so that LISTEN hears nothing: seen before one listens.

    A LISTEN in such a session would stay: its wakeups would pile up in clients that never asked for them. Whoever asks
    next gets the session that was given back last; or others ask too, and we get another one.
    """
    ours = await _backend_pid(connection)
    if ours == connection.pgconn.backend_pid:
        return False  # libpq was told the true number: no pooler
    # No answer: a pool that is used up, by sessions that are kept. What comes of LISTEN will tell.
    with contextlib.suppress(psycopg.Error, TimeoutError):
        async with asyncio.timeout(SHARING_SECONDS), await psycopg.AsyncConnection.connect(**params) as other:
            for _ in range(SHARING_ROUNDS):
                if await _backend_pid(connection) != ours or await _backend_pid(other) == ours:
                    return True
                await other.rollback()
    return False


async def _backend_pid(connection: psycopg.AsyncConnection[Any]) -> int | None:
    row = await (await connection.execute("SELECT pg_backend_pid()", prepare=False)).fetchone()
    return int(row[0]) if row else None


async def _close(connection: psycopg.AsyncConnection[Any]) -> None:
    try:
        async with asyncio.timeout(1):
            await connection.close()
    except (psycopg.Error, OSError, TimeoutError):
        connection.pgconn.finish()
