"""Change what becomes of runs: cancel one, run it again, run a schedule now, pause a queue. From a view, or a shell.

On ``DISPATCH["DATABASE"]``, in the caller's transaction if there is one.
"""

import json
from collections.abc import Iterable
from datetime import datetime, timedelta
from enum import StrEnum
from typing import TYPE_CHECKING

from django.utils import timezone

from . import conf, registry
from .arguments import is_storable
from .enqueue import check_duration, check_moment, check_queue, count_after_commit, enqueue_many
from .exceptions import InvalidOption
from .schedules import NO_BROADCAST
from .store.vendors import callers
from .wakeups.base import Wakeup, blocked_wakeups
from .wakeups.sending import wake_after_commit

if TYPE_CHECKING:
    from .models import Run, Schedule

MAX_REASON_LENGTH = 1000
MAX_BY_LENGTH = 150


class CancelAnswer(StrEnum):
    """What a cancel did. A run that is REQUESTED stays RUNNING until its body has ended."""

    CANCELLED = "cancelled"
    REQUESTED = "requested"
    ALREADY_FINAL = "already final"
    UNKNOWN = "unknown"


def cancel(run: "Run | int") -> CancelAnswer:
    """Cancel a run, given as such or by its id. The object given is left as it is.

    A run that has not started is CANCELLED at once; a body that runs is asked to stop, after the commit; a run that
    has ended stays as it is.
    """
    return cancel_many([run])[_id_of(run)]


def cancel_many(runs: "Iterable[Run | int]") -> dict[int, CancelAnswer]:
    """Cancel many runs in one statement, and return each id's answer. See cancel()."""
    using = conf.current().database
    answers = dict.fromkeys(map(_id_of, runs), CancelAnswer.UNKNOWN)
    found = callers(using).cancel(using, answers.keys())
    answers |= {run.id: CancelAnswer(run.answer) for run in found}
    for lease_id in dict.fromkeys(run.lease_id for run in found if run.lease_id is not None):
        wake_after_commit(using, Wakeup("cancel", str(lease_id)))
    for wakeup in blocked_wakeups(dict.fromkeys(key for run in found for key in run.freed)):
        wake_after_commit(using, wakeup)
    return answers


def run_again(run: "Run | int") -> "Run":
    """Enqueue a copy of a run that has ended, and return it; the old one stays, ``meta["rerun_of"]`` names it.

    The copy waits at the same limits, expires after as long a time, and is recorded even if another run of its key is
    there.

    Raises InvalidOption if the run has not ended or does not exist.
    """
    using = conf.current().database
    new = callers(using).rerun(using, _id_of(run), limited_queues=conf.current().queue_limits.keys())
    if new is None:
        raise InvalidOption(f"Run {_id_of(run)} cannot be run again: it has not ended, or does not exist.")
    wakeup = Wakeup("ready", new.queue) if new.blocked_by is None else Wakeup("blocked", new.blocked_by)
    wake_after_commit(using, wakeup)
    count_after_commit(using, {(new.task, new.queue): 1})
    return new


def run_now(schedule: "Schedule") -> "Run":
    """Enqueue a run of a schedule, enabled or not, and return it; or the one of which it would be a duplicate.

    The schedule's times stay as they are.

    Raises UnknownTask, InvalidArguments or InvalidOption where this process could not enqueue such a run.
    """
    registry.autodiscover()
    found = type(schedule).objects.using(conf.current().database).filter(pk=schedule.pk).first()
    if found is None:
        raise InvalidOption(f"Schedule {schedule.name!r} does not exist any more.")
    task = registry.get(found.task)
    if task.broadcast:
        raise InvalidOption(NO_BROADCAST)
    new = task.new_run(found.args, found.kwargs, queue=found.queue, priority=found.priority)
    meta = json.dumps({"schedule": found.name})
    return enqueue_many([new._replace(schedule_id=found.pk, meta=meta)])[0]


def pause_queue(name: str, *, reason: str = "", until: datetime | timedelta | None = None, by: str = "") -> None:
    """Have nothing claimed from a queue: after the commit no claim begins that takes a run of it.

    Its runs wait, and can be enqueued and cancelled; bodies that run go on. ``until`` is when it ends by itself, or
    after how long, by the database's clock; without it, resume_queue() ends it. A queue that is paused already gets
    the new reason and end. Raises InvalidOption.
    """
    using = conf.current().database
    check_queue(name)
    for what, text, longest in (("reason", reason, MAX_REASON_LENGTH), ("by", by, MAX_BY_LENGTH)):
        if not isinstance(text, str) or len(text) > longest or not is_storable(text):
            raise InvalidOption(f"{what} must be a text of at most {longest} characters, not {text!r}.")
    if isinstance(until, timedelta):
        seconds = check_duration("until", until).total_seconds()
        if not seconds:
            raise InvalidOption("until must be later than now.")
        return callers(using).pause(using, name, reason=reason, by=by, seconds=seconds)
    moment = None if until is None else check_moment(until, name="until")
    if moment is not None and moment <= timezone.now():
        raise InvalidOption(f"until must be later than now, not {until!r}.")
    return callers(using).pause(using, name, reason=reason, by=by, until=moment)


def resume_queue(name: str) -> bool:
    """Have a queue claimed from again, and wake dispatchers after the commit; return whether it was paused."""
    using = conf.current().database
    was_paused = callers(using).resume(using, check_queue(name))
    wake_after_commit(using, Wakeup("ready", name))
    return was_paused


def _id_of(run: "Run | int") -> int:
    return run if isinstance(run, int) else run.id
