"""The ``DISPATCH`` setting: every key with its type, default and rule, read when used, in any process."""

import os
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from datetime import timedelta
from functools import cache
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.core.signals import setting_changed

FINAL_STATUSES = ("SUCCESSFUL", "FAILED", "CANCELLED")
DEFAULT_RETENTION = {"SUCCESSFUL": 86_400.0, "CANCELLED": 7 * 86_400.0, "FAILED": 30 * 86_400.0}
MAX_SLOTS = 512


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing that is wrong with the setting: the key, what the rule is, and the way out."""

    key: str
    message: str
    hint: str


class _Invalid(Exception):
    """A value breaks its key's rule; the text is the rule."""


def _seconds(value: Any, *, minimum: float = 0.0, maximum: float = 10 * 365 * 86_400.0) -> float:
    rule = f"must be a number of seconds or a timedelta from {minimum:g} to {maximum:g} seconds"
    if isinstance(value, timedelta):
        value = value.total_seconds()
    if isinstance(value, bool) or not isinstance(value, int | float) or not minimum <= value <= maximum:
        raise _Invalid(rule)
    return float(value)


def _optional_seconds(value: Any, *, minimum: float = 0.0) -> float | None:
    return None if value is None else _seconds(value, minimum=minimum)


def _whole(value: Any, *, minimum: int, maximum: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not minimum <= value <= maximum:
        raise _Invalid(f"must be a whole number from {minimum} to {maximum}")
    return value


def _optional_whole(value: Any, *, minimum: int, maximum: int) -> int | None:
    return None if value is None else _whole(value, minimum=minimum, maximum=maximum)


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise _Invalid("must be a text that is not empty")
    return value


def _optional_text(value: Any) -> str | None:
    return None if value is None else _text(value)


def _queues(value: Any) -> tuple[str, ...] | None:
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not value or not all(isinstance(q, str) and q for q in value):
        raise _Invalid("must be None for all queues, or a list of queue names that is not empty")
    if len(set(value)) != len(value):
        raise _Invalid("names a queue twice")
    return tuple(value)


def _wakeups(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list | tuple) or any(name != "pg_notify" for name in value) or len(value) > 1:
        raise _Invalid('must be ["pg_notify"], or [] to find work by polling alone')
    return tuple(value)


def _retention(value: Any) -> Mapping[str, float | None]:
    if not isinstance(value, Mapping) or not set(value) <= set(FINAL_STATUSES):
        raise _Invalid(f"must be a dict whose keys are among {', '.join(FINAL_STATUSES)}")
    return DEFAULT_RETENTION | {status: _optional_seconds(age) for status, age in value.items()}


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
    listen_dsn: str | None = _key(_optional_text, None)
    poll_interval_seconds: float = _key(lambda v: _seconds(v, minimum=0.01, maximum=3600), 1.0)
    # what a dispatcher serves
    node: str = _key(_text, socket.gethostname)
    queues: tuple[str, ...] | None = _key(_queues, None)
    processes: int = _key(
        lambda v: _whole(v, minimum=1, maximum=MAX_SLOTS), lambda: min(os.cpu_count() or 1, MAX_SLOTS)
    )
    async_concurrency: int = _key(lambda v: _whole(v, minimum=0, maximum=10_000), 8)
    claim_limit: int = _key(lambda v: _whole(v, minimum=1, maximum=10_000), 100)
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
            yield Problem(key, f"DISPATCH has no key {key!r}.", f"The keys are {', '.join(sorted(known))}.")
            continue
        try:
            yield known[key].name, known[key].metadata["parse"](value)
        except _Invalid as error:
            yield Problem(key, f"DISPATCH[{key!r}] {error}, not {value!r}.", "Correct the value or leave the key out.")


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


def examine(raw: Any, **overrides: Any) -> tuple[DispatchSettings | None, list[Problem]]:
    """Check a ``DISPATCH`` value; ``overrides`` are keys in lower case that win over it (command line options).

    Returns the settings (None if there is any problem) and the problems. Never raises.
    """
    if not isinstance(raw, Mapping):
        return None, [
            Problem("DISPATCH", f"DISPATCH must be a dict, not {raw!r}.", "See the settings page of the docs.")
        ]
    merged = dict(raw) | {key.upper(): value for key, value in overrides.items() if value is not None}
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
