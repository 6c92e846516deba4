"""Record runs in the caller's transaction, and wake dispatchers once it has committed; in the caller's process."""

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from typing import TYPE_CHECKING, Any, SupportsIndex, TypedDict, TypeGuard, overload
from uuid import UUID, uuid4

from django.conf import settings
from django.db import connections, transaction
from django.utils import timezone

from . import conf
from .arguments import is_storable
from .exceptions import InvalidOption
from .limits import check_key
from .metrics.enqueued import enqueued
from .patterns import PRIVATE_PREFIX, private_queue, serves
from .retry import as_seconds
from .store.values import Alike, NewRun, Recorded
from .store.vendors import callers
from .wakeups.base import CHANNEL, Wakeup, blocked_wakeups
from .wakeups.sending import awaited, may_ride, wake_after_commit, wake_now

if TYPE_CHECKING:
    from .models import Run

MAX_QUEUE_LENGTH = 100
MAX_ATTEMPTS = 32_767
Retention = Mapping[str, float | None]
NOBODY = UUID(int=0)
MAX_IDEMPOTENCY_KEY_LENGTH = 255
# What every run is at first, and what is not null in it.
AT_FIRST = {"epoch": 0, "attempt": 0, "failures": 0, "interruptions": 0, "places": 0}


@dataclass(frozen=True, slots=True)
class Call:
    """The arguments of one call in ``delay_many``."""

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)


class EnqueueOptions(TypedDict, total=False):
    """The options of ``apply_async`` and ``delay_many``; what is left out, or None, is as the task says.

    ``countdown`` and ``timeout`` are timedeltas or seconds; the countdown runs by the database's clock. ``eta`` and
    ``run_after`` are one thing. At most one of the three times may be given; one that has passed means now. A naive
    time is taken to be in the current time zone. ``expires`` is a timedelta or seconds from the enqueue, or a time.
    ``key`` takes the place of the key that the task would make of the arguments, and so does ``fair_key``. While a row
    with this ``idempotency_key`` exists, its run is returned and none recorded.
    """

    queue: str | None
    priority: int | None
    countdown: timedelta | float | None
    eta: datetime | None
    run_after: datetime | None
    timeout: timedelta | float | None
    max_attempts: int | None
    expires: datetime | timedelta | float | None
    key: str | None
    fair_key: str | None
    idempotency_key: str | None


@dataclass(frozen=True, slots=True)
class Options:
    """What one enqueue decides for itself, checked; None means: as the task says."""

    queue: str | None = None
    priority: int | None = None
    run_after: datetime | None = None
    delay_seconds: float | None = None
    timeout_seconds: float | None = None
    max_attempts: int | None = None
    expires_at: datetime | None = None
    expires_seconds: float | None = None
    key: str | None = None
    fair_key: str | None = None
    idempotency_key: str | None = None


def check_options(
    *,
    queue: str | None = None,
    priority: int | None = None,
    countdown: timedelta | float | None = None,
    eta: datetime | None = None,
    run_after: datetime | None = None,
    timeout: timedelta | float | None = None,
    max_attempts: int | None = None,
    expires: datetime | timedelta | float | None = None,
    key: str | None = None,
    fair_key: str | None = None,
    idempotency_key: str | None = None,
) -> Options:
    """Check the options of ``apply_async``. Raises InvalidOption."""
    if sum(moment is not None for moment in (countdown, eta, run_after)) > 1:
        raise InvalidOption("countdown, eta and run_after say the same thing: give one of them at most.")
    moment = eta if eta is not None else run_after
    is_moment = isinstance(expires, datetime)
    return Options(
        queue=None if queue is None else check_queue(queue),
        priority=None if priority is None else check_priority(priority),
        run_after=None if moment is None else check_moment(moment),
        delay_seconds=None if countdown is None else check_duration("countdown", countdown).total_seconds(),
        timeout_seconds=None if timeout is None else check_timeout(timeout).total_seconds(),
        max_attempts=None if max_attempts is None else check_max_attempts(max_attempts),
        expires_at=check_moment(expires) if is_moment else None,
        expires_seconds=None if is_moment or expires is None else check_expires(expires).total_seconds(),
        key=None if key is None else check_key(key),
        fair_key=None if fair_key is None else check_key(fair_key, name="fair_key"),
        idempotency_key=None
        if idempotency_key is None
        else check_key(idempotency_key, name="idempotency_key", longest=MAX_IDEMPOTENCY_KEY_LENGTH),
    )


def check_queue(value: object) -> str:
    """Return the name of a queue. Raises InvalidOption if it cannot be one."""
    if not isinstance(value, str) or not 0 < len(value) <= MAX_QUEUE_LENGTH or not is_storable(value):
        raise InvalidOption(f"queue must be a name of 1 to {MAX_QUEUE_LENGTH} characters, not {value!r}.")
    if value.startswith(PRIVATE_PREFIX):
        raise InvalidOption(f"queue must not begin with {PRIVATE_PREFIX!r}, not {value!r}: such queues are private.")
    return value


def check_priority(value: object) -> int:
    """Return a priority. Raises InvalidOption if it is out of range."""
    if not _is_whole(value) or not -100 <= value <= 100:
        raise InvalidOption(f"priority must be a whole number from -100 to 100, not {value!r}.")
    return value


def check_timeout(value: object) -> timedelta:
    """Return a timeout, given as timedelta or seconds. Raises InvalidOption if it is not positive."""
    timeout = check_duration("timeout", value)
    if not timeout:
        raise InvalidOption("timeout must be more than 0; leave it out for none.")
    return timeout


def check_expires(value: object) -> timedelta:
    """Return after how long a run expires. Raises InvalidOption if that is not positive."""
    expires = check_duration("expires", value)
    if not expires:
        raise InvalidOption("expires must be more than 0: with 0 no run would ever be started.")
    return expires


def check_max_attempts(value: object) -> int:
    """Return how often a run may be attempted. Raises InvalidOption if it is less than once."""
    if not _is_whole(value) or not 1 <= value <= MAX_ATTEMPTS:
        raise InvalidOption(f"max_attempts must be a whole number from 1 to {MAX_ATTEMPTS}, not {value!r}.")
    return value


def check_retention(value: object) -> Retention | None:
    """Return for how many seconds runs of each status are kept, None meaning for ever; None: as RETENTION says.

    A status that is left out stays so: see retention_document(). Raises InvalidOption.
    """
    if value is None:
        return None
    ages = value if isinstance(value, Mapping) else dict.fromkeys(conf.FINAL_STATUSES, value)
    if not ages or not set(ages) <= set(conf.FINAL_STATUSES):
        statuses = ", ".join(conf.FINAL_STATUSES)
        raise InvalidOption(f"retention must be a duration, or a dict from {statuses} to durations, not {value!r}.")
    return {
        status: None if age is None else check_duration(f"retention of {status}", age).total_seconds()
        for status, age in ages.items()
    }


def retention_document(retention: Retention) -> str:
    """Return the JSON that is written into a run; for statuses that are left out, what RETENTION says now."""
    return json.dumps({**conf.current().retention, **retention})


def is_limited(queue: str) -> bool | None:
    """Return whether the queue has a limit; None: it has none, which need not be said."""
    return queue in conf.current().queue_limits or None


def check_unique_for(value: object) -> timedelta:
    """Return for how long duplicates are discarded. Raises InvalidOption if it is not positive."""
    unique_for = check_duration("unique_for", value)
    if not unique_for:
        raise InvalidOption("unique_for must be more than 0; leave it out for: until the run has ended.")
    return unique_for


def enqueue(new: NewRun) -> "Run":
    """Record one run and return it; or the one in whose place it would be a duplicate. Never executes it.

    One statement on ``DISPATCH["DATABASE"]``, a few if there may be a duplicate. In the caller's transaction, if there
    is one, and the wakeup follows its commit; else the wakeup rides along.
    """
    using = conf.current().database
    if new.may_be_duplicate:
        return enqueue_many([new])[0]
    wakeup = _wakeup(new, is_due=True)
    if not new.has_moments and may_ride(using, wakeup):
        recorded, is_sent = callers(using).enqueue_and_wake(using, new, CHANNEL, wakeup.encode(), awaited(wakeup))
        wake_now(using, wakeup, is_notified=is_sent)
    else:
        recorded = callers(using).enqueue(using, new)
        wake_after_commit(using, _wakeup(new, is_due=recorded.status != "SCHEDULED"))
    count_after_commit(using, {(new.task, new.queue): 1})
    return _run(using, new, recorded)


class Runs(Sequence["Run"]):
    """The runs of one bulk, in the order given. Each is made when it is first looked at: most are never."""

    def __init__(self, using: str, news: Sequence[NewRun], recorded: Sequence[Recorded]) -> None:
        self._using = using
        self._news = news
        self._recorded = recorded
        self._made: dict[int, Run] = {}

    def __len__(self) -> int:
        return len(self._news)

    @overload
    def __getitem__(self, index: SupportsIndex) -> "Run": ...
    @overload
    def __getitem__(self, index: slice) -> "list[Run]": ...
    def __getitem__(self, index: SupportsIndex | slice) -> "Run | list[Run]":
        if isinstance(index, slice):
            return [self[place] for place in range(*index.indices(len(self)))]
        place = range(len(self))[index]
        if place not in self._made:
            self._made[place] = _run(self._using, self._news[place], self._recorded[place])
        return self._made[place]

    def __repr__(self) -> str:
        return f"<Runs: {len(self)}>"


def enqueue_many(news: Sequence[NewRun]) -> Runs:
    """Record many runs, all or none, and return them in the order given; one wakeup a queue or key.

    In the place of a duplicate is the run that was there before.
    """
    using = conf.current().database
    store = callers(using)
    is_unique = not isinstance(news, Alike) and any(new.may_be_duplicate for new in news)
    runs = store.enqueue_unique(using, news) if is_unique else store.enqueue_many(using, news)
    kinds = _kinds(news, runs)
    wakeups = dict.fromkeys(wakeup for wakeup, _, _ in kinds)
    blocked = [wakeup.value for wakeup in wakeups if wakeup.kind == "blocked"]
    for wakeup in (*(wakeup for wakeup in wakeups if wakeup.kind != "blocked"), *blocked_wakeups(blocked)):
        wake_after_commit(using, wakeup)
    numbers = Counter[tuple[str, str]]()
    for (_, task, queue), number in kinds.items():
        numbers[task, queue] += number
    count_after_commit(using, numbers)
    return Runs(using, news, runs)


def _kinds(news: Sequence[NewRun], runs: Sequence[Recorded]) -> Counter[tuple[Wakeup, str, str]]:
    """How many new runs there are of each wakeup, task and queue, in the order in which the first of each was given."""

    def kind(new: NewRun, recorded: Recorded) -> tuple[Wakeup, str, str]:
        return _wakeup(new, is_due=recorded.status != "SCHEDULED"), new.task, new.queue

    if isinstance(news, Alike):
        return Counter({kind(news.first, runs[0]): len(runs)})
    return Counter(kind(new, run) for new, run in zip(news, runs, strict=True) if run.duplicate_of is None)


def broadcast(news: Iterable[NewRun]) -> "list[Run]":
    """Record a run for each live dispatcher that serves its queue; return the first of each, in the order given.

    All or none. A run that finds no dispatcher is recorded all the same, for one that there never was: it is cancelled
    as one whose dispatcher is gone.
    """
    using = conf.current().database
    dispatchers = callers(using).active_dispatchers(using)
    copies: list[NewRun] = []
    firsts: list[int] = []
    for new in news:
        firsts.append(len(copies))
        targets = [lease_id for lease_id, patterns in dispatchers if serves(patterns, new.queue)] or [NOBODY]
        meta = json.dumps({**json.loads(new.meta), "broadcast": str(uuid4())})
        copies += [new._replace(queue=private_queue(lease_id), is_limited=None, meta=meta) for lease_id in targets]
    runs = enqueue_many(copies)
    return [runs[place] for place in firsts]


def count_after_commit(using: str, numbers: Mapping[tuple[str, str], int]) -> None:
    """Count runs by task and queue, when the caller's transaction has committed; at once if there is none."""

    def count() -> None:
        for (task, queue), number in numbers.items():
            enqueued.count(task, queue, number)

    if connections[using].in_atomic_block:
        transaction.on_commit(count, using=using, robust=True)
    else:
        count()


def _wakeup(new: NewRun, *, is_due: bool) -> Wakeup:
    if not is_due:
        return Wakeup("scheduled", new.queue)
    return Wakeup("ready", new.queue) if new.blocked_by is None else Wakeup("blocked", new.blocked_by)


def _run(using: str, new: NewRun, recorded: Recorded) -> "Run":
    """The row that was written, as its model, without asking for it again: nothing deferred, no expression left."""
    from .models import Run

    if recorded.duplicate_of is not None:
        return recorded.duplicate_of
    values = AT_FIRST | {name: getattr(new, name) for name in _AS_GIVEN}
    values |= {
        "id": recorded.id,
        "enqueued_at": recorded.enqueued_at,
        "status": recorded.status,
        "run_after": recorded.run_after,
        "turn": recorded.turn,
        "args": _value(new.args),
        "kwargs": _value(new.kwargs),
        "timeout": None if new.timeout_seconds is None else timedelta(seconds=new.timeout_seconds),
        "expires_at": _expires_at(new, recorded),
        "unique_until": None
        if new.unique_seconds is None
        else recorded.enqueued_at + timedelta(seconds=new.unique_seconds),
        "on_duplicate": new.on_duplicate or "",
        "blocked_by": new.blocked_by if recorded.status == "BLOCKED" else None,
        "source": "app" if new.schedule_id is None else "schedule",
        "meta": _value(new.meta),
        "retention": None if new.retention is None else json.loads(new.retention),
        "errors": [],
    }
    names = _columns()
    return Run.from_db(using, names, [values.get(name) for name in names])


# What is in the row as it is in the call.
_AS_GIVEN = (
    *("task", "queue", "priority", "max_attempts", "on_lost", "uuid", "unique_key", "schedule_id", "fair_key"),
    *("concurrency_key", "concurrency_limit", "rate_amount", "rate_seconds"),
)


def _expires_at(new: NewRun, recorded: Recorded) -> datetime | None:
    if new.expires_seconds is None:
        return new.expires_at
    return recorded.enqueued_at + timedelta(seconds=new.expires_seconds)


@cache
def _columns() -> list[str]:
    from .models import Run

    return [field.attname for field in Run._meta.concrete_fields]


def _value(text: str) -> Any:
    """What most JSON texts here are needs no reader."""
    return {} if text == "{}" else [] if text == "[]" else json.loads(text)


def check_moment(value: object, *, name: str = "eta and run_after") -> datetime:
    """An aware time if USE_TZ is on; a naive one is then taken to be in the current time zone, as forms do."""
    if not isinstance(value, datetime):
        raise InvalidOption(f"{name} must be a datetime, not {value!r}.")
    return timezone.make_aware(value) if settings.USE_TZ and timezone.is_naive(value) else value


def check_duration(name: str, value: object) -> timedelta:
    seconds = as_seconds(value)
    if seconds is None:
        raise InvalidOption(f"{name} must be a timedelta or a number of seconds from 0 to 100 years, not {value!r}.")
    return value if isinstance(value, timedelta) else timedelta(seconds=seconds)


def _is_whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)
