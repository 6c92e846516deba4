"""What the store takes and gives of schedules: rows of the table, and what a look at one comes to. In any process."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

# A schedule of the code that no dispatcher has in its code any more is not due; it is told apart from one whose
# dispatchers are away for a moment by the time since one of them said that it has it.
DECLARED_SECONDS = 180
# The flaw of a row that holds what Python cannot.
UNREADABLE = "It has a moment or an interval that is out of range."


class Declaration(NamedTuple):
    """A schedule of the code. ``args`` and ``kwargs`` are JSON texts, ``start_at`` and ``end_at`` ISO 8601.

    No queue and no priority: as the task says. No time zone: that of the project.
    """

    name: str
    task: str
    args: str
    kwargs: str
    queue: str | None
    priority: int | None
    cron: str | None
    every_seconds: float | None
    time_zone: str | None
    start_at: str | None
    end_at: str | None
    catch_up: str
    catch_up_window_seconds: float
    overlap: str


class DueSchedule(NamedTuple):
    """A schedule that is due, or whose next time is not worked out yet (not ``is_planned``), as it was at ``now``.

    ``revision`` and ``token`` say which state of it was seen. ``flaw`` says what the row holds that no schedule can.
    """

    now: datetime
    id: int
    name: str
    task: str
    revision: int
    is_planned: bool
    token: str | None
    next_at: datetime | None
    last_at: datetime | None
    cron: str | None
    every: timedelta | None
    once_at: datetime | None
    time_zone: str
    start_at: datetime | None
    end_at: datetime | None
    catch_up: str
    catch_up_window: timedelta
    overlap: str
    args: str
    kwargs: str
    flaw: str


class Firing(NamedTuple):
    """What a look at a schedule has come to: occurrences to enqueue, its next time or problem; and the task's facts.

    The keys are those of the arguments seen, if the task has any; see NewRun.
    """

    id: int
    revision: int
    token: str | None
    slots: Sequence[datetime]
    next_at: datetime | None
    problem: str
    task_queue: str
    task_priority: int
    on_lost: str
    expires_seconds: float | None = None
    retention: str | None = None
    seen_args: str | None = None
    seen_kwargs: str | None = None
    unique_key: str | None = None
    unique_seconds: float | None = None
    on_duplicate: str | None = None
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    rate_amount: int | None = None
    rate_seconds: float | None = None
    fair_key: str | None = None


class Fired(NamedTuple):
    """A schedule that was moved on, and the runs that were enqueued for it: none if it was skipped, or not due yet.

    ``blocked_by`` is the limit at which they wait, if they do.
    """

    id: int
    queue: str | None
    blocked_by: str | None
    run_ids: list[int]


class ScheduleState(NamedTuple):
    """How a schedule is. ``is_retired``: no dispatcher has it in its code any more. Moments are texts."""

    name: str
    enabled: bool
    is_retired: bool
    next_at: str | None
    last_at: str | None
    problem: str
