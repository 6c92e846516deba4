"""An executor of synchronous bodies: one at a time, on the main thread, where a signal can stop them."""

import contextvars
import logging
import os
import signal
import socket
import threading
from types import FrameType

from ..exceptions import RunCancelled, RunInterrupted, RunTimedOut
from ..messages import Assignment, Outcome, Progress, Ready, Retiring, Started, Stop, Verdict
from . import connections, descendants
from .body import Attempt
from .fence import Board
from .inbox import Inbox
from .limits import Lifetime
from .state import QUICK_SECONDS, ProcessState

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
    ) -> None:
        self._name = name
        self._slot = slot
        self._board = board
        self._lifetime = lifetime
        self._inbox = Inbox(tickets, stream)
        self._stream = stream
        self._unsent = b""
        self._current: Attempt | None = None
        self._sending = threading.Lock()
        self._is_sending = False
        self._is_fork = False

    def serve(self) -> None:
        """Run assignments until the dispatcher is gone or this executor's lifetime is over."""
        signal.signal(signal.SIGUSR1, self._on_stop)
        os.register_at_fork(after_in_child=self._note_fork)
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
            is_clean = self._clean_up(attempt, was_quick=outcome.duration_seconds < QUICK_SECONDS)
        except BaseException:
            logger.exception("Run %s (%s) left a state that cannot be cleaned up.", *attempt.names)
            is_clean = False
        if not is_clean or (attempt.stop is not None and threading.active_count() > threads):
            self._lifetime.end()
        return outcome

    def _clean_up(self, attempt: Attempt, *, was_quick: bool) -> bool:
        """Leave nothing of a body to the next one; return False if only a fresh executor would be clean."""
        is_whole = self._state.restore(was_quick=was_quick)
        if attempt.stop is None:
            connections.tidy()
        else:
            connections.discard_all()
        return descendants.is_none_left(attempt.assignment) and is_whole

    def _call(self, attempt: Attempt) -> object:
        return attempt.body(
            lambda text: self._report_progress(attempt, text),
            lambda: self._board.stop_ordered(self._slot, attempt.token),
        )()

    def _on_stop(self, signum: int, frame: FrameType | None) -> None:
        """Raise in the body if the order on the board means the attempt that is running; a late signal hits nobody."""
        attempt = self._current
        if attempt is None or attempt.stop is not None:
            return
        attempt.stop = self._board.stop_ordered(self._slot, attempt.token)
        if attempt.stop is not None and not self._is_sending:
            raise EXCEPTION_OF_STOP[attempt.stop]("The run was told to stop.")

    def _report_progress(self, attempt: Attempt, text: str) -> None:
        """Send a progress; a stop that comes meanwhile waits, for half a frame would spoil the stream."""
        if self._is_fork:
            return
        was_stopped = attempt.stop is not None
        self._is_sending = True
        try:
            with self._sending:  # a body may have handed its context to threads
                self._stream.sendall(Progress(*attempt.token, text).encode())
        finally:
            self._is_sending = False
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
