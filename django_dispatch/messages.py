"""All that crosses a process boundary: assignments and orders to executors, reports back, news of the zygote.

Messages are length-prefixed frames on a stream; many fit one write. An assignment's frame alone starts nothing: a
*ticket* does, eight bytes on a socket whose reading end dispatcher and executor share. The kernel gives each ticket to
one reader only: to the executor, which then starts the run, or back to the dispatcher, for which it has then never
started. So what was sent ahead can be taken back from an executor that is stuck, exactly, whatever it does meanwhile.
Payload texts pass through undecoded.
"""

import json
import socket
import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import NamedTuple

TICKET_SIZE = 8
_FRAME = struct.Struct("!IB")  # the size of what follows, and its kind
_TOKEN = struct.Struct("!qI")
_ASSIGNMENT = struct.Struct("!q16sqIII")
_OUTCOME = struct.Struct("!qIBd")
_NUMBER = struct.Struct("!q")
_TICKET = struct.Struct("!q")
# The hot ones with their frames, packed in one go.
_FRAMED_ASSIGNMENT = struct.Struct("!IBq16sqIII")
_FRAMED_STARTED = struct.Struct("!IBqI")
_FRAMED_OUTCOME = struct.Struct("!IBqIBd")


class _Code:
    """The kind of a message, in its frame."""

    READY = 1
    STARTED = 2
    OUTCOME = 3
    PROGRESS = 4
    STOP_ORDER = 5
    NEWS = 6
    RETIRING = 7
    ASSIGNMENT = 8
    QUESTION = 9
    ANSWER = 10
    STACK_ORDER = 11
    STACK = 12
    ENQUEUED = 13


class Kind(StrEnum):
    """What an executor runs: one synchronous body at a time, or many coroutines on an event loop."""

    SYNC = "sync"
    ASYNC = "async"


class Verdict(IntEnum):
    """How a claimed run ended, as seen by its executor or, when that died, by the dispatcher."""

    RETURNED = 1
    RAISED = 2
    TIMED_OUT = 3
    CANCELLED = 4
    INTERRUPTED = 5  # stopped for a shutdown
    UNSTORABLE = 6  # returned what JSON or PostgreSQL cannot hold
    UNKNOWN_TASK = 7  # no such task in this code; not started
    UNSTARTED = 8  # not started: taken back, or its lease was not ours any more
    LOST = 9  # its executor died under it
    SNOOZED = 10  # its body wants to be run again later
    COMMITTED = 12  # returned, and its own transaction has written that
    LOST_TOGETHER = 11  # its executor died under it and others; whose fault that is, nobody knows


_VERDICTS = {int(verdict): verdict for verdict in Verdict}
_PLANNED = (Verdict.RAISED, Verdict.TIMED_OUT, Verdict.SNOOZED)


class Stop(IntEnum):
    """Why a body is to end before its time."""

    CANCEL = 1
    TIMEOUT = 2
    SHUTDOWN = 3


class Assignment(NamedTuple):
    """A run for an executor to start once it holds ``ticket``. ``args`` and ``kwargs`` are JSON of the database.

    ``scheduled_for`` is in seconds since 1970; only an occurrence of a schedule has it.
    """

    ticket: int
    lease: bytes
    run_id: int
    epoch: int
    attempt: int
    failures: int
    task: str
    args: str
    kwargs: str
    queue: str
    scheduled_for: float | None = None

    @property
    def token(self) -> tuple[int, int]:
        return self.run_id, self.epoch

    def encode(self) -> bytes:
        # A jsonb text has no line break of its own: those inside strings are escaped. A queue's name may have any.
        occurrence = "" if self.scheduled_for is None else repr(self.scheduled_for)
        text = f"{self.task}\n{self.args}\n{self.kwargs}\n{occurrence}\n{self.queue}".encode()
        size = _ASSIGNMENT.size + len(text)
        head = (self.ticket, self.lease, self.run_id, self.epoch, self.attempt, self.failures)
        return _FRAMED_ASSIGNMENT.pack(size, _Code.ASSIGNMENT, *head) + text


def pack_tickets(tickets: Sequence[int]) -> bytes:
    """Return the bytes that let an executor start these assignments, in this order."""
    return struct.pack(f"!{len(tickets)}q", *tickets)


def take_tickets(source: socket.socket, most: int, flags: int = 0) -> Sequence[int] | None:
    """Take up to ``most`` tickets; they are then this process's alone. None: the other end is closed.

    Raises BlockingIOError when none waits and the socket or ``flags`` say not to wait. Tickets are written and read
    whole, by multiples of eight bytes under the kernel's lock of the socket, so none is ever torn.
    """
    data = source.recv(most * TICKET_SIZE, flags)
    if len(data) == TICKET_SIZE:
        return _TICKET.unpack(data)
    return struct.unpack(f"!{len(data) // TICKET_SIZE}q", data) if data else None


@dataclass(frozen=True, slots=True)
class Ready:
    """An executor has started and takes assignments."""

    def encode(self) -> bytes:
        return _FRAME.pack(0, _Code.READY)


@dataclass(frozen=True, slots=True)
class Retiring:
    """An executor takes no more assignments: it ends what it has and leaves."""

    def encode(self) -> bytes:
        return _FRAME.pack(0, _Code.RETIRING)


class Started(NamedTuple):
    """A body begins: its timeout runs from here, and an attempt is spent."""

    run_id: int
    epoch: int

    def encode(self) -> bytes:
        return _FRAMED_STARTED.pack(_TOKEN.size, _Code.STARTED, self.run_id, self.epoch)


class Plan(NamedTuple):
    """What is to come after an attempt, as its executor knows; what is None goes by the task's options or the run."""

    is_final: bool = False
    delay_seconds: float | None = None
    queue: str | None = None
    priority: int | None = None


class Outcome(NamedTuple):
    """A body has ended. ``text`` is the JSON of the result (RETURNED; empty for None) or of the error document.

    ``plan`` goes with RAISED, TIMED_OUT and SNOOZED.
    """

    run_id: int
    epoch: int
    verdict: Verdict
    duration_seconds: float = 0.0
    text: str = ""
    plan: Plan | None = None

    def encode(self) -> bytes:
        run_id, epoch, verdict, duration_seconds, text, plan = self
        if plan is not None:
            text = f"{json.dumps(plan)}\n{text}"  # no JSON text of ours has a line break of its own
        data = text.encode()
        size = _OUTCOME.size + len(data)
        return _FRAMED_OUTCOME.pack(size, _Code.OUTCOME, run_id, epoch, verdict, duration_seconds) + data


class Progress(NamedTuple):
    """What a body says of its progress: a JSON text."""

    run_id: int
    epoch: int
    text: str

    def encode(self) -> bytes:
        text = self.text.encode()
        return _FRAME.pack(_TOKEN.size + len(text), _Code.PROGRESS) + _TOKEN.pack(self.run_id, self.epoch) + text


class StopOrder(NamedTuple):
    """To an event loop: end this run, for this reason. (A synchronous body is told by a signal, see fence.py.)"""

    run_id: int
    epoch: int
    reason: Stop

    def encode(self) -> bytes:
        return (
            _FRAME.pack(_TOKEN.size + 1, _Code.STOP_ORDER) + _TOKEN.pack(self.run_id, self.epoch) + bytes([self.reason])
        )


class Question(NamedTuple):
    """A body asks its dispatcher: a control command, as its JSON text. ``number`` comes back with the Answer."""

    number: int
    text: str

    def encode(self) -> bytes:
        return _numbered(_Code.QUESTION, self.number, self.text)


class Answer(NamedTuple):
    """To an executor: what the dispatcher answers a body's question, as its JSON text."""

    number: int
    text: str

    def encode(self) -> bytes:
        return _numbered(_Code.ANSWER, self.number, self.text)


class StackOrder(NamedTuple):
    """To an event loop: say where this run is. (A synchronous body is asked by a signal, see stacks.py.)"""

    run_id: int
    epoch: int

    def encode(self) -> bytes:
        return _FRAME.pack(_TOKEN.size, _Code.STACK_ORDER) + _TOKEN.pack(self.run_id, self.epoch)


class Stack(NamedTuple):
    """Where a coroutine waits, as text; empty if there is no such run."""

    run_id: int
    epoch: int
    text: str

    def encode(self) -> bytes:
        text = self.text.encode(errors="backslashreplace")
        return _FRAME.pack(_TOKEN.size + len(text), _Code.STACK) + _TOKEN.pack(self.run_id, self.epoch) + text


class Enqueued(NamedTuple):
    """A body has enqueued so many runs of a task, and they are committed."""

    task: str
    queue: str
    number: int

    def encode(self) -> bytes:
        return _numbered(_Code.ENQUEUED, self.number, f"{self.task}\n{self.queue}")


@dataclass(frozen=True, slots=True)
class News:
    """From the zygote: a JSON document with the key ``event``. See zygote.py for the list."""

    text: str

    def encode(self) -> bytes:
        text = self.text.encode()
        return _FRAME.pack(len(text), _Code.NEWS) + text


Message = (
    Assignment
    | Ready
    | Retiring
    | Started
    | Outcome
    | Progress
    | StopOrder
    | News
    | Question
    | Answer
    | StackOrder
    | Stack
    | Enqueued
)

Aside = Question | Stack
Said = Progress | Aside | Enqueued  # by executors while bodies run


class BrokenStream(Exception):
    """What arrives is no message: somebody else has written to the stream, and nothing on it counts any more."""


class FrameReader:
    """Cuts a byte stream into messages, whatever the pieces in which it arrives."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that ``data`` completes. Raises BrokenStream."""
        data = self._pending + data if self._pending else data
        position, end = 0, len(data)
        while end - position >= _FRAME.size:
            size, code = _FRAME.unpack_from(data, position)
            if code not in _DECODERS:
                raise BrokenStream(f"A frame of kind {code}.")
            start = position + _FRAME.size
            if end - start < size:
                break
            position = start + size
            try:
                message = _DECODERS[code](data, start, position)
            except (ValueError, KeyError, struct.error) as error:
                raise BrokenStream(f"A frame of kind {code}: {error}") from error
            yield message
        self._pending = data[position:]


def _assignment(data: bytes, start: int, end: int) -> Message:
    ticket, lease, run_id, epoch, attempt, failures = _ASSIGNMENT.unpack_from(data, start)
    task, args, kwargs, occurrence, queue = data[start + _ASSIGNMENT.size : end].decode().split("\n", 4)
    scheduled_for = float(occurrence) if occurrence else None
    return Assignment(ticket, lease, run_id, epoch, attempt, failures, task, args, kwargs, queue, scheduled_for)


def _outcome(data: bytes, start: int, end: int) -> Message:
    run_id, epoch, code, duration = _OUTCOME.unpack_from(data, start)
    verdict, text, plan = _VERDICTS[code], data[start + _OUTCOME.size : end].decode(), None
    if verdict in _PLANNED and "\n" in text:
        first, text = text.split("\n")
        plan = Plan(*json.loads(first))
    return Outcome(run_id, epoch, verdict, duration, text, plan)


def _progress(data: bytes, start: int, end: int) -> Message:
    run_id, epoch = _TOKEN.unpack_from(data, start)
    return Progress(run_id, epoch, data[start + _TOKEN.size : end].decode())


def _stack(data: bytes, start: int, end: int) -> Message:
    run_id, epoch = _TOKEN.unpack_from(data, start)
    return Stack(run_id, epoch, data[start + _TOKEN.size : end].decode())


def _numbered(code: int, number: int, text: str) -> bytes:
    data = text.encode()
    return _FRAME.pack(_NUMBER.size + len(data), code) + _NUMBER.pack(number) + data


def _number_and_text(data: bytes, start: int, end: int) -> tuple[int, str]:
    (number,) = _NUMBER.unpack_from(data, start)
    return number, data[start + _NUMBER.size : end].decode()


def _enqueued(data: bytes, start: int, end: int) -> Message:
    number, text = _number_and_text(data, start, end)
    task, _, queue = text.partition("\n")  # there is none in the path of a task
    return Enqueued(task, queue, number)


def _stop_order(data: bytes, start: int, end: int) -> Message:
    run_id, epoch = _TOKEN.unpack_from(data, start)
    return StopOrder(run_id, epoch, Stop(data[end - 1]))


_DECODERS: dict[int, Callable[[bytes, int, int], Message]] = {
    _Code.READY: lambda *_: Ready(),
    _Code.RETIRING: lambda *_: Retiring(),
    _Code.ASSIGNMENT: _assignment,
    _Code.STARTED: lambda data, start, end: Started._make(_TOKEN.unpack_from(data, start)),
    _Code.OUTCOME: _outcome,
    _Code.PROGRESS: _progress,
    _Code.STOP_ORDER: _stop_order,
    _Code.QUESTION: lambda data, start, end: Question(*_number_and_text(data, start, end)),
    _Code.ANSWER: lambda data, start, end: Answer(*_number_and_text(data, start, end)),
    _Code.STACK_ORDER: lambda data, start, end: StackOrder(*_TOKEN.unpack_from(data, start)),
    _Code.STACK: _stack,
    _Code.ENQUEUED: _enqueued,
    _Code.NEWS: lambda data, start, end: News(data[start:end].decode()),
}
