"""What goes into the verbs of the store, and what comes back: plain values, in any process."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NotRequired, TypedDict, overload
from uuid import UUID

from ..logs import run_fields

if TYPE_CHECKING:
    from django_dispatch.models import Run


class NewRun(NamedTuple):
    """A run to be recorded. ``args``, ``kwargs``, ``meta`` and ``retention`` are JSON texts.

    A None leaves it to the database or the task.

    ``delay_seconds``, ``expires_seconds`` and ``unique_seconds`` count from now by the database's clock; at most one of
    the first two and its moment (``run_after``, ``expires_at``) is given. ``uuid`` is known for as long as the row,
    ``unique_key`` while the run has not ended, and for ``unique_seconds``. ``is_limited``: its queue has a limit.
    ``on_lost`` and ``on_duplicate`` are words of ``choices``.
    """

    task: str
    args: str = "[]"
    kwargs: str = "{}"
    queue: str = "default"
    priority: int = 0
    run_after: datetime | None = None
    delay_seconds: float | None = None
    max_attempts: int | None = None
    timeout_seconds: float | None = None
    on_lost: str = ""
    uuid: str | None = None
    unique_key: str | None = None
    unique_seconds: float | None = None
    on_duplicate: str | None = None
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    rate_amount: int | None = None
    rate_seconds: float | None = None
    is_limited: bool | None = None
    expires_at: datetime | None = None
    expires_seconds: float | None = None
    schedule_id: int | None = None
    fair_key: str | None = None
    meta: str = "{}"
    retention: str | None = None

    @property
    def blocked_by(self) -> str | None:
        """Where it has to wait first, once it is due; None: nowhere."""
        return self.concurrency_key or (f"queue:{self.queue}" if self.is_limited else None)

    @property
    def has_moments(self) -> bool:
        """Whether its row has a time of its own, which the database's clock decides."""
        moments = (self.run_after, self.delay_seconds, self.expires_at, self.expires_seconds)
        return moments != (None, None, None, None)

    @property
    def may_be_duplicate(self) -> bool:
        """Whether another run may be there in its place."""
        return self.unique_key is not None or self.uuid is not None


class Alike(Sequence[NewRun]):
    """Runs that differ in their arguments alone, each made when it is looked at.

    ``first`` is one of them, ``arguments`` are the JSON texts of each, args and kwargs, without a line break or a tab
    between their tokens.
    """

    def __init__(self, first: NewRun, arguments: Sequence[tuple[str, str]]) -> None:
        self.first = first
        self.arguments = arguments

    def __len__(self) -> int:
        return len(self.arguments)

    @overload
    def __getitem__(self, index: int) -> NewRun: ...
    @overload
    def __getitem__(self, index: slice) -> "Alike": ...
    def __getitem__(self, index: int | slice) -> "NewRun | Alike":
        if isinstance(index, slice):
            return Alike(self.first, self.arguments[index])
        args, kwargs = self.arguments[index]
        return self.first._replace(args=args, kwargs=kwargs)


class Recorded(NamedTuple):
    """What the database decided about a new run; ``duplicate_of`` is the one that is there in its place, if any."""

    id: int
    enqueued_at: datetime
    status: str
    run_after: datetime | None
    turn: int | None = None
    duplicate_of: "Run | None" = None


class RecordedAlike(Sequence[Recorded]):
    """What was decided about new runs that differ in their ids alone; each is made when it is looked at."""

    def __init__(self, ids: Sequence[int], enqueued_at: datetime, status: str) -> None:
        self._ids = ids
        self._enqueued_at = enqueued_at
        self._status = status

    def __len__(self) -> int:
        return len(self._ids)

    @overload
    def __getitem__(self, index: int) -> Recorded: ...
    @overload
    def __getitem__(self, index: slice) -> "RecordedAlike": ...
    def __getitem__(self, index: int | slice) -> "Recorded | RecordedAlike":
        if isinstance(index, slice):
            return RecordedAlike(self._ids[index], self._enqueued_at, self._status)
        return Recorded(self._ids[index], self._enqueued_at, self._status, None)


class ReceivedRun(NamedTuple):
    """What became of a message: its run, which ``is_new`` if this call recorded it."""

    id: int
    uuid: str
    queue: str
    status: str
    is_new: bool
    blocked_by: str | None = None


class Filter(TypedDict, total=False):
    """Which runs are meant: those for which all of this holds. ``args`` and ``kwargs`` are JSON texts."""

    run: int
    uuid: str
    task: str
    queue: str
    args: str
    kwargs: str


class CancelledRun(NamedTuple):
    """What a cancel did to one run; ``lease_id`` is set if it runs and was asked to stop.

    ``freed_key`` and ``freed_queue`` are the key and the queue at which it held a place that is free now.
    """

    id: int
    answer: Literal["cancelled", "requested", "already final"]
    lease_id: UUID | None
    freed_key: str | None = None
    freed_queue: str | None = None

    @property
    def freed(self) -> list[str]:
        """The keys to admit others at."""
        of_queue = None if self.freed_queue is None else f"queue:{self.freed_queue}"
        return [key for key in (self.freed_key, of_queue) if key is not None]


@dataclass(frozen=True, slots=True)
class NewLease:
    """A lease to be acquired: the identity that one boot of a dispatcher made for itself, and what it serves."""

    id: UUID
    node: str
    host: str
    pid: int
    process: Mapping[str, Any]
    queues: Sequence[str]
    slots: int
    version: str


class ClaimedRun(NamedTuple):
    """A run as it was claimed. ``args`` and ``kwargs`` are the stored JSON texts, not decoded.

    ``scheduled_for`` is in seconds since 1970.
    """

    id: int
    epoch: int
    task: str
    queue: str
    priority: int
    attempt: int
    failures: int
    interruptions: int
    max_attempts: int | None
    timeout_seconds: float | None
    on_lost: str
    args: str
    kwargs: str
    uuid: str | None = None
    due_seconds: float = 0.0
    """For how long it had been due when it was claimed."""
    scheduled_for: float | None = None
    concurrency_key: str | None = None
    place: int = 0
    """Where it stood among the runs of its queue and priority."""

    @property
    def log_fields(self) -> dict[str, object]:
        """What a record that concerns this run carries."""
        return run_fields(self.id, self.task, self.queue, self.attempt)


class Settlement(NamedTuple):
    """What becomes of a claimed run: the write that ends its claim.

    ``result``, ``error`` and ``progress`` are JSON texts; without a progress the stored one stays. ``delay_seconds``
    goes with SCHEDULED. ``has_failed`` and ``was_interrupted`` add to the run's counters; ``was_started`` False gives
    the attempt back. A ``queue`` or ``priority`` takes the place of the run's own.
    """

    run_id: int
    epoch: int
    status: str
    result: str | None = None
    error: str | None = None
    delay_seconds: float | None = None
    progress: str | None = None
    has_failed: bool = False
    was_interrupted: bool = False
    was_started: bool = True
    queue: str | None = None
    priority: int | None = None


@dataclass(frozen=True, slots=True)
class Exchange:
    """What finish-and-claim brought: the runs claimed, best first, and the ids of settlements not written as they were.

    Refused: the token does not fit. Busy: another transaction holds the run; the settlement is to be sent again.
    Cancelled: that was asked for, so the run is not tried again, but CANCELLED. ``rest_seconds``: fewer were claimed
    than wanted, and in so long a claim would look at others that may be READY; None: there are none.
    """

    claimed: Sequence[ClaimedRun]
    refused: Sequence[int]
    busy: Sequence[int]
    cancelled: Sequence[int] = field(default_factory=list)
    rest_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Reclaimed:
    """A run taken back from a lost lease, and what it became."""

    run_id: int
    task: str
    queue: str
    status: str
    lease_id: UUID

    @property
    def log_fields(self) -> dict[str, object]:
        """What a record that concerns this run carries."""
        return run_fields(self.run_id, self.task, self.queue)


class Backlog(NamedTuple):
    """The READY runs of one queue: how many, at most BACKLOG_LIMIT, and how long the oldest has been due."""

    queue: str
    ready: int
    oldest_seconds: float


BACKLOG_LIMIT = 10_000


class Promoted(NamedTuple):
    """What became of due runs: READY in ``queues``, or waiting at limits; and in how many seconds the next is due."""

    queues: Sequence[str]
    next_seconds: float | None
    blocked_keys: Sequence[str] = ()


class Expired(NamedTuple):
    """How many runs expired, in how many seconds the next will, and the keys at which places are free now."""

    runs: int
    next_seconds: float | None
    freed: Sequence[str] = ()


class Admitted(NamedTuple):
    """What an admission brought: queues that have READY runs now; keys to ask next, and those that are due later."""

    queues: Sequence[str]
    next_keys: Sequence[str]
    later: Mapping[str, float]


class Agenda(NamedTuple):
    """What there is to do: where runs are READY, the first keys at which runs wait, and whether a lease was lost.

    The seconds are those until the next run is due, or expires, or a schedule is due: 0 or less if one is already.
    """

    ready_queues: Sequence[str]
    blocked_keys: Sequence[str]
    promote_seconds: float | None
    expire_seconds: float | None
    schedule_seconds: float | None
    has_lost: bool
    leases: Sequence[UUID]
    """Those of the host."""


@dataclass(frozen=True, slots=True)
class Neighbour:
    """Another dispatcher's lease on the same host, with the identity of its processes."""

    lease_id: UUID
    node: str
    process: Mapping[str, Any]


class Wanted(TypedDict):
    """What an exchange is to claim: up to ``limit`` runs of ``queues``, served in this order.

    Runs of ``excluded_tasks`` stay where they are; those of ``at_most_once_tasks`` are marked so.
    """

    queues: Sequence[str]
    limit: int
    excluded_tasks: NotRequired[Sequence[str]]
    at_most_once_tasks: NotRequired[Sequence[str]]
