"""Rules of when a run is tried again: their delays and limits, and what becomes of a policy that is broken."""

import itertools
from datetime import timedelta
from typing import Any

import pytest

from django_dispatch import Cancel, Exponential, Fixed, InvalidOption, InvalidTask, Linear, Retry, Snooze
from django_dispatch.messages import Plan
from django_dispatch.policy import Policy, check_retries
from django_dispatch.retry import (
    LONGEST_SECONDS,
    Backoff,
    after_failure,
    as_document,
    as_seconds,
    clamped,
    from_document,
)

TOKENS = [(run_id, epoch) for run_id in range(1, 200) for epoch in (1, 2)]
NO_DURATIONS: list[Any] = [-1, -0.5, float("nan"), float("inf"), 10**400, True, "5", None, timedelta(-1), timedelta.max]


@pytest.mark.parametrize(
    ("rule", "delays"),
    [
        (Fixed(7), [7, 7, 7, 7]),
        (Fixed(timedelta(minutes=1)), [60] * 4),
        (Fixed(0), [0] * 4),
        (Linear(2.5), [2.5, 5, 7.5, 10]),
        (Linear(timedelta(seconds=2), cap=5), [2, 4, 5, 5]),
        (Exponential(), [1, 2, 4, 8]),
        (Exponential(3, cap=timedelta(seconds=10)), [3, 6, 10, 10]),
    ],
    ids=str,
)
def test_delays(rule: Backoff, delays: list[float]) -> None:
    assert [after_failure(rule, failures, (1, 1)) for failures in (1, 2, 3, 4)] == delays


@pytest.mark.parametrize(
    "rule", [Fixed(LONGEST_SECONDS), Linear(LONGEST_SECONDS), Exponential(LONGEST_SECONDS)], ids=str
)
def test_no_delay_is_longer_than_can_be_stored(rule: Backoff) -> None:
    assert after_failure(rule, 32_767, (1, 1)) <= LONGEST_SECONDS
    assert after_failure(Exponential(), 32_767, (1, 1)) == after_failure(Linear(5), 32_767, (1, 1)) == 3600


def test_jitter_takes_away_its_share_at_most_and_spreads_runs_and_their_attempts() -> None:
    rule = Exponential(4, jitter=0.25)
    delays = [after_failure(rule, 2, token) for token in TOKENS]
    assert all(6 <= delay <= 8 for delay in delays)
    assert min(delays) < 6.2
    assert max(delays) > 7.8
    assert len(set(delays)) == len(TOKENS)
    assert delays == [after_failure(rule, 2, token) for token in TOKENS]


@pytest.mark.parametrize("rule", [Fixed(timedelta(1)), Linear(2, cap=9), Exponential(timedelta(0, 1), 5, 0.5)], ids=str)
def test_a_rule_survives_its_way_to_another_process(rule: Backoff) -> None:
    copy = from_document(as_document(rule))
    assert type(copy) is type(rule)
    assert [after_failure(copy, n, (7, n)) for n in range(1, 9)] == [
        after_failure(rule, n, (7, n)) for n in range(1, 9)
    ]


@pytest.mark.parametrize("value", NO_DURATIONS, ids=repr)
def test_what_is_no_delay_is_refused_where_it_is_written(value: Any) -> None:
    assert as_seconds(value) is None
    for rule in (Fixed, Linear, Exponential):
        with pytest.raises(InvalidTask):
            rule(value)
    for cap in (Linear, Exponential):
        with pytest.raises(InvalidTask, match="cap"):
            cap(1, value)
    with pytest.raises(InvalidOption):
        Snooze(value)
    if value is not None:
        with pytest.raises(InvalidOption):
            Retry(after=value)


@pytest.mark.parametrize("jitter", [-0.1, 1.1, float("nan"), True, "0", timedelta(0)])
def test_jitter_is_a_share(jitter: Any) -> None:
    with pytest.raises(InvalidTask, match="jitter"):
        Exponential(jitter=jitter)


def test_other_decisions_are_checked_too() -> None:
    for wrong in ({"queue": ""}, {"priority": 101}):
        with pytest.raises(InvalidOption):
            Retry(**wrong)  # type: ignore[arg-type]
    for reason in ("a\0", 5):
        with pytest.raises(InvalidOption):
            Cancel(reason)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("computed", "seconds"),
    [
        (timedelta(seconds=3), 3),
        (2.5, 2.5),
        (-7, 0),
        (timedelta.min, 0),
        (float("-inf"), 0),
        (timedelta.max, LONGEST_SECONDS),
        (float("inf"), LONGEST_SECONDS),
        (10**400, LONGEST_SECONDS),
        (float("nan"), None),
        (True, None),
        ("5", None),
    ],
)
def test_what_is_computed_is_clamped(computed: Any, seconds: float | None) -> None:
    assert clamped(computed) == seconds


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class Hostile(type):
    def __instancecheck__(cls, instance: object) -> bool:
        raise RuntimeError("never")


class HostileError(Exception, metaclass=Hostile):
    pass


def test_types_of_errors() -> None:
    policy = check_retries(retry_on=(OSError, KeyError), no_retry_on=FileNotFoundError)
    again, final = (Plan(), ""), (Plan(is_final=True), "")
    errors = (OSError(), PermissionError(), KeyError(), FileNotFoundError(), ValueError(), KeyboardInterrupt())
    assert [policy.plan(1, error) for error in errors] == [again] * 3 + [final] * 3
    assert policy.plan(1, ValueError(), asks_types=False) == again
    assert [Policy().plan(1, error) for error in errors] == [again] * 6


def test_a_function_is_told_which_failure_it_is_and_what_was_raised() -> None:
    told: list[tuple[int, BaseException]] = []
    error = ValueError("x")

    def backoff(failures: int, raised: BaseException) -> timedelta:
        told.append((failures, raised))
        return timedelta(seconds=failures)

    assert check_retries(backoff=backoff).plan(3, error) == (Plan(delay_seconds=3.0), "")
    assert told == [(3, error)]
    assert check_retries(backoff=lambda *_: None).plan(1, error) == (Plan(is_final=True), "")


@pytest.mark.parametrize(
    ("answer", "note"),
    [("soon", "'soon'"), (float("nan"), "nan"), (Unprintable(), "Unprintable"), (itertools.count(), "count")],
)
def test_a_function_that_answers_nonsense_leaves_it_to_the_default(answer: Any, note: str) -> None:
    plan, found = check_retries(backoff=lambda *_: answer).plan(1, ValueError())
    assert plan == Plan()
    assert note in found


@pytest.mark.parametrize("problem", [RuntimeError("no idea"), KeyboardInterrupt(), SystemExit(3)])
def test_a_function_that_raises_leaves_it_to_the_default(problem: BaseException) -> None:
    def backoff(*_: object) -> float:
        raise problem

    policy = check_retries(backoff=backoff)
    plan, note = policy.plan(1, ValueError())
    assert plan == Plan()
    assert repr(problem) in note
    assert policy.rule == Exponential()


def test_types_that_cannot_be_asked_leave_it_to_the_default() -> None:
    plan, note = check_retries(retry_on=HostileError).plan(1, ValueError())
    assert plan == Plan()
    assert "never" in note
