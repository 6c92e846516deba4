"""The ``DISPATCH`` setting: every key with its type, default and rule, read when used, in any process."""

import os
import reprlib
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from datetime import timedelta
from difflib import get_close_matches
from functools import cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed
from django.db import connections

from .exceptions import InvalidOption
from .patterns import PRIVATE_PREFIX, is_plain, serves
from .rates import Limit, check_limit

LOG_FORMATS = ("text", "json")
FINAL_STATUSES = ("SUCCESSFUL", "FAILED", "CANCELLED")
DEFAULT_RETENTION = {"SUCCESSFUL": 86_400.0, "CANCELLED": 7 * 86_400.0, "FAILED": 30 * 86_400.0}
MAX_SLOTS = 512
MAX_NODE_LENGTH = 200
MAX_QUEUE_LENGTH = 100
WAKEUP_CHANNEL = "django_dispatch"
WAKEUPS = ("pg_notify", "arq")
NOTIFIES = ("always", "idle", "off")
MAX_CHANNEL_BYTES = 63  # PostgreSQL cuts a longer name off
LONGEST_SECONDS = 10 * 365 * 86_400.0
# Nobody can be told of anything there: the poll is all there is.
SQLITE_DEFAULTS = {"WAKEUPS": [], "POLL_INTERVAL": 0.5}
# Their values may hold a password, which must not reach a log by way of an error message.
SECRET_KEYS = frozenset({"LISTEN_DSN"})

_repr = reprlib.Repr()
_repr.maxstring = _repr.maxother = 80


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the setting: the key, what the rule is, and the way out."""

    key: str
    message: str
    hint: str


class _Invalid(Exception):
    """A value breaks its key's rule; the text is the rule."""


def _seconds(value: Any, *, minimum: float = 0.0, maximum: float = LONGEST_SECONDS) -> float:
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
        limits = f"{_number(minimum)} to {_number(maximum)}"
        raise _Invalid(f"must be a number of seconds or a timedelta from {limits} seconds")
    return float(value)


def _optional_seconds(value: Any, *, minimum: float = 0.0) -> float | None:
    return None if value is None else _seconds(value, minimum=minimum)


def _whole(value: Any, *, minimum: int, maximum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise _Invalid(f"must be a whole number from {minimum} to {maximum}")
    return value


def _optional_whole(value: Any, *, minimum: int, maximum: int) -> int | None:
    return None if value is None else _whole(value, minimum=minimum, maximum=maximum)


def _text(value: Any, *, maximum: int = 10_000) -> str:
    # PostgreSQL's text holds no NUL.
    if not isinstance(value, str) or not value.strip() or "\0" in value or len(value) > maximum:
        raise _Invalid(f"must be a text of 1 to {maximum:,} characters that is not blank and has no NUL")
    return value


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)


def _queues(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not value:
        raise _Invalid("must be None, or a list of at least one name, pattern (mail*) or exclude (-mail.slow)")
    for queue in value:
        try:
            _text(queue, maximum=MAX_QUEUE_LENGTH)
        except _Invalid as error:
            raise _Invalid(f"has a queue name that breaks the rule: it {error}") from None
    if len(set(value)) != len(value):
        raise _Invalid("names a queue twice")
    _check_patterns(value)
    return tuple(value)


def _check_patterns(value: Sequence[str]) -> None:
    for pattern in value:
        if pattern.removeprefix("-").startswith(PRIVATE_PREFIX) or pattern == "-":
            raise _Invalid(f"has {_shown(pattern)}, which means no queue that can be chosen")
        if is_plain(pattern) and not serves(value, pattern):
            raise _Invalid(f"names {_shown(pattern)} and excludes it too")
    if any(f"-{pattern}" in value for pattern in value):
        raise _Invalid("excludes what it includes")


def _queue_weights(value: Any) -> Mapping[str, int]:
    if not isinstance(value, Mapping):
        raise _Invalid("must be a dict from queues to weights")
    for queue, weight in value.items():
        try:
            _text(queue, maximum=MAX_QUEUE_LENGTH)
            if queue.startswith("-"):
                raise _Invalid("is a name or a pattern such as 'mail*', not an exclude")
        except _Invalid as error:
            raise _Invalid(f"has a queue name that breaks the rule: it {error}") from None
        try:
            _whole(weight, minimum=1, maximum=1000)
        except _Invalid as error:
            raise _Invalid(f"has a weight for {_shown(queue)} that breaks the rule: it {error}") from None
    return dict(value)


def _channel(value: Any) -> str:
    name = _text(value)
    if name == WAKEUP_CHANNEL or len(name.encode(errors="replace")) > MAX_CHANNEL_BYTES:
        raise _Invalid(f"must be a name of 1 to {MAX_CHANNEL_BYTES} bytes other than {WAKEUP_CHANNEL!r}")
    return name


def _notify_channels(value: Any) -> Mapping[str, str]:
    if not isinstance(value, Mapping):
        raise _Invalid("must be a dict from channels to queues")
    for channel, queue in value.items():
        try:
            _channel(channel)
        except _Invalid as error:
            raise _Invalid(f"has a channel that breaks the rule: it {error}") from None
        try:
            _text(queue, maximum=MAX_QUEUE_LENGTH)
        except _Invalid as error:
            raise _Invalid(f"has a queue name that breaks the rule: it {error}") from None
    return dict(value)


def _queue_limits(value: Any) -> Mapping[str, Limit]:
    if not isinstance(value, Mapping):
        raise _Invalid("must be a dict from queues to limits")
    limits = {}
    for queue, limit in value.items():
        try:
            limits[_text(queue, maximum=MAX_QUEUE_LENGTH)] = check_limit(limit)
        except _Invalid as error:
            raise _Invalid(f"has a queue name that breaks the rule: it {error}") from None
        except InvalidOption as error:
            raise _Invalid(f"has a limit for {queue!r} that breaks the rule: {str(error).rstrip('.')};") from None
    return limits


def _wakeups(value: Any) -> tuple[str, ...]:
    is_list = isinstance(value, list | tuple)
    if not is_list or any(name not in WAKEUPS for name in value) or len(set(value)) != len(value):
        raise _Invalid(f"must be a list of {' and '.join(map(repr, WAKEUPS))}, or [] to find work by polling alone")
    return tuple(value)


def _word(value: Any, words: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in words:
        raise _Invalid(f"must be one of {', '.join(map(repr, words))}")
    return value


def _retention(value: Any) -> Mapping[str, float | None]:
    if not isinstance(value, Mapping) or not set(value) <= set(FINAL_STATUSES):
        raise _Invalid(f"must be a dict whose keys are among {', '.join(FINAL_STATUSES)}")
    ages: dict[str, float | None] = dict(DEFAULT_RETENTION)
    for status in FINAL_STATUSES:
        try:
            ages[status] = _optional_seconds(value.get(status, ages[status]))
        except _Invalid as error:
            raise _Invalid(f"has an age for {status} that breaks the rule: it {error}, or None for ever") from None
    return ages


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else f"{value:g}"


def _shown(value: Any) -> str:
    """Return a repr that is short, and exists: a repr may raise, as that of an int of 5000 digits does."""
    try:
        return _repr.repr(value)
    except Exception:
        return f"an object of type {type(value).__name__}"


def _key(parse: Callable[[Any], Any], default: Any) -> Any:
    """Declare a key: how its value is checked, and its default (a callable is asked when the setting is read)."""
    factory = default if callable(default) else lambda: default
    return field(default_factory=factory, metadata={"parse": parse})


@dataclass(frozen=True, slots=True)
class DispatchSettings:
    """``settings.DISPATCH``, checked. A field ``lease_ttl_seconds`` is the key ``LEASE_TTL``; times are in seconds."""

    # where the queue lives and how dispatchers are woken
    database: str = _key(_text, "default")
    wakeups: tuple[str, ...] = _key(_wakeups, ("pg_notify",))
    notify: str = _key(lambda v: _word(v, NOTIFIES), "always")
    listen_dsn: str | None = _key(_optional_text, None)
    redis: str = _key(_text, "default")
    poll_interval_seconds: float = _key(lambda v: _seconds(v, minimum=0.01, maximum=3600), 1.0)
    # control commands, and runs that come as messages
    control_channel: str = _key(_channel, "django_dispatch_control")
    notify_channels: Mapping[str, str] = _key(_notify_channels, dict)
    # how many runs of a queue at once, over all dispatchers, and how many in a time
    queue_limits: Mapping[str, Limit] = _key(_queue_limits, dict)
    # what scrapers and probes are answered
    metrics_host: str = _key(_text, "127.0.0.1")
    metrics_port: int = _key(lambda v: _whole(v, minimum=0, maximum=65_535), 8070)
    # what a dispatcher serves
    node: str = _key(lambda v: _text(v, maximum=MAX_NODE_LENGTH), socket.gethostname)
    queues: tuple[str, ...] | None = _key(_queues, None)
    queue_weights: Mapping[str, int] = _key(_queue_weights, dict)
    priority_aging_seconds: float | None = _key(lambda v: _optional_seconds(v, minimum=1), None)
    processes: int = _key(
        lambda v: _whole(v, minimum=1, maximum=MAX_SLOTS), lambda: min(os.cpu_count() or 1, MAX_SLOTS)
    )
    async_concurrency: int = _key(lambda v: _whole(v, minimum=0, maximum=10_000), 8)
    claim_limit: int = _key(lambda v: _whole(v, minimum=1, maximum=10_000), 200)
    # the lease
    lease_ttl_seconds: float = _key(lambda v: _seconds(v, minimum=1, maximum=3600), 15.0)
    renew_interval_seconds: float | None = _key(lambda v: _optional_seconds(v, minimum=0.1), None)
    lease_margin_seconds: float | None = _key(lambda v: _optional_seconds(v, minimum=0.1), None)
    max_interruptions: int = _key(lambda v: _whole(v, minimum=1, maximum=1000), 3)
    # stopping
    cancel_grace_seconds: float = _key(lambda v: _seconds(v, maximum=3600), 5.0)
    shutdown_timeout_seconds: float = _key(lambda v: _seconds(v, maximum=86_400), 30.0)
    default_timeout_seconds: float | None = _key(lambda v: _optional_seconds(v, minimum=0.001), None)
    # executors
    executor_max_runs: int | None = _key(lambda v: _optional_whole(v, minimum=1, maximum=10**9), 100_000)
    executor_max_age_seconds: float | None = _key(lambda v: _optional_seconds(v, minimum=1), 3600.0)
    executor_max_memory_mb: int | None = _key(lambda v: _optional_whole(v, minimum=1, maximum=10**7), 512)
    executor_ready_timeout_seconds: float = _key(lambda v: _seconds(v, minimum=1, maximum=3600), 60.0)
    # the log
    log_format: str = _key(lambda v: _word(v, LOG_FORMATS), "text")
    # history
    retention: Mapping[str, float | None] = _key(_retention, lambda: dict(DEFAULT_RETENTION))

    @property
    def renew_seconds(self) -> float:
        """How often the lease is renewed: ``RENEW_INTERVAL``, else a third of ``LEASE_TTL``."""
        return self.renew_interval_seconds or self.lease_ttl_seconds / 3

    @property
    def margin_seconds(self) -> float:
        """How long before the lease expires every body is dead: ``LEASE_MARGIN``, else a fifth of ``LEASE_TTL``."""
        return self.lease_margin_seconds or self.lease_ttl_seconds / 5


def _name_of(attribute: str) -> str:
    return attribute.removesuffix("_seconds").upper()


def _parsed(raw: Mapping[str, Any]) -> Iterator[tuple[str, Any] | Problem]:
    known = {_name_of(f.name): f for f in fields(DispatchSettings)}
    for key, value in raw.items():
        if key not in known:
            yield _unknown(key, sorted(known))
            continue
        try:
            yield known[key].name, known[key].metadata["parse"](value)
        except _Invalid as error:
            given = "the value it has" if key in SECRET_KEYS else _shown(value)
            yield Problem(key, f"DISPATCH[{key!r}] {error}, not {given}.", "Correct the value or leave the key out.")


def _unknown(key: Any, known: list[str]) -> Problem:
    close = get_close_matches(key.upper(), known, n=1) if isinstance(key, str) else []
    hint = f"Did you mean {close[0]!r}?" if close else f"The keys are {', '.join(known)}."
    return Problem(key if isinstance(key, str) else _shown(key), f"DISPATCH has no key {_shown(key)}.", hint)


def _contradictions(candidate: DispatchSettings) -> Iterator[Problem]:
    ttl = candidate.lease_ttl_seconds
    # Half a millisecond of slack: TTL / 3 itself is allowed, however it was rounded.
    if candidate.renew_seconds > ttl / 3 + 0.0005:
        yield Problem(
            "RENEW_INTERVAL",
            f"DISPATCH['RENEW_INTERVAL'] is {candidate.renew_seconds:g} s, more than a third of LEASE_TTL ({ttl:g} s).",
            "One slow renewal would lose the lease. Lower RENEW_INTERVAL or raise LEASE_TTL.",
        )
    if candidate.margin_seconds > ttl / 2:
        yield Problem(
            "LEASE_MARGIN",
            f"DISPATCH['LEASE_MARGIN'] is {candidate.margin_seconds:g} s, more than half of LEASE_TTL ({ttl:g} s).",
            "Bodies would be stopped while the lease is healthy. Lower LEASE_MARGIN or raise LEASE_TTL.",
        )
    if candidate.poll_interval_seconds >= ttl:
        yield Problem(
            "POLL_INTERVAL",
            f"DISPATCH['POLL_INTERVAL'] is {candidate.poll_interval_seconds:g} s, not less than LEASE_TTL ({ttl:g} s).",
            "Lower POLL_INTERVAL: it bounds how late a run starts when a wakeup is lost.",
        )
    if "pg_notify" in candidate.wakeups and _is_on_sqlite(candidate.database):
        yield Problem(
            "WAKEUPS",
            f"DISPATCH['WAKEUPS'] has 'pg_notify', but {candidate.database!r} is a database of SQLite.",
            "Leave WAKEUPS out: dispatchers poll there.",
        )


def _is_on_sqlite(alias: Any) -> bool:
    try:
        return bool(connections[alias].vendor == "sqlite")
    except Exception:  # there is no such alias, or its driver cannot be imported: a check says so
        return False


def examine(raw: Any, **overrides: Any) -> tuple[DispatchSettings | None, list[Problem]]:
    """Check a ``DISPATCH`` value; ``overrides`` are keys in lower case that win over it (command line options).

    Returns the settings (None if there is any problem) and the problems. Never raises.
    """
    if not isinstance(raw, Mapping):
        message = f"DISPATCH must be a dict, not a {type(raw).__name__}."
        return None, [Problem("DISPATCH", message, "Write DISPATCH = {...}, or leave it out: every key has a default.")]
    merged = dict(raw) | {key.upper(): value for key, value in overrides.items() if value is not None}
    if _is_on_sqlite(merged.get("DATABASE", "default")):
        merged = SQLITE_DEFAULTS | merged
    values: dict[str, Any] = {}
    problems: list[Problem] = []
    for item in _parsed(merged):
        if isinstance(item, Problem):
            problems.append(item)
        else:
            values[item[0]] = item[1]
    if problems:
        return None, problems
    candidate = DispatchSettings(**values)
    problems = list(_contradictions(candidate))
    return (None if problems else candidate), problems


def load(**overrides: Any) -> DispatchSettings:
    """Return the checked settings, with ``overrides`` (lower-case keys; None means not given) on top.

    Raises ImproperlyConfigured that names every broken key.
    """
    found, problems = examine(getattr(settings, "DISPATCH", {}), **overrides)
    if found is None:
        raise ImproperlyConfigured(" ".join(problem.message for problem in problems))
    return found


@cache
def current() -> DispatchSettings:
    """Return the settings in force; read again after ``override_settings``."""
    return load()


def _forget(*, setting: str, **_: Any) -> None:
    if setting == "DISPATCH":
        current.cache_clear()


setting_changed.connect(_forget)
