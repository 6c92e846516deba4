"""All that crosses a process boundary: assignments to an executor, reports back, orders to the zygote and its news.

An assignment is one packet on a SEQPACKET socket, so that the kernel hands it to exactly one reader: to the executor,
which starts it at once, or back to the dispatcher, which still holds the reading end. What was not read was never
started. Reports are length-prefixed frames on a stream; many fit one write. Payload texts pass through undecoded.
"""

import json
import os
import re
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum, StrEnum
from typing import Any
from uuid import UUID

# A packet must fit the socket's send buffer; a larger one travels in an anonymous file beside its first line.
LARGEST_PACKET = 60_000
# A NUL escape that is one: an even number of backslashes before it.
_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_SURROGATE = re.compile("[\ud800-\udfff]")
_ONE_DESCRIPTOR = socket.CMSG_SPACE(4)
_FRAME = struct.Struct("!IB")
_TOKEN = struct.Struct("!qI")
_OUTCOME = struct.Struct("!qIBd")


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


class Stop(IntEnum):
    """Why a body is to end before its time."""

    CANCEL = 1
    TIMEOUT = 2
    SHUTDOWN = 3


@dataclass(frozen=True, slots=True)
class Assignment:
    """A run for an executor to start. ``args`` and ``kwargs`` are JSON texts, put together by the database."""

    lease_id: UUID
    run_id: int
    epoch: int
    attempt: int
    task: str
    args: str
    kwargs: str

    @property
    def token(self) -> tuple[int, int]:
        return self.run_id, self.epoch

    def encode(self) -> bytes:
        """Return the packet: a line with everything but the payload, then the payload."""
        line = f"{self.run_id} {self.epoch} {self.lease_id.hex} {self.attempt} {self.task}\n"
        return f"{line}{self.args}\n{self.kwargs}".encode()

    @classmethod
    def decode(cls, packet: bytes) -> "Assignment":
        """Read a packet. A jsonb text has no line break of its own: those inside strings are escaped."""
        line, args, kwargs = packet.decode().split("\n")
        run_id, epoch, lease, attempt, task = line.split(" ", 4)
        return cls(UUID(lease), int(run_id), int(epoch), int(attempt), task, args, kwargs)

    @staticmethod
    def token_of(packet: bytes) -> tuple[int, int]:
        """Return (run id, epoch) of a packet without reading the rest."""
        run_id, epoch, _ = packet.split(b" ", 2)
        return int(run_id), int(epoch)


def send_assignment(to: socket.socket, assignment: Assignment) -> bool:
    """Send an assignment whole or not at all. False: the socket's buffer is full. Raises OSError when it is closed."""
    packet = assignment.encode()
    try:
        if len(packet) <= LARGEST_PACKET:
            to.send(packet)
            return True
        spool = os.memfd_create("assignment")
        try:
            with open(spool, "wb", closefd=False) as file:
                file.write(packet)
            socket.send_fds(to, [packet[: packet.index(b"\n") + 1]], [spool])
        finally:
            os.close(spool)
    except BlockingIOError:
        return False
    return True


def receive_assignment(source: socket.socket, flags: int = 0) -> bytes | None:
    """Take the next packet; it is then this process's alone. None: the dispatcher is gone.

    Raises BlockingIOError when none waits and the socket or ``flags`` say not to wait.
    """
    # Not socket.recv_fds: until Python 3.13 it forgets the flags.
    packet, ancillary, _, _ = source.recvmsg(LARGEST_PACKET + 1, _ONE_DESCRIPTOR, flags)
    for _level, _type, data in ancillary:
        with open(int.from_bytes(data[:4], sys.byteorder), "rb") as file:
            file.seek(0)
            return file.read()
    return packet or None


@dataclass(frozen=True, slots=True)
class Ready:
    """An executor has started and takes assignments."""

    def encode(self) -> bytes:
        return _FRAME.pack(0, 1)


@dataclass(frozen=True, slots=True)
class Retiring:
    """An executor takes no more assignments: it ends what it has and leaves."""

    def encode(self) -> bytes:
        return _FRAME.pack(0, 7)


@dataclass(frozen=True, slots=True)
class Started:
    """A body begins: its timeout runs from here, and an attempt is spent."""

    run_id: int
    epoch: int

    def encode(self) -> bytes:
        return _FRAME.pack(_TOKEN.size, 2) + _TOKEN.pack(self.run_id, self.epoch)


@dataclass(frozen=True, slots=True)
class Outcome:
    """A body has ended. ``text`` is the JSON of the result (RETURNED; empty for None) or of the error document."""

    run_id: int
    epoch: int
    verdict: Verdict
    duration_seconds: float = 0.0
    text: str = ""

    def encode(self) -> bytes:
        text = self.text.encode()
        head = _OUTCOME.pack(self.run_id, self.epoch, self.verdict, self.duration_seconds)
        return _FRAME.pack(len(head) + len(text), 3) + head + text


@dataclass(frozen=True, slots=True)
class Progress:
    """What a body says of its progress: a JSON text."""

    run_id: int
    epoch: int
    text: str

    def encode(self) -> bytes:
        text = self.text.encode()
        return _FRAME.pack(_TOKEN.size + len(text), 4) + _TOKEN.pack(self.run_id, self.epoch) + text


@dataclass(frozen=True, slots=True)
class StopOrder:
    """To an event loop: end this run, for this reason. (A synchronous body is told by a signal, see fence.py.)"""

    run_id: int
    epoch: int
    reason: Stop

    def encode(self) -> bytes:
        return _FRAME.pack(_TOKEN.size + 1, 5) + _TOKEN.pack(self.run_id, self.epoch) + bytes([self.reason])


@dataclass(frozen=True, slots=True)
class News:
    """From the zygote: a JSON document with the key ``event``. See zygote.py for the list."""

    text: str

    def encode(self) -> bytes:
        text = self.text.encode()
        return _FRAME.pack(len(text), 6) + text


Message = Ready | Retiring | Started | Outcome | Progress | StopOrder | News


class FrameReader:
    """Cuts a byte stream into messages, whatever the pieces in which it arrives."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> Iterator[Message]:
        """Yield the messages that ``data`` completes."""
        data = self._pending + data if self._pending else data
        position, end = 0, len(data)
        while end - position >= _FRAME.size:
            size, code = _FRAME.unpack_from(data, position)
            start = position + _FRAME.size
            if end - start < size:
                break
            position = start + size
            yield _decode(code, data, start, position)
        self._pending = data[position:]


def _decode(code: int, data: bytes, start: int, end: int) -> Message:
    if code == 3:
        run_id, epoch, verdict, duration = _OUTCOME.unpack_from(data, start)
        return Outcome(run_id, epoch, Verdict(verdict), duration, data[start + _OUTCOME.size : end].decode())
    if code == 2:
        return Started(*_TOKEN.unpack_from(data, start))
    if code == 4:
        run_id, epoch = _TOKEN.unpack_from(data, start)
        return Progress(run_id, epoch, data[start + _TOKEN.size : end].decode())
    if code == 5:
        run_id, epoch = _TOKEN.unpack_from(data, start)
        return StopOrder(run_id, epoch, Stop(data[end - 1]))
    if code == 6:
        return News(data[start:end].decode())
    if code == 1:
        return Ready()
    if code == 7:
        return Retiring()
    raise ValueError(f"No message has the code {code}.")


def error_document(kind: str, message: str, **more: Any) -> str:
    """Return the JSON of one entry of ``Run.errors``; the database adds ``at``.

    ``kind`` is one of exception, timeout, cancelled, shutdown, lost, result and unknown_task. Text that PostgreSQL
    cannot hold is shown escaped.
    """
    document = {"kind": kind, "message": message} | more
    return storable(json.dumps(document, ensure_ascii=False))


def storable(text: str) -> str:
    """Make a JSON text fit for jsonb: NUL and lone surrogates become visible escapes inside their strings."""
    if "\\u0000" in text:
        text = _NUL.sub(r"\1\\\\u0000", text)
    if not text.isascii():
        text = _SURROGATE.sub(lambda match: f"\\\\u{ord(match[0]):04x}", text)
    return text
