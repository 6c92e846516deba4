"""When a schedule is due: its rule in one's own words, its next times, and which missed ones are made up for. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice, takewhile
from typing import Any, Literal, get_args
from zoneinfo import ZoneInfo

from cronsim import CronSim, CronSimError

from .exceptions import InvalidOption

CatchUp = Literal["none", "last", "all"]
Overlap = Literal["allow", "skip"]

LONGEST_PUT_BACK_SECONDS = 3 * 3600
ONE_DAY = timedelta(days=1)
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
INSTANT = timedelta(microseconds=1)
# What is no later than this counts as in time: another dispatcher may have to take over first.
PUNCTUAL = timedelta(minutes=1)
LONGEST_CRON = 100
LONGEST_EVERY = timedelta(days=36_525)
# How far back the last of many missed occurrences is looked for: a rule with many in one span has some in the one
# before, so that not many are ever counted out.
LOOKS_BACK = tuple(timedelta(seconds=seconds) for seconds in (60, 600, 3600, 86_400, 31 * 86_400, 370 * 86_400))
ALIASES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
NO_BROADCAST = (
    "A schedule makes one run an occurrence, and this task is a broadcast: schedule another task that enqueues it."
)
UNITS = ((86_400, "day"), (3600, "hour"), (60, "minute"), (1, "second"))


@dataclass(frozen=True, kw_only=True)
class Timing:
    """What Cron and Every have in common: the call that is enqueued, and what becomes of missed occurrences.

    ``name`` is that of the schedule's row; by default the task's path, with ``#2`` and so on for its other schedules.
    ``queue`` and ``priority`` are by default as the task says. ``catch_up``: of the occurrences that no dispatcher was
    there for, up to ``catch_up_window`` ago, ``"last"`` runs one, ``"all"`` each, and ``"none"`` only one that is less
    than a minute late. ``overlap="skip"`` enqueues nothing while a run of the schedule has not ended. ``start`` and
    ``end`` are aware times.
    """

    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] | None = None
    name: str | None = None
    queue: str | None = None
    priority: int | None = None
    catch_up: CatchUp = "last"
    catch_up_window: timedelta = ONE_DAY
    overlap: Overlap = "allow"
    start: datetime | None = None
    end: datetime | None = None


@dataclass(frozen=True)
class Cron(Timing):
    """At the times of a cron expression, in a time zone: by default the project's ``TIME_ZONE``.

    Five fields (minute, hour, day, month, weekday), or six with the second first.
    """

    expression: str
    tz: str | None = None


@dataclass(frozen=True, kw_only=True)
class Every(Timing):
    """Each time so much has passed, counted from ``start``, or else from midnight of 1970-01-01 UTC."""

    days: float = 0
    hours: float = 0
    minutes: float = 0
    seconds: float = 0

    @property
    def interval(self) -> timedelta:
        """The sum of the parts. Raises OverflowError or ValueError if they make no timedelta."""
        return timedelta(days=self.days, hours=self.hours, minutes=self.minutes, seconds=self.seconds)


@dataclass(frozen=True, slots=True)
class Rule:
    """When a schedule is due. Times are aware; one of ``cron``, ``every`` and ``once_at`` is given. Check it first."""

    cron: str | None = None
    every: timedelta | None = None
    once_at: datetime | None = None
    time_zone: str = "UTC"
    start_at: datetime | None = None
    end_at: datetime | None = None

    def check(self) -> None:
        """Raise InvalidOption if the rule makes no sense, or no time ever fits it."""
        if sum(kind is not None for kind in (self.cron, self.every, self.once_at)) != 1:
            raise InvalidOption("A schedule needs a cron, an interval or a single time: one of the three.")
        check_zone(self.time_zone)
        if self.cron is not None:
            check_cron(self.cron)
        if self.every is not None:
            check_every(self.every)
        if self.start_at is not None and self.end_at is not None and self.end_at < self.start_at:
            raise InvalidOption("The end of a schedule must not be before its start.")

    def next_after(self, moment: datetime) -> datetime | None:
        """Return the first time after a moment, in UTC; None if there is none, in the next fifty years at least."""
        if self.start_at is not None:
            moment = max(moment, self.start_at - INSTANT)
        if self.cron is not None:
            found = _cron_after(expanded(self.cron), ZoneInfo(self.time_zone), moment)
        elif self.every is not None:
            found = _every_after(self.every, self.start_at or EPOCH, moment)
        else:
            found = self.once_at if self.once_at is not None and self.once_at > moment else None
        return None if found is None or (self.end_at is not None and found > self.end_at) else found

    def times_after(self, moment: datetime) -> Iterator[datetime]:
        """Yield the times after a moment."""
        found = self.next_after(moment)
        while found is not None:
            yield found
            found = self.next_after(found)

    def last_between(self, first: datetime, last: datetime) -> datetime | None:
        """Return the last time from ``first`` to ``last``, both included; None if there is none."""
        for span in (*LOOKS_BACK, last - first):
            begin = max(first, last - span)
            latest = None
            for found in takewhile(lambda time: time <= last, self.times_after(begin - INSTANT)):
                latest = found
            if latest is not None or begin == first:
                return latest
        return None

    def in_words(self) -> str:
        """Say the rule in English."""
        if self.cron is not None:
            return f"{CronSim(expanded(self.cron), EPOCH).explain()} ({self.time_zone})"
        if self.every is not None:
            return f"Every {_span_in_words(self.every)}"
        assert self.once_at is not None
        return "Once"


@dataclass(frozen=True, slots=True)
class Policy:
    """What becomes of occurrences that are late; see Timing."""

    catch_up: CatchUp = "last"
    window: timedelta = ONE_DAY
    overlap: Overlap = "allow"


@dataclass(frozen=True, slots=True)
class Plan:
    """What a look at a schedule comes to: the occurrences to enqueue now, and when it is due next.

    ``next_at`` is None if it never is again; ``problem`` says why, if that is not as it should be.
    """

    slots: tuple[datetime, ...] = ()
    next_at: datetime | None = None
    problem: str = ""


def plan_first(rule: Rule, *, now: datetime, last_at: datetime | None) -> Plan:
    """Plan a rule that is new, or has changed: its first time from now on. What it would have missed is not missed.

    A single time that has passed is due at once, unless it was the last time. Never raises.
    """
    try:
        rule.check()
        after = now if last_at is None else max(now, last_at)
        if rule.once_at is not None:
            return Plan(next_at=rule.next_after(EPOCH if last_at is None else last_at))
        next_at = rule.next_after(after)
        if next_at is None and (rule.end_at is None or rule.end_at > after):
            return Plan(problem="No time ever fits this rule.")
        return Plan(next_at=next_at)
    except InvalidOption as error:
        return Plan(problem=str(error))
    except (OverflowError, ValueError, OSError) as error:
        return Plan(problem=f"The next time cannot be worked out: {error}")


def plan_due(rule: Rule, policy: Policy, *, now: datetime, due_at: datetime, limit: int) -> Plan:
    """Plan a rule whose time has come: which occurrences from ``due_at`` to now are enqueued, ``limit`` at most.

    Where there are more the next time is one that has passed. The next time is always after ``due_at``. Never raises.
    """
    try:
        rule.check()
        slots = tuple(_slots(rule, policy, now, due_at, limit))
        after = slots[-1] if len(slots) == limit else max(now, due_at)
        return Plan(slots, rule.next_after(after))
    except InvalidOption as error:
        return Plan(problem=str(error))
    except (OverflowError, ValueError, OSError) as error:
        return Plan(problem=f"The next time cannot be worked out: {error}")


def check_cron(text: str) -> None:
    """Raise InvalidOption if the text is no cron expression."""
    if len(text) > LONGEST_CRON:
        raise InvalidOption(f"A cron expression has {LONGEST_CRON} characters at most, not {len(text)}.")
    try:
        CronSim(expanded(text), EPOCH)
    except CronSimError as error:
        raise InvalidOption(
            f"{text!r} is no cron expression ({error}): it has five fields (minute, hour, day, month, weekday), or six "
            "with the second first, or is an alias such as @daily."
        ) from None
    except Exception as error:  # an oddity that the library does not foresee
        raise InvalidOption(f"{text!r} is no cron expression ({type(error).__name__}).") from None


def check_every(interval: timedelta) -> None:
    """Raise InvalidOption if it is no interval for a schedule."""
    if not timedelta(seconds=1) <= interval <= LONGEST_EVERY:
        raise InvalidOption(f"The interval of a schedule must be from 1 second to 100 years, not {interval}.")


def check_zone(name: str) -> None:
    """Raise InvalidOption if there is no such time zone here."""
    try:
        ZoneInfo(name)
    except (KeyError, ValueError, OSError):  # not found; no name of a zone; a directory of the zones
        raise InvalidOption(
            f"There is no time zone {name!r} here. Names are such as Europe/Paris; where a system has none at all, "
            "pip install tzdata."
        ) from None


def check_policy(catch_up: str, window: timedelta, overlap: str) -> None:
    """Raise InvalidOption if there are no such policies."""
    for name, value, choices in (
        ("catch_up", catch_up, get_args(CatchUp)),
        ("overlap", overlap, get_args(Overlap)),
    ):
        if value not in choices:
            raise InvalidOption(f"{name} must be one of {', '.join(map(repr, choices))}, not {value!r}.")
    if not isinstance(window, timedelta) or not timedelta(0) <= window <= LONGEST_EVERY:
        raise InvalidOption(f"catch_up_window must be a timedelta from 0 to 100 years, not {window!r}.")


def expanded(cron: str) -> str:
    """Return the fields that an alias stands for."""
    return ALIASES.get(cron.strip().lower(), cron)


def _slots(rule: Rule, policy: Policy, now: datetime, due_at: datetime, limit: int) -> Iterator[datetime]:
    first = max(due_at, now - (PUNCTUAL if policy.catch_up == "none" else max(policy.window, PUNCTUAL)))
    if policy.catch_up == "all" and policy.overlap == "allow":
        yield from islice(takewhile(lambda time: time <= now, rule.times_after(first - INSTANT)), limit)
    elif (latest := rule.last_between(first, now)) is not None:
        yield latest


def _cron_after(cron: str, zone: ZoneInfo, moment: datetime) -> datetime | None:
    """The next time of a cron. The library counts on the wall; what that is in time is decided here.

    A cron with fixed hours and minutes means the clock on the wall: each of its times once a day, at the earlier of
    two that are called the same, and for one that does not exist at the first minute after the gap. Any other means
    time that passes: it goes through both of the hours that are called the same, and through no gap.
    """
    wall = moment.astimezone(zone).replace(tzinfo=None)
    minute, hour = cron.split()[-5:-3]
    if not minute.startswith("*") and not hour.startswith("*"):
        return _first_after(moment, ([_first_existing(time, zone)] for time in CronSim(cron, wall)))
    found = _first_after(moment, (_instants(time, zone) for time in CronSim(cron, wall)))
    put_back_at = _next_put_back(zone, moment)
    if put_back_at is None:
        return found
    wall = put_back_at.astimezone(zone).replace(tzinfo=None) - timedelta(seconds=1)
    repeated = _first_after(put_back_at - INSTANT, (_instants(time, zone) for time in CronSim(cron, wall)))
    return min((time for time in (found, repeated) if time is not None), default=None)


def _first_after(moment: datetime, times: Iterable[Iterable[datetime]]) -> datetime | None:
    return next((time for instants in times for time in instants if time > moment), None)


def _instants(wall: datetime, zone: ZoneInfo) -> Iterator[datetime]:
    """Each instant, in UTC, at which the clock on the wall shows this: none in a gap, two in a repeated hour."""
    previous = None
    for fold in (0, 1):
        instant = wall.replace(tzinfo=zone, fold=fold).astimezone(UTC)
        if instant != previous and instant.astimezone(zone).replace(tzinfo=None) == wall:
            yield instant
            previous = instant


def _first_existing(wall: datetime, zone: ZoneInfo) -> datetime:
    """The first instant of a time on the wall, or of the first minute after it that exists."""
    while (found := next(_instants(wall, zone), None)) is None:
        wall = wall.replace(second=0) + timedelta(minutes=1)
    return found


def _next_put_back(zone: ZoneInfo, moment: datetime) -> datetime | None:
    """When the clocks are put back next, if that is so soon that times up to this moment come again."""

    def offset(seconds: int) -> timedelta:
        return (moment + timedelta(seconds=seconds)).astimezone(zone).utcoffset() or timedelta(0)

    before, after = 0, LONGEST_PUT_BACK_SECONDS
    if offset(after) >= offset(before):
        return None
    while after - before > 1:
        middle = (before + after) // 2
        before, after = (middle, after) if offset(middle) == offset(0) else (before, middle)
    return (moment + timedelta(seconds=after)).replace(microsecond=0)


def _every_after(interval: timedelta, anchor: datetime, moment: datetime) -> datetime:
    if moment < anchor:
        return anchor.astimezone(UTC)
    return (anchor + ((moment - anchor) // interval + 1) * interval).astimezone(UTC)


def _span_in_words(span: timedelta) -> str:
    rest, parts = span.total_seconds(), list[str]()
    for seconds, unit in UNITS:
        count = rest / seconds if seconds == 1 else rest // seconds
        rest -= count * seconds
        if count:
            parts.append(f"{count:g} {unit}{'' if count == 1 else 's'}")
    return " ".join(parts)
