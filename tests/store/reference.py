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


@dataclass
class Tables:
    """Runs by id; leases by id, with the seconds for which each has been expired; 0: it is live."""

    runs: dict[int, ExpectedRun] = field(default_factory=dict)
    leases: dict[UUID, int] = field(default_factory=dict)

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
        self, lease: UUID, queues: Sequence[str], limit: int, *, locked: Collection[int] = ()
    ) -> list[tuple[int, int]]:
        """Best first: by queue, then priority, then id; nothing without a live lease."""
        ready = [
            run
            for run in self.of_status("READY")
            if run.new.queue in queues and run.id not in locked and not run.has_expired
        ]
        ready.sort(key=lambda run: (queues.index(run.new.queue), -run.new.priority, run.id))
        claimed = ready[:limit] if self.is_live(lease) else []
        for run in claimed:
            run.status, run.lease = "RUNNING", lease
            run.epoch += 1
            run.attempt += 1
        return [(run.id, run.epoch) for run in claimed]

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
        return {run.new.queue for run in due if run.status == "READY"}

    def admit(self, key: str, limit: int, most: int) -> set[str]:
        """As many as there is room for, best first."""
        of_key = [run for run in self.runs.values() if run.new.concurrency_key == key]
        taken = sum(run.places > 0 and run.status not in FINAL for run in of_key)
        waiting = sorted(
            (run for run in of_key if run.status == "BLOCKED"), key=lambda run: (-run.new.priority, run.id)
        )
        admitted = waiting[: max(0, min(most, limit - taken))]
        for run in admitted:
            run.status, run.places = "READY", 1
        return {run.new.queue for run in admitted}

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
        self.runs[new_id] = ExpectedRun(new_id, new, "READY" if new.concurrency_key is None else "BLOCKED")

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
