"""What an outcome does to its run, as a table; and what the death of an executor says about the runs that it had."""

import json
from typing import Any

import pytest

from django_dispatch import retry
from django_dispatch.dispatcher.death import Death, outcome_of
from django_dispatch.dispatcher.executor import Flight
from django_dispatch.dispatcher.stats import Stats
from django_dispatch.finish import TaskFacts, settle
from django_dispatch.messages import Kind, Outcome, Plan, Stop, Verdict
from django_dispatch.retry import Linear
from django_dispatch.store.values import ClaimedRun, Settlement

RUN = ClaimedRun(
    id=5,
    epoch=9,
    task="shop.tasks.one",
    queue="default",
    priority=0,
    attempt=1,
    failures=0,
    interruptions=0,
    max_attempts=None,
    timeout_seconds=None,
    on_lost="",
    args="[]",
    kwargs="{}",
)
FACTS = TaskFacts(Kind.SYNC, max_attempts=3)
ONCE = {"on_lost": "fail"}
FAILED, AGAIN = {"has_failed": True}, {"has_failed": True, "delay_seconds": 1.0}
LOST, LATE = {"was_interrupted": True}, {"was_interrupted": True, "delay_seconds": 2.0}
UNKNOWN = {"was_interrupted": True, "was_started": False}

TABLE: list[tuple[Verdict, dict[str, Any], str, dict[str, Any]]] = [
    (Verdict.RAISED, {}, "SCHEDULED", AGAIN),
    (Verdict.RAISED, {"failures": 1}, "SCHEDULED", {"has_failed": True, "delay_seconds": 2.0}),
    (Verdict.RAISED, {"failures": 2}, "FAILED", FAILED),
    (Verdict.RAISED, {"attempt": 50}, "SCHEDULED", AGAIN),
    (Verdict.RAISED, {"interruptions": 2}, "SCHEDULED", AGAIN),
    (Verdict.RAISED, {"max_attempts": 1}, "FAILED", FAILED),
    (Verdict.RAISED, ONCE, "SCHEDULED", AGAIN),
    (Verdict.TIMED_OUT, {}, "SCHEDULED", AGAIN),
    (Verdict.TIMED_OUT, ONCE, "FAILED", FAILED),
    (Verdict.UNSTORABLE, {}, "FAILED", FAILED),
    (Verdict.CANCELLED, {}, "CANCELLED", {}),
    (Verdict.INTERRUPTED, {}, "READY", {}),
    (Verdict.INTERRUPTED, {"interruptions": 2, "failures": 2}, "READY", {}),
    (Verdict.INTERRUPTED, ONCE, "FAILED", {}),
    (Verdict.LOST, {}, "READY", LOST),
    (Verdict.LOST, {"interruptions": 1}, "SCHEDULED", LATE),
    (Verdict.LOST, {"interruptions": 2}, "FAILED", LOST),
    (Verdict.LOST, {"failures": 2}, "READY", LOST),
    (Verdict.LOST, ONCE, "FAILED", LOST),
    (Verdict.LOST_TOGETHER, {}, "READY", LOST),
    (Verdict.LOST_TOGETHER, {"interruptions": 2}, "READY", LOST),
    (Verdict.LOST_TOGETHER, ONCE, "FAILED", LOST),
    (Verdict.UNKNOWN_TASK, {}, "SCHEDULED", UNKNOWN | {"delay_seconds": 30.0}),
    (Verdict.UNKNOWN_TASK, {"interruptions": 1}, "SCHEDULED", UNKNOWN | {"delay_seconds": 90.0}),
    (Verdict.UNKNOWN_TASK, {"interruptions": 2}, "FAILED", UNKNOWN),
    (Verdict.UNKNOWN_TASK, ONCE, "SCHEDULED", UNKNOWN | {"delay_seconds": 30.0}),
]


@pytest.mark.parametrize(("verdict", "changes", "status", "settled"), TABLE)
def test_an_outcome_with_an_error(
    verdict: Verdict, changes: dict[str, Any], status: str, settled: dict[str, Any]
) -> None:
    outcome = Outcome(5, 9, verdict, text='{"kind":"x"}')
    found = settle(RUN._replace(**changes), outcome, FACTS, max_interruptions=3)
    assert found == Settlement(5, 9, status, error='{"kind":"x"}', **settled)


def test_the_outcomes_without_one() -> None:
    for text, result in (("[1]", "[1]"), ("", None)):
        outcome = Outcome(5, 9, Verdict.RETURNED, text=text)
        assert settle(RUN, outcome, FACTS, max_interruptions=3) == Settlement(5, 9, "SUCCESSFUL", result=result)
    released = Settlement(5, 9, "READY", was_started=False)
    assert settle(RUN, Outcome(5, 9, Verdict.UNSTARTED), FACTS, max_interruptions=3) == released
    put_off = Outcome(5, 9, Verdict.UNSTARTED, plan=Plan(delay_seconds=1.0))
    released = released._replace(status="SCHEDULED", delay_seconds=1.0)
    assert settle(RUN, put_off, FACTS, max_interruptions=3) == released


PLANS: list[tuple[Plan | None, dict[str, Any], str, dict[str, Any]]] = [
    (Plan(is_final=True), {}, "FAILED", FAILED),
    (Plan(delay_seconds=7.5), {}, "SCHEDULED", {"has_failed": True, "delay_seconds": 7.5}),
    (Plan(delay_seconds=0.0), {}, "SCHEDULED", {"has_failed": True, "delay_seconds": 0.0}),
    (Plan(delay_seconds=7.5), {"failures": 2}, "FAILED", FAILED),
    (Plan(queue="q", priority=3), {}, "SCHEDULED", AGAIN | {"queue": "q", "priority": 3}),
    (Plan(queue="q", priority=3), {"max_attempts": 1}, "FAILED", FAILED),
]


@pytest.mark.parametrize(("plan", "changes", "status", "settled"), PLANS)
def test_what_an_executor_plans_is_followed_while_there_are_attempts_left(
    plan: Plan, changes: dict[str, Any], status: str, settled: dict[str, Any]
) -> None:
    outcome = Outcome(5, 9, Verdict.RAISED, text="{}", plan=plan)
    found = settle(RUN._replace(**changes), outcome, FACTS, max_interruptions=3)
    assert found == Settlement(5, 9, status, error="{}", **settled)


def test_a_snooze_counts_as_nothing() -> None:
    outcome = Outcome(5, 9, Verdict.SNOOZED, plan=Plan(delay_seconds=60.0))
    for changes in ({}, {"failures": 2}, {"max_attempts": 1}, {"on_lost": "fail"}):
        found = settle(RUN._replace(**changes), outcome, FACTS, max_interruptions=1)
        assert found == Settlement(5, 9, "SCHEDULED", delay_seconds=60.0)


def test_the_rule_and_the_word_of_the_task_hold_without_an_executors_plan() -> None:
    """So it is when a body had to be killed."""
    facts = TaskFacts(Kind.SYNC, max_attempts=9, backoff=Linear(3))
    timed_out = Outcome(5, 9, Verdict.TIMED_OUT, text="{}")
    assert settle(RUN._replace(failures=1), timed_out, facts, max_interruptions=3).delay_seconds == 6
    facts = TaskFacts(Kind.SYNC, max_attempts=9, retry_on_timeout=False)
    assert settle(RUN, timed_out, facts, max_interruptions=3).status == "FAILED"
    assert settle(RUN, timed_out._replace(verdict=Verdict.RAISED), facts, max_interruptions=3).status == "SCHEDULED"


def test_a_task_that_nobody_knows_has_one_attempt() -> None:
    assert settle(RUN, Outcome(5, 9, Verdict.RAISED, text="{}"), None, max_interruptions=3).status == "FAILED"


def test_delays_grow_and_have_a_limit() -> None:
    assert [retry.after_loss(n) for n in (1, 2, 3, 4)] == [0, 2, 4, 8]
    assert [retry.after_unknown_task(n) for n in (1, 2, 3)] == [30, 90, 270]
    for rule in (retry.after_loss, retry.after_unknown_task):
        assert rule(32_000) == 3600


@pytest.mark.parametrize(
    ("stop", "end", "verdict", "kind", "words"),
    [
        (None, (-9, ""), Verdict.LOST, "lost", "killed by SIGKILL"),
        (None, (-11, ""), Verdict.LOST, "lost", "killed by SIGSEGV"),
        (None, (0, ""), Verdict.LOST, "lost", "exit code 0"),
        (None, (-99, ""), Verdict.LOST, "lost", "killed by signal 99"),
        (None, (-9, "shutdown"), Verdict.INTERRUPTED, "shutdown", "shutdown"),
        (Stop.SHUTDOWN, (-9, ""), Verdict.INTERRUPTED, "shutdown", "shutdown"),
        (Stop.CANCEL, (-9, "to stop run 5"), Verdict.CANCELLED, "cancelled", "killed"),
        (Stop.TIMEOUT, (-9, "to stop run 5"), Verdict.TIMED_OUT, "timeout", "longer than 2 s"),
    ],
)
def test_a_death_is_a_verdict(stop: Stop | None, end: tuple[int, str], verdict: Verdict, kind: str, words: str) -> None:
    """By our own doing or not, and named: a run whose executor died is never a success."""
    flight = Flight(
        RUN, (5, 9), FACTS, bytes(16), Stats().tally(RUN), 1.0, timeout_seconds=2.0, started_at=3.0, stop=stop
    )
    outcome = outcome_of(flight, Death("a:7", *end, peak_kb=4), now=5.5)
    error = json.loads(outcome.text)
    assert (outcome.verdict, outcome.duration_seconds, error["kind"]) == (verdict, 2.5, kind)
    assert words in error["message"]
    assert (error["executor"], error["exit_status"], error["peak_kb"]) == ("a:7", end[0], 4)
