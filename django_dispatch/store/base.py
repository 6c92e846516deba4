"""The verbs of the store: every way in which a run or a lease may change, in any process.

Each verb is one statement (or one a chunk), or one transaction where the database has one writer at a time; guarded,
with its row count checked, by the database's clock. All are synchronous. Enqueue, cancel and rerun join the caller's
transaction; the dispatcher's verbs run on a connection of the dispatcher's own, in autocommit.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Unpack
from uuid import UUID

from .schedule_rows import Declaration, DueSchedule, Fired, Firing, ScheduleState
from .values import (
    Admitted,
    Agenda,
    Backlog,
    CancelledRun,
    Exchange,
    Expired,
    Filter,
    Neighbour,
    NewLease,
    NewRun,
    Promoted,
    ReceivedRun,
    Reclaimed,
    Settlement,
    Wanted,
)


class Store(ABC):
    """The dispatcher's verbs. A call may raise ``django.db.Error``; repeating any of them is safe."""

    # lease

    @abstractmethod
    def acquire(self, lease: NewLease, *, ttl_seconds: float) -> None:
        """Record a lease that is live from now for ``ttl_seconds``, and wake the dispatchers of its host."""

    @abstractmethod
    def renew(self, lease_id: UUID, *, ttl_seconds: float, is_draining: bool, slots: int | None = None) -> bool:
        """Extend a live lease; ``slots`` None leaves them.

        False: it expired or was reclaimed, and nothing claimed under it is ours any more.
        """

    @abstractmethod
    def surrender(self, lease_id: UUID) -> bool:
        """Delete a lease that holds no run. False: it still holds some, or is gone already."""

    # the wait for wakeups

    @abstractmethod
    def say_waiting(self, lease_id: UUID, *, queues: Sequence[str], is_waiting: bool) -> bool:
        """Say whether enqueues in queues of these patterns are to notify, for as long as the lease is there.

        False: the lease is not live, and nothing was said.
        """

    @abstractmethod
    def mark(self) -> int:
        """Return a number that is newer than every transaction that has written anything until now."""

    @abstractmethod
    def has_passed(self, mark: int) -> bool:
        """Return whether all transactions older than the mark have ended, so that from now on their runs are seen."""

    # claim and finish

    @abstractmethod
    def exchange(
        self,
        lease_id: UUID,
        settlements: Sequence[Settlement],
        **wanted: Unpack[Wanted],
    ) -> Exchange:
        """Write settlements and claim what is wanted of the READY runs, in one statement and one commit.

        A settlement counts only where lease and epoch still match; one that means another attempt is written as
        CANCELLED if that was asked for. Nobody's lock on a run is waited for. Nothing is claimed unless the lease is
        live by the database's clock at that moment, nor what has expired before its first start. Each queue is served
        by priority, then id; among runs with fair keys, each key in turn. Where it is dear to look at all of a line it
        may begin further on, and says by ``rest_seconds`` when it will not: see walks.py. Raises DataError when a
        settlement cannot be stored: then nothing was written.
        """

    @abstractmethod
    def held(self, lease_id: UUID) -> Sequence[tuple[int, int]]:
        """Return (run id, epoch) of every run that the lease holds."""

    @abstractmethod
    def cancellations(self, lease_id: UUID) -> Sequence[tuple[int, int]]:
        """Return (run id, epoch) of the held runs that somebody wants cancelled."""

    @abstractmethod
    def report_progress(self, lease_id: UUID, progress: Mapping[tuple[int, int], str]) -> None:
        """Store progress documents (JSON texts), keyed by (run id, epoch), of runs that the lease still holds.

        Skips a run that another transaction holds.
        """

    # housekeeping

    @abstractmethod
    def agenda(self, *, host: str, tasks: Sequence[str], grace_seconds: float, limit: int) -> Agenda:
        """Return what there is to do for promote, expire, admit, due_schedules, reclaim and cancel_unreachable.

        ``limit`` is of the keys at which runs wait. Writes nothing, and is as cheap as any of these.
        """

    @abstractmethod
    def reclaim(
        self,
        *,
        grace_seconds: float,
        max_interruptions: int,
        dead_leases: Sequence[UUID] = (),
        why: str = "its process died",
    ) -> Sequence[Reclaimed]:
        """Take back the runs of leases expired for longer than ``grace_seconds``, of ``dead_leases``, and of no lease.

        The leases are deleted in the same statement. A run goes to READY the first time, SCHEDULED with a growing
        delay after that, FAILED when ``max_interruptions`` is reached or its task is at-most-once, and CANCELLED
        when that was asked for. Skips what another dispatcher is reclaiming.
        """

    @abstractmethod
    def cancel_unreachable(self) -> int:
        """Cancel READY runs in the private queue of a lease that does not exist; return how many. Waits for nobody."""

    @abstractmethod
    def promote(self, *, limit: int, limited_queues: Sequence[str] = ()) -> Promoted:
        """Make due SCHEDULED runs READY; BLOCKED if they have a key, or are of a queue that has a limit."""

    @abstractmethod
    def blocked_keys(self, *, after: str, limit: int) -> Sequence[str]:
        """Return the first ``limit`` keys after this one at which runs wait, in their order."""

    @abstractmethod
    def admit(self, keys: Sequence[str], *, most: int, queue_limits: str) -> Admitted:
        """Give the free places of these keys to the runs that wait there, at most ``most`` each; best first.

        Never are more runs of a key READY or RUNNING than its limit. ``queue_limits`` is a JSON object of the queues
        that have one: ``concurrency``, ``rate_amount``, ``rate_seconds``.
        """

    @abstractmethod
    def prune_buckets(self) -> None:
        """Forget how full buckets were that are full again."""

    @abstractmethod
    def expire(self, *, limit: int) -> Expired:
        """Cancel runs that have expired before their first start."""

    @abstractmethod
    def prune(self, *, status: str, age_seconds: float, limit: int) -> int:
        """Delete up to ``limit`` runs of a final status that ended longer ago than ``age_seconds``; oldest first.

        Those with a retention of their own are left alone. Skips what somebody else is deleting.
        """

    @abstractmethod
    def prune_own(self, *, limit: int) -> int:
        """Delete up to ``limit`` final runs that have a retention of their own, and are past it. See prune()."""

    @abstractmethod
    def age(self, *, age_seconds: float, limit: int) -> int:
        """Give READY runs that were enqueued longer ago than ``age_seconds`` the highest priority of their queue.

        Of each priority in use, ``limit`` at most; the longest waiting. Returns how many.
        """

    @abstractmethod
    def ready_queues(self) -> Sequence[str]:
        """Return the names of the queues that have READY runs and are not paused."""

    @abstractmethod
    def backlogs(self) -> Sequence[Backlog]:
        """Return what there is in each queue that has READY runs. Cheap, whatever the backlog."""

    @abstractmethod
    def live_leases(self) -> Mapping[str, int]:
        """Return how many leases are live, by their state."""

    @abstractmethod
    def neighbours(self, *, host: str, besides: UUID | None) -> Sequence[Neighbour]:
        """Return the leases of ``host``, but for our own."""

    @abstractmethod
    def notify(self, payloads: Sequence[str]) -> None:
        """Send wakeups."""

    # schedules

    @abstractmethod
    def due_schedules(self, tasks: Sequence[str], *, limit: int) -> tuple[Sequence[DueSchedule], float | None]:
        """Return schedules of these tasks that are due or not planned; and in how many seconds the next one is."""

    @abstractmethod
    def fire(self, firings: Sequence[Firing], *, limited_queues: Sequence[str] = ()) -> Sequence[Fired]:
        """Enqueue occurrences and move their schedules on, in one commit; return the schedules that were moved.

        Where another run has its unique key, an occurrence is not enqueued; in ``limited_queues``, it is BLOCKED. A
        schedule that is not as it was seen any more, or that another transaction holds, is left alone. Raises DataError
        or IntegrityError when a run cannot be stored, and OperationalError where a transaction that goes on has just
        enqueued one of the same unique key: then nothing was written.
        """

    @abstractmethod
    def declare(self, declarations: Sequence[Declaration]) -> Mapping[str, str]:
        """Record the schedules of the code. Returns for each name ``recorded``, or ``taken`` by one made by hand.

        A name is left out if another transaction holds its row.
        """

    @abstractmethod
    def keep_declared(self, names: Sequence[str]) -> None:
        """Say that these schedules are still in the code of a dispatcher."""

    @abstractmethod
    def flag_unknown(self, tasks: Sequence[str], problem: str) -> Sequence[tuple[str, str]]:
        """Flag schedules that are overdue and not of these tasks; return the name and task of each."""

    @abstractmethod
    def schedule_states(self, *, limit: int) -> Sequence[ScheduleState]:
        """Return how schedules are: those with a problem first, then those due next."""

    @abstractmethod
    def enqueue_at_start(self, runs: Sequence[NewRun]) -> Sequence[ReceivedRun]:
        """Enqueue runs because a dispatcher starts. See receive()."""

    # control

    @abstractmethod
    def send(self, channel: str, payloads: Sequence[str]) -> None:
        """Send payloads on any channel, in their order."""

    @abstractmethod
    def receive(self, messages: Sequence[NewRun]) -> Sequence[ReceivedRun]:
        """Record a run for each message whose uuid is not known, and return the run of each that has one.

        Where another run has its unique key, none is recorded.

        Raises DataError if one cannot be stored: then none was.
        """

    @abstractmethod
    def cancel(self, limit: int, **wanted: Unpack[Filter]) -> Mapping[int, CancelledRun]:
        """Cancel the runs that are meant: the first ``limit`` of those that wait, or run. See ``steering.cancel``."""

    @abstractmethod
    def abort(self) -> None:
        """Break the connection under a call that takes too long; it raises then. From any thread."""

    @abstractmethod
    def close(self) -> None:
        """Close the connection."""


class Exchanger(ABC):
    """``Store.exchange`` on an event loop, on a session of its own: no other verb can hold it up."""

    @abstractmethod
    async def exchange(
        self,
        lease_id: UUID,
        settlements: Sequence[Settlement],
        **wanted: Unpack[Wanted],
    ) -> Exchange:
        """See Store.exchange()."""

    @abstractmethod
    async def close(self) -> None:
        """Close the connection."""
