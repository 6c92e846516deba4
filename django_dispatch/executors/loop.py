"""An executor of asynchronous bodies: many at once on one event loop."""

import asyncio
import contextvars
import os
import socket
from typing import cast

from asgiref.sync import sync_to_async
from django.db.backends.signals import connection_created

from ..messages import (
    Outcome,
    Progress,
    Ready,
    Retiring,
    Started,
    Stop,
    Verdict,
)
from . import connections
from .body import Attempt
from .fence import Board
from .inbox import Inbox
from .limits import Lifetime

HEARTBEAT_SECONDS = 0.25


class LoopExecutor:
    """Takes assignments while fewer than ``concurrency`` bodies run. Returns from serve() to be replaced."""

    def __init__(
        self,
        *,
        name: str,
        slot: int,
        board: Board,
        lifetime: Lifetime,
        tickets: socket.socket,
        stream: socket.socket,
        concurrency: int,
    ) -> None:
        self._name = name
        self._slot = slot
        self._board = board
        self._lifetime = lifetime
        self._inbox = Inbox(tickets, stream)
        self._tickets = tickets
        self._stream = stream
        self._concurrency = concurrency
        self._pid = os.getpid()
        self._active: dict[tuple[int, int], Attempt] = {}
        self._stoppable: dict[tuple[int, int], asyncio.Task[None]] = {}
        self._is_taking = False
        self._is_retiring = False
        self._unsent = bytearray()
        self._uses_database = False

    def serve(self) -> None:
        """Run assignments until the dispatcher closes the socket or this executor's lifetime is over."""
        connection_created.connect(self._note_database_use)
        # Not asyncio.run(): on its way out it would wait for threads and tasks that bodies left behind.
        asyncio.new_event_loop().run_until_complete(self._serve())

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._over = self._loop.create_future()
        self._loop.add_reader(self._stream, self._on_stream)
        self._report(Ready().encode())
        self._take_more()
        heart = asyncio.create_task(self._beat(), name="heartbeat")
        await self._over
        heart.cancel()
        self._stream.sendall(self._unsent)

    async def _beat(self) -> None:
        """Show on the board that the loop turns: a body that blocks it is noticed from outside."""
        while True:
            self._board.beat(self._slot)
            await asyncio.sleep(HEARTBEAT_SECONDS)

    # assignments

    def _take_more(self) -> None:
        """Listen for assignments while there is room: what is not read here can still be taken back."""
        is_over = self._lifetime.is_over()
        has_room = len(self._active) < self._concurrency and not is_over
        if has_room and not self._is_taking:
            self._loop.add_reader(self._tickets, self._on_tickets)
        elif not has_room and self._is_taking:
            self._loop.remove_reader(self._tickets)
        self._is_taking = has_room
        if is_over and not self._is_retiring:
            self._is_retiring = True
            self._report(Retiring().encode())
        if is_over and not self._active and not self._over.done():
            self._over.set_result(None)

    def _on_tickets(self) -> None:
        try:
            assignments = self._inbox.take(self._concurrency - len(self._active), socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        if not assignments:
            os._exit(0)  # the dispatcher is gone: its runs are not ours any more
        frames = bytearray()
        attempts: list[Attempt] = []
        for assignment in assignments:
            if self._board.allows(assignment.lease):
                frames += Started(*assignment.token).encode()
                attempts.append(Attempt(assignment, self._name))
            else:
                frames += Outcome(*assignment.token, Verdict.UNSTARTED).encode()
        self._report(frames)  # before the first body can block the loop
        for attempt in attempts:
            self._lifetime.count_run()
            self._active[attempt.token] = attempt
            self._loop.create_task(self._run(attempt), name=f"run {attempt.token[0]}", context=contextvars.Context())
        self._take_more()

    async def _run(self, attempt: Attempt) -> None:
        if self._uses_database:
            await sync_to_async(connections.drop_broken)()
        outcome = await self._outcome_of(attempt)
        if os.getpid() != self._pid:
            os._exit(0)  # a body that forked and returned in the child must not report a second time
        if self._uses_database and len(self._active) == 1:  # nobody else is in the middle of a query
            await sync_to_async(connections.tidy)()
        self._report(outcome.encode())
        del self._active[attempt.token]
        self._take_more()

    async def _outcome_of(self, attempt: Attempt) -> Outcome:
        try:
            body = attempt.body(
                lambda text: self._report(Progress(*attempt.token, text).encode()), lambda: attempt.stop is not None
            )
            if attempt.stop is not None:
                raise asyncio.CancelledError("The run was told to stop before its first line.")
            self._stoppable[attempt.token] = cast("asyncio.Task[None]", asyncio.current_task())
            try:
                value = await body()
            finally:
                del self._stoppable[attempt.token]
        except BaseException as error:
            # Whatever it is, CancelledError and SystemExit too: it ends this run and not the loop.
            return attempt.raised(error)
        return attempt.returned(value)

    # orders and reports

    def _on_stream(self) -> None:
        try:
            orders = self._inbox.read_stream()
        except BlockingIOError:
            return
        for order in orders:
            self._stop((order.run_id, order.epoch), order.reason)

    def _stop(self, token: tuple[int, int], reason: Stop) -> None:
        attempt = self._active.get(token)
        if attempt is not None and attempt.stop is None:
            attempt.stop = reason
            if token in self._stoppable:
                self._stoppable[token].cancel(f"The run was told to stop: {reason.name.lower()}.")

    def _report(self, frames: bytes | bytearray) -> None:
        """Send in order; what the socket does not take now follows when it can."""
        if not self._unsent:
            try:
                sent = self._stream.send(frames, socket.MSG_DONTWAIT) if frames else 0
            except BlockingIOError:
                sent = 0
            frames = frames[sent:]
            if not frames:
                return
            self._loop.add_writer(self._stream, self._send_rest)
        self._unsent += frames

    def _send_rest(self) -> None:
        try:
            sent = self._stream.send(self._unsent, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return
        del self._unsent[:sent]
        if not self._unsent:
            self._loop.remove_writer(self._stream)

    def _note_database_use(self, **_: object) -> None:
        self._uses_database = True
