"""What an outcome does to its run. Pure: it reads no clock, no setting and no row."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, assert_never

from . import retry
from .messages import Kind, Outcome, Plan, Verdict
from .store.schedule_rows import Declaration
from .store.values import ClaimedRun, Settlement


@dataclass(frozen=True, slots=True)
class TaskFacts:
    """What a dispatcher knows of a task without importing it."""

    kind: Kind
    timeout_seconds: float | None = None
    max_attempts: int = 1
    on_lost: str = ""
    retention: str | None = None
    priority: int = 0
    queue: str = "default"
    on_start: bool = False
    broadcast: bool = False
    schedules: tuple[Declaration, ...] = ()
    backoff: retry.Backoff = retry.DEFAULT_BACKOFF
    retry_on_timeout: bool = True
    expires_seconds: float | None = None
    limits: Mapping[str, Any] | None = None
    """A document of ``limits``."""


UNKNOWN = TaskFacts(Kind.SYNC)
NEVER = 32_767  # more losses than there can be


def settle(run: ClaimedRun, outcome: Outcome, facts: TaskFacts | None, *, max_interruptions: int) -> Settlement:
    """Return the write that ends this claim of the run. ``facts`` is None for a task that is not known."""
    match outcome.verdict:
        case Verdict.RETURNED | Verdict.COMMITTED:
            return Settlement(run.id, run.epoch, "SUCCESSFUL", result=outcome.text or None)
        case Verdict.RAISED | Verdict.TIMED_OUT:
            return _failed(run, outcome, facts)
        case Verdict.UNSTORABLE:
            # Trying again would only do the work again.
            return Settlement(run.id, run.epoch, "FAILED", error=outcome.text, has_failed=True)
        case Verdict.CANCELLED:
            return Settlement(run.id, run.epoch, "CANCELLED", error=outcome.text)
        case Verdict.INTERRUPTED:
            status = "FAILED" if run.on_lost == "fail" else "READY"
            return Settlement(run.id, run.epoch, status, error=outcome.text)
        case Verdict.UNSTARTED | Verdict.SNOOZED:
            return _put_off(run, outcome)
        case Verdict.LOST:
            return _lost(run, outcome, retry.after_loss(run.interruptions + 1), max_interruptions, was_started=True)
        case Verdict.LOST_TOGETHER:
            # It is run again alone; only what that comes to can be held against it.
            return _lost(run, outcome, 0.0, NEVER, was_started=True)
        case Verdict.UNKNOWN_TASK:
            delay = retry.after_unknown_task(run.interruptions + 1)
            return _lost(run, outcome, delay, max_interruptions, was_started=False)
        case _:
            assert_never(outcome.verdict)


def _put_off(run: ClaimedRun, outcome: Outcome) -> Settlement:
    delay = outcome.plan.delay_seconds if outcome.plan else None
    status = "READY" if delay is None else "SCHEDULED"
    has_begun = outcome.verdict is Verdict.SNOOZED
    return Settlement(run.id, run.epoch, status, delay_seconds=delay, was_started=has_begun)


def _failed(run: ClaimedRun, outcome: Outcome, facts: TaskFacts | None) -> Settlement:
    facts, plan = facts or UNKNOWN, outcome.plan or Plan()
    failures = run.failures + 1
    is_over = plan.is_final or failures >= (run.max_attempts or facts.max_attempts)
    if outcome.verdict is Verdict.TIMED_OUT:
        # A body that was stopped half-way has not said what it did: an at-most-once task is not tried again.
        is_over = is_over or run.on_lost == "fail" or not facts.retry_on_timeout
    if is_over:
        return Settlement(run.id, run.epoch, "FAILED", error=outcome.text, has_failed=True)
    delay = plan.delay_seconds
    if delay is None:
        delay = retry.after_failure(facts.backoff, failures, (run.id, run.epoch))
    return Settlement(
        run.id,
        run.epoch,
        "SCHEDULED",
        error=outcome.text,
        delay_seconds=delay,
        has_failed=True,
        queue=plan.queue,
        priority=plan.priority,
    )


def _lost(run: ClaimedRun, outcome: Outcome, delay: float, max_interruptions: int, *, was_started: bool) -> Settlement:
    is_over = run.interruptions + 1 >= max_interruptions or (was_started and run.on_lost == "fail")
    status = "FAILED" if is_over else "SCHEDULED" if delay else "READY"
    return Settlement(
        run.id,
        run.epoch,
        status,
        error=outcome.text,
        delay_seconds=delay if status == "SCHEDULED" else None,
        was_interrupted=True,
        was_started=was_started,
    )
