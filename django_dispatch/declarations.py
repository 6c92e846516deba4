"""What ``@task`` says of schedules, checked where it is written down, and as the rows it comes to; in any process."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from inspect import Signature
from typing import assert_never

from .arguments import Encoder, is_storable
from .enqueue import check_priority, check_queue
from .exceptions import InvalidOption
from .schedules import Cron, Every, Rule, check_policy
from .store.schedule_rows import Declaration

MAX_NAME_LENGTH = 255

Schedules = str | Cron | Every | Sequence[Cron | Every]


def declare(path: str, signature: Signature, schedule: Schedules | None, every: timedelta | None) -> list[Declaration]:
    """Return what the options ``schedule`` and ``every`` of a task declare, in their order.

    Raises InvalidOption, and InvalidArguments if the task cannot be called so.
    """
    declared: list[Declaration] = []
    for number, timing in enumerate(_timings(schedule, every), 1):
        name = timing.name if timing.name is not None else path if number == 1 else f"{path}#{number}"
        if any(name == other.name for other in declared):
            raise InvalidOption(f"two schedules are called {name!r}: give each a name of its own.")
        declared.append(_declaration(path, signature, name, timing))
    return declared


def _timings(schedule: Schedules | None, every: timedelta | None) -> list[Cron | Every]:
    found: list[Cron | Every] = []
    if isinstance(schedule, str):
        found.append(Cron(schedule))
    elif isinstance(schedule, Cron | Every):
        found.append(schedule)
    elif schedule is not None:
        if not isinstance(schedule, list | tuple) or not all(isinstance(one, Cron | Every) for one in schedule):
            raise InvalidOption(
                f"schedule must be a cron expression, a Cron or Every, or a list of these two, not {schedule!r}."
            )
        found.extend(schedule)
    if every is not None:
        if not isinstance(every, timedelta):
            raise InvalidOption(f"every must be a timedelta, not {every!r}.")
        found.append(Every(seconds=every.total_seconds()))
    return found


def _declaration(path: str, signature: Signature, name: str, timing: Cron | Every) -> Declaration:
    if not isinstance(name, str) or not 0 < len(name) <= MAX_NAME_LENGTH or not is_storable(name):
        raise InvalidOption(f"the name of a schedule must be of 1 to {MAX_NAME_LENGTH} characters, not {name!r}.")
    rule = _rule(timing)
    rule.check()
    check_policy(timing.catch_up, timing.catch_up_window, timing.overlap)
    kwargs: Mapping[str, object] = timing.kwargs if timing.kwargs is not None else {}
    args_json, kwargs_json = Encoder(path, signature).encode(timing.args, kwargs)
    return Declaration(
        name=name,
        task=path,
        args=args_json,
        kwargs=kwargs_json,
        queue=None if timing.queue is None else check_queue(timing.queue),
        priority=None if timing.priority is None else check_priority(timing.priority),
        cron=rule.cron,
        every_seconds=None if rule.every is None else rule.every.total_seconds(),
        time_zone=timing.tz if isinstance(timing, Cron) else None,
        start_at=_text(timing.start),
        end_at=_text(timing.end),
        catch_up=timing.catch_up,
        catch_up_window_seconds=timing.catch_up_window.total_seconds(),
        overlap=timing.overlap,
    )


def _rule(timing: Cron | Every) -> Rule:
    for moment in (timing.start, timing.end):
        if moment is not None and (not isinstance(moment, datetime) or moment.tzinfo is None):
            raise InvalidOption(f"the start and end of a schedule must be aware datetimes, not {moment!r}.")
    if isinstance(timing, Cron):
        if not isinstance(timing.expression, str) or not isinstance(timing.tz, str | None):
            raise InvalidOption(f"the expression and time zone of a Cron must be texts, not those of {timing!r}.")
        zone = "UTC" if timing.tz is None else timing.tz
        return Rule(cron=timing.expression, time_zone=zone, start_at=timing.start, end_at=timing.end)
    if isinstance(timing, Every):
        try:
            return Rule(every=timing.interval, start_at=timing.start, end_at=timing.end)
        except (OverflowError, ValueError, TypeError):
            raise InvalidOption(f"{timing!r} is no interval.") from None
    assert_never(timing)


def _text(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
