"""One executor as the dispatcher sees it: its sockets, and the runs that were assigned to it."""

import contextlib
import socket
from collections.abc import Iterator
from dataclasses import dataclass, field
from uuid import UUID

from ..finish import TaskFacts
from ..messages import (
    Assignment,
    FrameReader,
    Kind,
    Message,
    Stop,
    StopOrder,
    receive_assignment,
    send_assignment,
)
from ..store.base import ClaimedRun

SEND_BUFFER = 1 << 20
LARGEST_READ = 1 << 18

Token = tuple[int, int]


@dataclass(slots=True, eq=False)
class Flight:
    """A claimed run on its way through an executor. Times are the event loop's, in seconds."""

    run: ClaimedRun
    facts: TaskFacts
    lease_id: UUID
    claimed_at: float
    started_at: float | None = None
    timeout_seconds: float | None = None
    stop: Stop | None = None
    kill_at: float | None = None

    @property
    def token(self) -> Token:
        return self.run.id, self.run.epoch


@dataclass(eq=False)
class Executor:
    """A child of the zygote. ``flights`` are in the order of assignment; those that started come first."""

    id: int
    kind: Kind
    slot: int
    capacity: int
    born_at: float
    pid: int | None = None
    is_ready: bool = False
    is_doomed: bool = False
    """No more assignments: it is being killed."""
    flights: dict[Token, Flight] = field(default_factory=dict)
    unstarted: int = 0

    def __post_init__(self) -> None:
        self._frames = FrameReader()
        self._assignments, self._their_assignments = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.reports, self._their_reports = socket.socketpair()
        self._assignments.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        for end in (self._assignments, self.reports):
            end.setblocking(False)

    @property
    def descriptors(self) -> tuple[int, int]:
        """The executor's ends: to take assignments from, to report on."""
        return self._their_assignments.fileno(), self._their_reports.fileno()

    def forget_their_reports(self) -> None:
        """Close our copy of the reporting end, so that its end is seen. The other one is kept, to take back from."""
        self._their_reports.close()

    def assign(self, flight: Flight) -> bool:
        """Send a run to the executor. False: it takes no more now."""
        run = flight.run
        assignment = Assignment(flight.lease_id, run.id, run.epoch, run.attempt, run.task, run.args, run.kwargs)
        try:
            was_sent = send_assignment(self._assignments, assignment)
        except OSError:
            return False
        if was_sent:
            self.flights[flight.token] = flight
            self.unstarted += 1
        return was_sent

    def mark_started(self, token: Token, now: float) -> Flight | None:
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

    def take_back(self) -> list[Flight]:
        """Take back what the executor has not read. Exact: the kernel gives each packet to one reader only."""
        taken = []
        with contextlib.suppress(BlockingIOError):
            while (packet := receive_assignment(self._their_assignments, socket.MSG_DONTWAIT)) is not None:
                flight = self.land(Assignment.token_of(packet))
                if flight is not None:
                    taken.append(flight)
        return taken

    def order_stop(self, flight: Flight, reason: Stop) -> None:
        """Tell the event loop of an async executor to end a run."""
        with contextlib.suppress(OSError):
            self.reports.send(StopOrder(*flight.token, reason).encode())

    def read(self) -> Iterator[Message]:
        """Yield the messages that have arrived."""
        while True:
            try:
                data = self.reports.recv(LARGEST_READ)
            except (BlockingIOError, ConnectionResetError):
                return
            if not data:
                return
            yield from self._frames.feed(data)
            if len(data) < LARGEST_READ:
                return

    def close(self) -> None:
        for end in (self._assignments, self._their_assignments, self.reports, self._their_reports):
            end.close()
