"""An executor of synchronous bodies: one at a time, on the main thread, where a signal can stop them."""

import contextlib
import contextvars
import itertools
import logging
import os
import select
import signal
import socket
import threading
import time
from collections.abc import Callable
from types import FrameType

from .. import logs
from ..exceptions import ControlError, RunCancelled, RunInterrupted, RunTimedOut
from ..messages import (
    Answer,
    Assignment,
    Enqueued,
    Outcome,
    Progress,
    Question,
    Ready,
    Retiring,
    Started,
    Stop,
    Verdict,
)
from ..metrics.enqueued import enqueued
from . import connections, descendants, stacks
from .body import Attempt
from .fence import Board
from .inbox import Inbox
from .limits import Lifetime
from .state import ProcessState

TURN_SECONDS = 0.02  # so long a stop may have to wait while another thread of the body asks

EXCEPTION_OF_STOP = {Stop.CANCEL: RunCancelled, Stop.TIMEOUT: RunTimedOut, Stop.SHUTDOWN: RunInterrupted}

logger = logging.getLogger("django_dispatch.executor")


class SyncExecutor:
    """Takes an assignment when it is free for it, runs the body, reports. Returns from serve() to be replaced."""

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
    ) -> None:
        self._name = name
        self._stacks = stacks
        self._slot = slot
        self._board = board
        self._lifetime = lifetime
        self._inbox = Inbox(tickets, stream)
        self._stream = stream
        self._unsent = b""
        self._current: Attempt | None = None
        self._sending = threading.Lock()
        self._asking = threading.Lock()
        self._numbers = itertools.count(1)
        self._is_undisturbed = False
        self._is_fork = False

    def serve(self) -> None:
        """Run assignments until the dispatcher is gone or this executor's lifetime is over."""
        signal.signal(signal.SIGUSR1, self._on_stop)
        os.register_at_fork(after_in_child=self._note_fork)
        stacks.answer_signals(self._stacks)
        enqueued.report = self._report_enqueued
        self._state = ProcessState()
        self._send(Ready().encode())
        while not self._lifetime.is_over():
            assignment = self._next_assignment()
            if assignment is None:
                return
            if not self._board.allows(assignment.lease):
                self._unsent += Outcome(*assignment.token, Verdict.UNSTARTED).encode()
                continue
            outcome = self._run(assignment)
            self._lifetime.count_run()
            self._unsent += outcome.encode()
        self._send(Retiring().encode())

    def _next_assignment(self) -> Assignment | None:
        """Take the next assignment. The last outcome travels with the next *started*, unless there is none yet."""
        if self._unsent:
            try:
                assignments = self._inbox.take(1, socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._flush()
                assignments = self._inbox.take(1)
        else:
            assignments = self._inbox.take(1)
        return assignments[0] if assignments else None

    def _run(self, assignment: Assignment) -> Outcome:
        self._send(Started(*assignment.token).encode())
        attempt = Attempt(assignment, self._name)
        logs.set_level(self._board.log_level())
        logs.current_run.set(attempt.log_fields)  # for what is said of it around the body; that sets its own
        threads = threading.active_count()
        try:
            connections.drop_broken()
            # Armed from here to the inner finally: only in between may a signal raise, and only once.
            self._current = attempt
            try:
                value = contextvars.Context().run(self._call, attempt)
            finally:
                self._current = None
        except BaseException as error:
            self._current = None  # the signal may have hit the finally itself
            self._leave_if_forked()
            outcome = attempt.raised(error)
        else:
            self._leave_if_forked()
            outcome = attempt.returned(value)
        try:
            is_clean = self._clean_up(attempt, outcome.duration_seconds)
        except BaseException:
            logger.exception("Run %s (%s) left a state that cannot be cleaned up.", *attempt.names)
            is_clean = False
        if not is_clean or (attempt.stop is not None and threading.active_count() > threads):
            self._lifetime.end()
        logs.current_run.set({})
        return outcome

    def _clean_up(self, attempt: Attempt, body_seconds: float) -> bool:
        """Leave nothing of a body to the next one; return False if only a fresh executor would be clean."""
        everything = self._state.is_due(body_seconds)
        is_whole = self._state.restore(everything=everything)
        if everything:
            stacks.answer_signals(self._stacks)
        if attempt.stop is None:
            connections.tidy()
        else:
            connections.discard_all()
        return descendants.is_none_left(attempt.assignment) and is_whole

    def _call(self, attempt: Attempt) -> object:
        self._on_stop(signal.SIGUSR1, None)  # one that came between *started* and now has hit nobody
        return attempt.body(
            lambda text: self._report_progress(attempt, text),
            lambda: self._board.stop_ordered(self._slot, attempt.token),
            lambda text, timeout_seconds: self._ask(attempt, text, timeout_seconds),
        )()

    def _on_stop(self, signum: int, frame: FrameType | None) -> None:
        """Raise in the body if the order on the board means the attempt that is running; a late signal hits nobody."""
        attempt = self._current
        if attempt is None or attempt.stop is not None:
            return
        attempt.stop = self._board.stop_ordered(self._slot, attempt.token)
        if attempt.stop is not None and not self._is_undisturbed:
            raise EXCEPTION_OF_STOP[attempt.stop]("The run was told to stop.")

    def _report_progress(self, attempt: Attempt, text: str) -> None:
        """Send a progress, from whatever thread a body has handed its context to; not from a fork of the process."""
        if self._is_fork:
            return
        self._undisturbed(attempt, lambda: self._send_whole(Progress(*attempt.token, text).encode()))

    def _report_enqueued(self, task: str, queue: str, number: int) -> None:
        """Have the dispatcher count; if it is gone, nobody does."""
        frame, attempt = Enqueued(task, queue, number).encode(), self._current
        if not self._is_fork:
            with contextlib.suppress(OSError):
                if attempt is None:  # a thread that a body left behind
                    self._send_whole(frame)
                else:
                    self._undisturbed(attempt, lambda: self._send_whole(frame))

    def _ask(self, attempt: Attempt, text: str, timeout_seconds: float) -> str:
        """Put a question to the dispatcher and wait for the answer. Raises TimeoutError."""
        if self._is_fork:
            raise ControlError("Only the process in which the body was started can ask its dispatcher.")
        deadline = time.monotonic() + timeout_seconds
        number = next(self._numbers)
        turn: list[None] = []  # has an item while it is ours to ask: one asks at a time
        try:
            # Undisturbed, for a stop between taking the lock and noting it would leave it taken for good.
            while not turn:
                self._undisturbed(attempt, lambda: self._take_turn(turn))
                if not turn and time.monotonic() >= deadline:
                    raise TimeoutError
            self._undisturbed(attempt, lambda: self._send_whole(Question(number, text).encode()))
            poll = select.poll()
            poll.register(self._stream, select.POLLIN)
            while poll.poll(max(0.0, deadline - time.monotonic()) * 1000):
                self._undisturbed(attempt, self._inbox.read_stream)
                for order in self._inbox.take_orders():
                    if isinstance(order, Answer) and order.number == number:
                        return order.text  # an earlier one is to a question that was given up
            raise TimeoutError
        finally:
            if turn:
                self._asking.release()

    def _take_turn(self, turn: list[None]) -> None:
        if self._asking.acquire(timeout=TURN_SECONDS):
            turn.append(None)

    def _send_whole(self, frame: bytes) -> None:
        with self._sending:
            self._stream.sendall(frame)

    def _undisturbed(self, attempt: Attempt, work: Callable[[], None]) -> None:
        """Do what half done would spoil the stream, or who may use it; a stop that comes meanwhile waits."""
        if threading.current_thread() is not threading.main_thread():
            return work()  # no signal handler runs here
        was_stopped = attempt.stop is not None
        self._is_undisturbed = True
        try:
            work()
        finally:
            self._is_undisturbed = False
        if attempt.stop is not None and not was_stopped:
            raise EXCEPTION_OF_STOP[attempt.stop]("The run was told to stop.")

    def _note_fork(self) -> None:
        self._is_fork = True

    def _leave_if_forked(self) -> None:
        """A body that forked and returned in the child must not report a second time."""
        if self._is_fork:
            os._exit(0)

    def _send(self, frame: bytes) -> None:
        self._unsent += frame
        self._flush()

    def _flush(self) -> None:
        unsent, self._unsent = self._unsent, b""
        with self._sending:
            self._stream.sendall(unsent)
