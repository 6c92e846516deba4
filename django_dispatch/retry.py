"""Rules of when a run is tried again. Pure: delays are seconds from now, which is the database's business."""

import random
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any, TypeAlias

from .exceptions import InvalidTask

LONGEST_DELAY_SECONDS = 3600.0
LONGEST_SECONDS = 36_525 * 86_400.0
"""A hundred years: no duration that anybody writes down or computes is longer."""
UNKNOWN_TASK_SECONDS = 30.0

Duration: TypeAlias = timedelta | float


@dataclass(frozen=True, slots=True)
class Fixed:
    """The same delay each time: a timedelta or seconds."""

    delay: Duration

    def __post_init__(self) -> None:
        _check(self, "delay")

    def nth_seconds(self, failures: int, luck: float) -> float:
        """Return the delay after the ``failures``-th failure, from 1; ``luck``, from 0 to 1, is what jitter goes by."""
        return _seconds(self.delay)


@dataclass(frozen=True, slots=True)
class Linear:
    """The n-th delay is n steps, at most ``cap``."""

    step: Duration
    cap: Duration = LONGEST_DELAY_SECONDS

    def __post_init__(self) -> None:
        _check(self, "step", "cap")

    def nth_seconds(self, failures: int, luck: float) -> float:
        """See Fixed.nth_seconds()."""
        return min(_seconds(self.step) * failures, _seconds(self.cap))


@dataclass(frozen=True, slots=True)
class Exponential:
    """``base``, then twice as long each time, at most ``cap``.

    ``jitter``, from 0 to 1, is the share of each delay that chance may take away, so that runs which failed together
    are not tried again together.
    """

    base: Duration = 1.0
    cap: Duration = LONGEST_DELAY_SECONDS
    jitter: float = 0.0

    def __post_init__(self) -> None:
        _check(self, "base", "cap")
        if not isinstance(self.jitter, int | float) or isinstance(self.jitter, bool) or not 0 <= self.jitter <= 1:
            raise InvalidTask(f"Exponential: jitter must be a number from 0 to 1, not {self.jitter!r}.")

    def nth_seconds(self, failures: int, luck: float) -> float:
        """See Fixed.nth_seconds()."""
        # No float is larger than 2.0 ** 1023; the cap has long been reached by then, unless the base is 0.
        longest = min(_seconds(self.base) * 2.0 ** min(failures - 1, 100), _seconds(self.cap))
        return longest * (1 - self.jitter * luck)


Backoff: TypeAlias = Fixed | Linear | Exponential

_KINDS: dict[str, type[Backoff]] = {"fixed": Fixed, "linear": Linear, "exponential": Exponential}


def after_failure(backoff: Backoff, failures: int, token: tuple[int, int]) -> float:
    """Return the delay after the ``failures``-th failure, from 1; the token is what decides on its jitter."""
    return backoff.nth_seconds(failures, random.Random(str(token)).random())


def after_loss(interruptions: int) -> float:
    """Return the delay after the ``interruptions``-th loss of an executor, from 1: none, then 2, 4, 8 … seconds."""
    return 0.0 if interruptions <= 1 else min(2.0 ** min(interruptions - 1, 30), LONGEST_DELAY_SECONDS)


def after_unknown_task(interruptions: int) -> float:
    """Return how long to hold a run whose task is not known here: a newer dispatcher may be on its way (30, 90 … s)."""
    return min(UNKNOWN_TASK_SECONDS * 3.0 ** min(interruptions - 1, 10), LONGEST_DELAY_SECONDS)


def as_seconds(value: object) -> float | None:
    """Return a duration, given as timedelta or seconds, in seconds; None if it is none, or not from 0 to 100 years."""
    seconds = _number(value)
    return float(seconds) if seconds is not None and 0 <= seconds <= LONGEST_SECONDS else None


def clamped(value: object) -> float | None:
    """Return a computed delay in seconds, within what can be stored; None if it is none at all, or not a number."""
    seconds = _number(value)
    if seconds is None or not (seconds >= 0 or seconds < 0):  # NaN is neither
        return None
    return float(min(max(seconds, 0), LONGEST_SECONDS))


def as_document(backoff: Backoff) -> dict[str, Any]:
    """Return a rule as plain values, for another process."""
    (kind,) = (kind for kind, cls in _KINDS.items() if isinstance(backoff, cls))
    values = {name: _seconds(value) for name, value in asdict(backoff).items()}
    return {"kind": kind} | values


def from_document(document: dict[str, Any]) -> Backoff:
    """Return the rule that as_document() was given."""
    values = dict(document)
    return _KINDS[values.pop("kind")](**values)


def _check(rule: Backoff, *names: str) -> None:
    for name in names:
        value = getattr(rule, name)
        if as_seconds(value) is None:
            raise InvalidTask(
                f"{type(rule).__name__}: {name} must be a timedelta or a number of seconds from 0 to 100 years, "
                f"not {value!r}."
            )


def _seconds(value: Duration) -> float:
    return value.total_seconds() if isinstance(value, timedelta) else float(value)


def _number(value: object) -> float | None:
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value if isinstance(value, int | float) and not isinstance(value, bool) else None


DEFAULT_BACKOFF = Exponential()
