"""An executor of synchronous bodies: one at a time, on the main thread, where a signal can stop them."""

import contextvars
import os
import signal
import socket
from types import FrameType

from ..exceptions import DispatchError, RunCancelled, RunInterrupted, RunTimedOut
from ..messages import Assignment, Outcome, Progress, Ready, Started, Stop, Verdict, receive_assignment
from . import connections
from .body import Attempt
from .fence import Board
from .limits import Lifetime

EXCEPTION_OF_STOP = {Stop.CANCEL: RunCancelled, Stop.TIMEOUT: RunTimedOut, Stop.SHUTDOWN: RunInterrupted}


class SyncExecutor:
    """Takes an assignment when it is free for it, runs the body, reports. Returns from serve() to be replaced."""

    def __init__(
        self, *, name: str, slot: int, board: Board, lifetime: Lifetime, assignments: socket.socket, reports: socket.socket
    ) -> None:
        self._name = name
        self._slot = slot
        self._board = board
        self._lifetime = lifetime
        self._assignments = assignments
        self._reports = reports
        self._pid = os.getpid()
        self._unsent = b""
        self._current: Attempt | None = None

    def serve(self) -> None:
        """Run assignments until the dispatcher closes the socket or this executor's lifetime is over."""
        signal.signal(signal.SIGUSR1, self._on_stop)
        self._send(Ready().encode())
        while not self._lifetime.is_over():
            packet = self._next_packet()
            if packet is None:
                return
            assignment = Assignment.decode(packet)
            if not self._board.allows(assignment.lease_id):
                self._send(Outcome(*assignment.token, Verdict.UNSTARTED).encode())
                continue
            outcome = self._run(assignment)
            self._lifetime.count_run()
            self._unsent += outcome.encode()
        self._flush()

    def _next_packet(self) -> bytes | None:
        """Take the next assignment. The last outcome travels with the next *started*, unless there is none yet."""
        if self._unsent:
            try:
                return receive_assignment(self._assignments, socket.MSG_DONTWAIT)
            except BlockingIOError:
                self._flush()
        return receive_assignment(self._assignments)

    def _run(self, assignment: Assignment) -> Outcome:
        self._send(Started(*assignment.token).encode())
        connections.freshen()
        attempt = Attempt(assignment, self._name)
        try:
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
        if attempt.stop is None:
            connections.tidy()
        else:
            connections.discard_all()
        if signal.getsignal(signal.SIGUSR1) != self._on_stop:
            signal.signal(signal.SIGUSR1, self._on_stop)
        return outcome
