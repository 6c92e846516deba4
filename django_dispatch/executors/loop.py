"""An executor of asynchronous bodies: many at once on one event loop."""

import asyncio
import contextvars
import itertools
import logging
import os
import socket
import threading
from concurrent.futures import Future
from typing import cast

from asgiref.sync import sync_to_async

from .. import logs
from ..exceptions import ControlError
from ..messages import (
    Enqueued,
    Outcome,
    Progress,
    Question,
    Ready,
    Retiring,
    Stack,
    StackOrder,
    Started,
    Stop,
    StopOrder,
    Verdict,
)
from ..metrics.enqueued import enqueued
from . import connections, descendants, stacks
from .body import Attempt
from .fence import Board
from .inbox import Inbox
from .limits import Lifetime
from .state import ProcessState

HEARTBEAT_SECONDS = 0.25

logger = logging.getLogger("django_dispatch.executor")


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
        stacks: int,
        concurrency: int,
    ) -> None:
        self._name = name
        self._stacks = stacks
        self._asked: dict[int, Future[str]] = {}
        self._numbers = itertools.count(1)
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
        self._is_turn_planned = False
        self._is_listening = False
        self._is_sending = False
        self._is_retiring = False
        self._unsent = bytearray()

    def serve(self) -> None:
        """Run assignments until the dispatcher closes the socket or this executor's lifetime is over."""
        stacks.answer_signals(self._stacks)
        # Not asyncio.run(): on its way out it would wait for threads and tasks that bodies left behind.
        self._loop = asyncio.new_event_loop()
        enqueued.report = self._report_enqueued
        self._state = ProcessState()
        os.register_at_fork(after_in_child=self._disown)
        serving = self._loop.create_task(self._serve(), name="serve")
        serving.add_done_callback(lambda _: self._loop.stop())
        while not serving.done() and os.getpid() == self._pid:
            try:
                self._loop.run_forever()
            except (KeyboardInterrupt, SystemExit) as error:
                # Of a task that a body started. Whoever awaits it gets it too; the neighbours have no part in it.
                logger.warning("A task on the event loop raised %s; the loop goes on.", type(error).__name__)
            except BaseException:
                if os.getpid() == self._pid:
                    raise
        if os.getpid() != self._pid:
            os._exit(0)
        serving.result()

    def _disown(self) -> None:
        """In a child that a body has forked: the loop, its bodies and our sockets are the parent's."""
        self._loop.stop()
        getattr(self._loop, "_ready", []).clear()  # no public way to keep this very turn from going on with others
        self._stream.close()
        self._tickets.close()

    async def _serve(self) -> None:
        self._thread = threading.get_ident()
        self._over = self._loop.create_future()
        self._loop.add_reader(self._stream, self._on_stream)
        self._unsent += Ready().encode()
        self._turn()
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

    def _plan_turn(self) -> None:
        """Have one _turn() at the end of this turn of the loop, however many bodies end in it."""
        if not self._is_turn_planned:
            self._is_turn_planned = True
            self._loop.call_soon(self._turn)

    def _turn(self) -> None:
        """Take assignments while there is room, send what there is to say; what is not taken can be taken back."""
        self._is_turn_planned = False
        is_over = self._lifetime.is_over()
        attempts: list[Attempt] = []
        if len(self._active) < self._concurrency and not is_over:
            try:
                attempts = self._take(self._concurrency - len(self._active))
                self._listen(False)
            except BlockingIOError:
                self._listen(True)
        else:
            self._listen(False)
        if is_over and not self._is_retiring:
            self._is_retiring = True
            self._unsent += Retiring().encode()
        self._flush()  # what has started is said before the first body can block the loop
        for attempt in attempts:
            self._lifetime.count_run()
            self._active[attempt.token] = attempt
            self._loop.create_task(self._run(attempt), name=f"run {attempt.token[0]}", context=contextvars.Context())
        if attempts:
            self._plan_turn()
        elif is_over and not self._active and not self._over.done():
            self._over.set_result(None)

    def _listen(self, is_wanted: bool) -> None:
        if is_wanted and not self._is_listening:
            self._loop.add_reader(self._tickets, self._plan_turn)
        elif self._is_listening and not is_wanted:
            self._loop.remove_reader(self._tickets)
        self._is_listening = is_wanted

    def _take(self, most: int) -> list[Attempt]:
        """Take up to ``most`` assignments. Raises BlockingIOError when there is none."""
        assignments = self._inbox.take(most, socket.MSG_DONTWAIT)
        if not assignments:
            os._exit(0)  # the dispatcher is gone: its runs are not ours any more
        self._obey()
        attempts = []
        for assignment in assignments:
            if self._board.allows(assignment.lease):
                self._unsent += Started(*assignment.token).encode()
                attempts.append(Attempt(assignment, self._name))
            else:
                self._unsent += Outcome(*assignment.token, Verdict.UNSTARTED).encode()
        return attempts

    async def _run(self, attempt: Attempt) -> None:
        logs.set_level(self._board.log_level())
        logs.current_run.set(attempt.log_fields)  # in the context of this task
        outcome = await self._outcome_of(attempt)
        if os.getpid() != self._pid:
            os._exit(0)  # a body that forked and returned in the child must not report a second time
        if len(self._active) == 1:  # nobody else is in the middle of anything
            try:
                is_clean = await self._clean_up(attempt, outcome.duration_seconds)
            except BaseException:
                logger.exception("Run %s (%s) left a state that cannot be cleaned up.", *attempt.names)
                is_clean = False
            if not is_clean:
                self._lifetime.end()
        self._unsent += outcome.encode()
        del self._active[attempt.token]
        self._plan_turn()

    async def _clean_up(self, attempt: Attempt, body_seconds: float) -> bool:
        """Leave nothing of the bodies to the next ones; return False if only a fresh executor would be clean."""
        everything = self._state.is_due(body_seconds)
        is_whole = self._state.restore(everything=everything)
        if everything:
            stacks.answer_signals(self._stacks)
        if connections.are_in_use():
            await sync_to_async(connections.tidy)()
        return descendants.is_none_left(attempt.assignment) and is_whole

    async def _outcome_of(self, attempt: Attempt) -> Outcome:
        try:
            if connections.are_in_use():
                await sync_to_async(connections.drop_broken)()
            if attempt.stop is not None:
                raise asyncio.CancelledError("The run was told to stop before its first line.")
            body = attempt.body(lambda text: self._on_progress(attempt, text), lambda: attempt.stop, self._ask)
            self._stoppable[attempt.token] = cast("asyncio.Task[None]", asyncio.current_task())
            try:
                value = await body()
            finally:
                del self._stoppable[attempt.token]
        except BaseException as error:
            # Whatever it is, CancelledError and SystemExit too: it ends this run and not the loop.
            return attempt.raised(error)
        return attempt.returned(value)

    def _on_progress(self, attempt: Attempt, text: str) -> None:
        """Have a progress sent, before the outcome; from whatever thread a body has handed its context to."""
        self._say_from_anywhere(Progress(*attempt.token, text).encode())

    def _report_enqueued(self, task: str, queue: str, number: int) -> None:
        """Have the dispatcher count."""
        if os.getpid() == self._pid:
            self._say_from_anywhere(Enqueued(task, queue, number).encode())

    def _say_from_anywhere(self, frame: bytes) -> None:
        if threading.get_ident() == self._thread:
            self._say(frame)
        else:
            self._loop.call_soon_threadsafe(self._say, frame)

    def _ask(self, text: str, timeout_seconds: float) -> str:
        """Put a question to the dispatcher and wait for the answer, on a thread. Raises TimeoutError."""
        if threading.current_thread() is threading.main_thread() or os.getpid() != self._pid:
            raise ControlError("This would block the event loop that brings the answer: await acontrol() instead.")
        number = next(self._numbers)
        future = self._asked[number] = Future()
        try:
            self._loop.call_soon_threadsafe(self._say, Question(number, text).encode())
            return future.result(timeout_seconds)
        finally:
            self._asked.pop(number, None)

    def _say(self, frame: bytes) -> None:
        self._unsent += frame
        self._plan_turn()

    # orders and reports

    def _on_stream(self) -> None:
        try:
            self._inbox.read_stream()
        except BlockingIOError:
            return
        self._obey()

    def _obey(self) -> None:
        for order in self._inbox.take_orders():
            if isinstance(order, StopOrder):
                self._stop((order.run_id, order.epoch), order.reason)
            elif isinstance(order, StackOrder):
                self._say(Stack(*order, self._stack_of((order.run_id, order.epoch))).encode())
            elif order.number in self._asked:
                self._asked[order.number].set_result(order.text)

    def _stack_of(self, token: tuple[int, int]) -> str:
        task = self._stoppable.get(token)
        return "" if task is None else stacks.of_task(task)

    def _stop(self, token: tuple[int, int], reason: Stop) -> None:
        attempt = self._active.get(token)
        if attempt is not None and attempt.stop is None:
            attempt.stop = reason
            if token in self._stoppable:
                self._stoppable[token].cancel(f"The run was told to stop: {reason.name.lower()}.")

    def _flush(self) -> None:
        """Send what the socket takes now; the rest follows when it can."""
        try:
            if self._unsent:
                del self._unsent[: self._stream.send(self._unsent, socket.MSG_DONTWAIT)]
        except BlockingIOError:
            pass
        if self._unsent and not self._is_sending:
            self._loop.add_writer(self._stream, self._flush)
        elif self._is_sending and not self._unsent:
            self._loop.remove_writer(self._stream)
        self._is_sending = bool(self._unsent)
