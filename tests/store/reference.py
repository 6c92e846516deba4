"""What the store's verbs are to do, said once more in plain Python: runs and leases as they must be in the tables."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from django_dispatch.store.values import NewRun, Settlement

FINAL = ("SUCCESSFUL", "FAILED", "CANCELLED")
MAX_INTERRUPTIONS = 3


@dataclass
class ExpectedRun:
    """A run as it must be in the table."""

    id: int
    new: NewRun
    status: str
    lease: UUID | None = None
    epoch: int = 0
    attempt: int = 0
    failures: int = 0
    interruptions: int = 0
    places: int = 0
    turn: int | None = None
    is_cancel_requested: bool = False
    is_due: bool = False
    """Whether the time of a SCHEDULED run has come."""
    is_late: bool = False
    """Whether the time has passed by which it had to be started."""
    progress: str | None = None
    result: str | None = None
    errors: int = 0

    @property
    def has_expired(self) -> bool:
        return self.is_late and not self.attempt

    @property
    def place(self) -> int:
        """Where it stands among those of its priority."""
        return 2 * self.id if self.turn is None else self.turn

    @property
    def line(self) -> str | None:
        """The line in which it waits."""
        return self.new.concurrency_key if self.status == "BLOCKED" else self.new.queue


@dataclass
class Tables:
    """Runs by id; leases by id, with the seconds for which each has been expired; 0: it is live."""

    runs: dict[int, ExpectedRun] = field(default_factory=dict)
    leases: dict[UUID, int] = field(default_factory=dict)
    returned: list[ExpectedRun] = field(default_factory=list)
    """Runs that an exchange gave back after their start, whose turns are not known until it has claimed."""

    def add(self, run: ExpectedRun) -> None:
        """It comes into its line."""
        self.line_up(run)
        self.runs[run.id] = run

    def line_up(self, run: ExpectedRun, *, key: str | None = None) -> None:
        """Give it its turn there; ``key`` None: by its own, "": as if no other of its key waited."""
        key = run.new.fair_key if key is None else key
        if run.new.fair_key is None or run.status not in ("READY", "BLOCKED"):
            return
        if run.status == "BLOCKED" and run.new.on_duplicate == "serial":
            run.turn = None
            return
        waiting = [
            (one.new.fair_key, one.turn)
            for one in self.of_status("READY", "BLOCKED")
            if one is not run and one.turn is not None
            if (one.line, one.new.priority) == (run.line, run.new.priority)
        ]
        of_key = [turn for its_key, turn in waiting if its_key == key]
        following = min((turn for _, turn in waiting), default=None)
        if of_key:
            run.turn = max(of_key) + 2
        else:
            run.turn = 2 * run.id if following is None else following + 1 + following % 2

    def line_up_returned(self) -> None:
        for run in sorted(self.returned, key=lambda run: run.id):
            self.line_up(run, key="")
        self.returned.clear()

    def of_status(self, *statuses: str) -> list[ExpectedRun]:
        return [run for run in self.runs.values() if run.status in statuses]

    def is_live(self, lease: UUID | None) -> bool:
        return lease is not None and self.leases.get(lease) == 0

    def holds(self, lease: UUID | None, run_id: int, epoch: int) -> bool:
        """Whether the token is right."""
        run = self.runs.get(run_id)
        return run is not None and run.status == "RUNNING" and (run.lease, run.epoch) == (lease, epoch)

    def held(self, lease: UUID) -> list[tuple[int, int]]:
        return sorted((run.id, run.epoch) for run in self.runs.values() if run.lease == lease)

    def claim(
        self,
        lease: UUID,
        queues: Sequence[str],
        limit: int,
        *,
        locked: Collection[int] = (),
        claimed: Sequence[int] = (),
    ) -> list[tuple[int, int]]:
        """Best first: by queue, then priority, then turn or id; nothing without a live lease.

        Who is first of two whose turn it is, is for the database to say, which has ``claimed`` these.
        """
        ready = [
            run
            for run in self.of_status("READY")
            if run.new.queue in queues and run.id not in locked and not run.has_expired
        ]
        ready.sort(
            key=lambda run: (queues.index(run.new.queue), -run.new.priority, run.place, run.id not in claimed, run.id)
        )
        best = ready[:limit] if self.is_live(lease) else []
        for run in best:
            run.status, run.lease = "RUNNING", lease
            run.epoch += 1
            run.attempt += 1
        return [(run.id, run.epoch) for run in best]

    def finish(
        self, lease: UUID, settlements: Sequence[Settlement], *, locked: Collection[int] = ()
    ) -> tuple[list[int], list[int], list[int]]:
        """Return the refused, the busy, and the cancelled."""
        cancelled = []
        refused = [s.run_id for s in settlements if not self.holds(lease, s.run_id, s.epoch)]
        busy = [s.run_id for s in settlements if s.run_id in locked and s.run_id not in refused]
        for s in settlements:
            if s.run_id not in (*refused, *busy):
                run = self.runs[s.run_id]
                run.attempt -= not s.was_started
                run.failures += s.has_failed
                run.interruptions += s.was_interrupted
                run.errors += s.error is not None
                run.result = s.result
                is_again = s.status in ("READY", "SCHEDULED")
                if is_again and run.is_cancel_requested:
                    cancelled.append(run.id)
                self._leave(run, "CANCELLED" if run.id in cancelled else s.status)
                if run.status == "READY" and s.was_started and run.turn is not None:
                    run.turn = None
                    self.returned.append(run)
        return refused, busy, cancelled

    def reclaim(
        self, *, grace: int, dead: Collection[UUID] = (), locked: Collection[int] = ()
    ) -> list[tuple[int, str, UUID]]:
        lost = [lease for lease, expired in self.leases.items() if expired > grace or lease in dead]
        for lease in lost:
            del self.leases[lease]
        reclaimed = []
        for run in self.of_status("RUNNING"):
            if run.lease is not None and run.lease not in self.leases and run.id not in locked:
                was = run.lease
                self._lose(run)
                reclaimed.append((run.id, run.status, was))
        return sorted(reclaimed)

    def promote(self, limit: int) -> set[str]:
        due = sorted((run for run in self.of_status("SCHEDULED") if run.is_due), key=lambda run: run.id)[:limit]
        for run in due:
            has_to_wait = run.new.concurrency_key is not None and not run.places
            run.status, run.is_due = "BLOCKED" if has_to_wait else "READY", False
            self.line_up(run, key="" if run.places else None)
        return {run.new.queue for run in due if run.status == "READY"}

    def admit(self, key: str, limit: int, most: int, *, admitted: Collection[int]) -> set[str]:
        """As many as there is room for, best first; of those whose turn it is, which were ``admitted``."""
        of_key = [run for run in self.runs.values() if run.new.concurrency_key == key]
        taken = sum(run.places > 0 and run.status not in FINAL for run in of_key)
        waiting = sorted(
            (run for run in of_key if run.status == "BLOCKED"),
            key=lambda run: (-run.new.priority, run.place, run.id not in admitted, run.id),
        )
        best = waiting[: max(0, min(most, limit - taken))]
        for run in sorted(best, key=lambda run: run.id):
            run.status, run.places = "READY", 1
            self.line_up(run, key="")
        return {run.new.queue for run in best}

    def expire(self) -> int:
        expired = [run for run in self.of_status("SCHEDULED", "READY", "BLOCKED") if run.has_expired]
        for run in expired:
            run.errors += 1
            self._leave(run, "CANCELLED")
        return len(expired)

    def cancel(self, run_id: int) -> str:
        run = self.runs[run_id]
        if run.status in FINAL:
            return "already final"
        if run.status == "RUNNING":
            run.is_cancel_requested = True
            return "requested"
        self._leave(run, "CANCELLED")
        return "cancelled"

    def prune(self, status: str) -> int:
        pruned = self.of_status(status)
        for run in pruned:
            del self.runs[run.id]
        return len(pruned)

    def rerun(self, run_id: int, new_id: int) -> None:
        new = self.runs[run_id].new._replace(delay_seconds=None)
        self.add(ExpectedRun(new_id, new, "READY" if new.concurrency_key is None else "BLOCKED"))

    def _lose(self, run: ExpectedRun) -> None:
        run.interruptions += 1
        run.errors += 1
        if run.is_cancel_requested:
            status = "CANCELLED"
        elif run.new.on_lost == "fail" or run.interruptions >= MAX_INTERRUPTIONS:
            status = "FAILED"
        else:
            status = "READY" if run.interruptions == 1 else "SCHEDULED"
        self._leave(run, status)

    def _leave(self, run: ExpectedRun, status: str) -> None:
        if status == "SCHEDULED":
            run.places = int(run.places > 0 and run.new.on_duplicate == "serial")
        run.status, run.lease, run.is_due = status, None, False
