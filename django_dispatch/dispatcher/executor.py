"""One executor as the dispatcher sees it: its sockets, and the runs that were assigned to it."""

import asyncio
import contextlib
import os
import signal
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from ..finish import TaskFacts
from ..messages import (
    Answer,
    Assignment,
    BrokenStream,
    FrameReader,
    Kind,
    Message,
    StackOrder,
    Stop,
    StopOrder,
    pack_tickets,
    take_tickets,
)
from ..store.values import ClaimedRun
from .stats import Tally

BUFFER = 1 << 20
LARGEST_READ = 1 << 18
MANY_TICKETS = 4096

Token: TypeAlias = tuple[int, int]


class Zygote(Protocol):
    """What the pool needs of the zygote."""

    def spawn(self, executor: int, *, kind: Kind, slot: int, descriptors: tuple[int, int, int]) -> None: ...
    def signal(self, executor: int, number: int) -> None: ...
    def kill(self, executor: int, cause: str) -> None: ...


@dataclass(slots=True, eq=False)
class Flight:
    """A claimed run on its way through an executor. Times are the event loop's, in seconds."""

    run: ClaimedRun
    token: Token
    facts: TaskFacts
    lease: bytes
    tally: Tally
    claimed_at: float
    timeout_seconds: float | None = None
    due_at: float = 0.0
    started_at: float | None = None
    stop: Stop | None = None
    kill_at: float | None = None
    ticket: int = 0


@dataclass(eq=False)
class Executor:
    """A child of the zygote. ``flights`` are in the order of assignment; those that started come first."""

    id: int
    kind: Kind
    slot: int
    capacity: int
    born_at: float
    loop: asyncio.AbstractEventLoop
    zygote: Zygote
    """Its parent."""
    pid: int | None = None
    is_ready: bool = False
    is_doomed: bool = False
    """No more assignments: it is leaving or being killed."""
    is_let_go: bool = False
    """It is to be ended when it has ended what it has."""
    is_apart: bool = False
    """It is for one run that is suspected to kill it."""
    is_killed: bool = False
    is_slow: bool = False
    """What its one body does is not known to be tiny: nothing is to wait behind it."""
    is_blocked: bool = False
    """Its event loop does not turn: no more assignments for now."""
    is_cut: bool = False
    """Nothing more is to be heard of it: it has ended, or spoiled its stream."""
    fault: str = ""
    """What it did that it had to be killed for."""
    flights: dict[Token, Flight] = field(default_factory=dict)
    unstarted: int = 0
    finished: int = 0
    """Bodies that have ended here."""

    def __post_init__(self) -> None:
        self._frames = FrameReader()
        self._last_ticket = 0
        self._unsent = bytearray()
        self._unticketed: list[int] = []
        self._tickets, self._their_tickets = socket.socketpair()
        self.stream, self._their_stream = socket.socketpair()
        self.stream.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        for end in (self._tickets, self.stream):
            end.setblocking(False)
        self.stacks = os.memfd_create("django_dispatch stacks")  # both sides have one offset in it

    @property
    def descriptors(self) -> tuple[int, int, int]:
        """The executor's ends: to take tickets from; to read assignments and orders from and report on; for stacks."""
        return self._their_tickets.fileno(), self._their_stream.fileno(), self.stacks

    def forget_their_stream(self) -> None:
        """Close our copy of their end, so that its end is seen. That of the tickets is kept, to take back from."""
        self._their_stream.close()

    @property
    def is_open(self) -> bool:
        """Whether it may be given any run."""
        return self.is_ready and not (self.is_doomed or self.is_blocked or self.is_apart)

    # to the executor

    def assign(self, flight: Flight) -> None:
        """Put a run among what flush() sends."""
        run = flight.run
        self._last_ticket += 1
        flight.ticket = self._last_ticket
        self._unticketed.append(flight.ticket)
        self._unsent += Assignment(
            *(flight.ticket, flight.lease, run.id, run.epoch, run.attempt, run.failures),
            *(run.task, run.args, run.kwargs, run.queue, run.scheduled_for),
        ).encode()
        self.flights[flight.token] = flight
        self.unstarted += 1

    def order_stop(self, flight: Flight, reason: Stop) -> None:
        """Tell the event loop of an async executor to end a run."""
        self._unsent += StopOrder(*flight.token, reason).encode()
        self.flush()

    def order_stack(self, flight: Flight) -> None:
        """Ask the event loop of an async executor where a run is."""
        self._unsent += StackOrder(*flight.token).encode()
        self.flush()

    def answer(self, number: int, text: str) -> None:
        """Answer a body's question."""
        self._unsent += Answer(number, text).encode()
        self.flush()

    def flush(self) -> None:
        """Send what is unsent; the tickets go when their assignments are all on the way."""
        try:
            if self._unsent:
                del self._unsent[: self.stream.send(self._unsent)]
            if self._unsent:
                self.loop.add_writer(self.stream, self._on_writable)
            elif self._unticketed:
                self._tickets.send(pack_tickets(self._unticketed))
                self._unticketed.clear()
        except BlockingIOError:
            self.loop.add_writer(self.stream, self._on_writable)
        except OSError:
            pass  # it is dead; its exit settles what it had

    def _on_writable(self) -> None:
        self.loop.remove_writer(self.stream)
        self.flush()

    def take_back(self) -> list[Flight]:
        """Take back what the executor has no ticket for: it has not started and never will."""
        tickets = self._unticketed
        self._unticketed = []
        with contextlib.suppress(BlockingIOError):
            while taken := take_tickets(self._their_tickets, MANY_TICKETS, socket.MSG_DONTWAIT):
                tickets = [*taken, *tickets]
        if not tickets:
            return []
        by_ticket = {flight.ticket: flight for flight in self.flights.values()}
        flights = [by_ticket[ticket] for ticket in sorted(tickets) if ticket in by_ticket]
        for flight in flights:
            self.land(flight.token)
        return flights

    # from the executor

    def read(self) -> Iterator[Message]:
        """Yield the messages that have arrived; after the last one that ever will, ``is_cut`` is true."""
        while not self.is_cut:
            try:
                data = self.stream.recv(LARGEST_READ)
            except (BlockingIOError, ConnectionResetError):
                return
            if not data:
                self.is_cut = True
                return
            try:
                yield from self._frames.feed(data)
            except BrokenStream:
                self.is_cut = True
            if len(data) < LARGEST_READ:
                return

    def mark_started(self, token: Token, now: float) -> Flight | None:
        """Note that a body has begun; return its flight, if it is one of ours."""
        flight = self.flights.get(token)
        if flight is not None:
            flight.started_at = now
            self.unstarted -= 1
        return flight

    def land(self, token: Token) -> Flight | None:
        """Take a flight off: it has an outcome."""
        flight = self.flights.pop(token, None)
        if flight is not None and flight.started_at is None:
            self.unstarted -= 1
        return flight

    def kill_past_zygote(self) -> None:
        """Kill it without its zygote, which is stuck; so it has not been reaped, and the pid is its own."""
        if self.pid is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """Close every socket."""
        self.loop.remove_writer(self.stream)
        for end in (self._tickets, self._their_tickets, self.stream, self._their_stream):
            end.close()
        os.close(self.stacks)
