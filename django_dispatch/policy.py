"""When a task is tried again, as its options say: checked where they are written, asked where a body has failed."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import TypeAlias, TypedDict

from asgiref.sync import iscoroutinefunction

from . import retry
from .exceptions import InvalidTask
from .messages import Plan

# The number of the failure, from 1, and what the body raised; None: no further attempt.
BackoffFunction: TypeAlias = Callable[[int, BaseException], timedelta | float | None]
ErrorTypes: TypeAlias = type[BaseException] | tuple[type[BaseException], ...]

LONGEST_SHOWN = 300  # characters

logger = logging.getLogger("django_dispatch.retry")


class RetryOptions(TypedDict, total=False):
    """The options of ``@task`` that say when an attempt is followed by another one, while ``max_attempts`` allows it.

    ``backoff`` is the delay (timedelta or seconds), a rule (Fixed, Linear, Exponential), or a function of the number
    of failures so far, from 1, and the exception, which returns the delay, or None for no further attempt. ``retry_on``
    and ``no_retry_on`` are types of exceptions, the latter being stronger. ``retry_on_timeout`` False makes a timeout
    final.
    """

    backoff: timedelta | float | retry.Backoff | BackoffFunction
    retry_on: ErrorTypes
    no_retry_on: ErrorTypes
    retry_on_timeout: bool


@dataclass(frozen=True, slots=True)
class Policy:
    """The same, checked."""

    backoff: retry.Backoff | BackoffFunction = retry.DEFAULT_BACKOFF
    retry_on: tuple[type[BaseException], ...] = (BaseException,)
    no_retry_on: tuple[type[BaseException], ...] = ()
    on_timeout: bool = True

    @property
    def rule(self) -> retry.Backoff:
        """The rule that needs no exception: the default one beside a function."""
        return retry.DEFAULT_BACKOFF if callable(self.backoff) else self.backoff

    def plan(self, failures: int, error: BaseException, *, asks_types: bool = True) -> tuple[Plan, str]:
        """Return what is to follow this failure, the ``failures``-th; and what is to be said of a broken policy.

        ``asks_types`` False leaves ``retry_on`` and ``no_retry_on`` out. Raises nothing: a function that raises, or
        returns nonsense, is as if there were none.
        """
        try:
            if asks_types and not (isinstance(error, self.retry_on) and not isinstance(error, self.no_retry_on)):
                return Plan(is_final=True), ""
            if not callable(self.backoff):
                return Plan(), ""
            answer = self.backoff(failures, error)
            if answer is None:
                return Plan(is_final=True), ""
            seconds = retry.clamped(answer)
            note = "" if seconds is not None else f"it returned {_shown(answer)}"
            plan = Plan(delay_seconds=seconds)
        except BaseException as problem:
            plan, note = Plan(), f"it raised {_shown(problem)}"
        if note:
            note = f"The backoff function cannot be followed, for {note}; the default delay is."
            logger.error("%s", note)
        return plan, note


def check_retries(
    *,
    backoff: object = retry.DEFAULT_BACKOFF,
    retry_on: object = BaseException,
    no_retry_on: object = (),
    retry_on_timeout: object = True,
) -> Policy:
    """Return the policy that these options make. Raises InvalidTask."""
    if not isinstance(retry_on_timeout, bool):
        raise InvalidTask(f"retry_on_timeout must be True or False, not {retry_on_timeout!r}.")
    return Policy(
        _check_backoff(backoff),
        _check_types("retry_on", retry_on),
        _check_types("no_retry_on", no_retry_on),
        retry_on_timeout,
    )


def _check_backoff(value: object) -> retry.Backoff | BackoffFunction:
    if isinstance(value, retry.Backoff):
        return value
    if callable(value) and not isinstance(value, type) and not iscoroutinefunction(value):
        return value
    seconds = retry.as_seconds(value)
    if seconds is None:
        raise InvalidTask(
            "backoff must be a timedelta, a number of seconds from 0 to 100 years, Fixed, Linear, Exponential, or a "
            f"function (not a coroutine function), not {value!r}."
        )
    return retry.Fixed(seconds)


def _check_types(name: str, value: object) -> tuple[type[BaseException], ...]:
    types = value if isinstance(value, tuple | list) else (value,)
    for one in types:
        if not isinstance(one, type) or not issubclass(one, BaseException):
            raise InvalidTask(f"{name} must be types of exceptions, not {one!r}.")
    return tuple(types)


def _shown(value: object) -> str:
    try:
        return repr(value)[:LONGEST_SHOWN]
    except BaseException:
        return f"a {type(value).__name__} that cannot be shown"
