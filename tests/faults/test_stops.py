"""Why a body is stopped decides what becomes of its run: cancel, timeout and shutdown are told apart, by all who see.

And a run whose end nobody saw is repeated, unless its task says ``on_lost="fail"``.
"""

import os
import signal

import pytest

from django_dispatch import cancel
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import fresh, wait_for_status, wait_until_final

EXCEPTIONS = {
    "says_why": {"cancel": "RunCancelled", "timeout": "RunTimedOut", "shutdown": "RunInterrupted"},
    "asays_why": dict.fromkeys(("cancel", "timeout", "shutdown"), "CancelledError"),
}


@pytest.mark.parametrize("name", EXCEPTIONS, ids=["sync", "async"])
def test_cancel_timeout_and_shutdown_are_told_apart(kit: Kit, name: str) -> None:
    task, exceptions = getattr(tasks, name), EXCEPTIONS[name]
    a = kit.dispatchers(processes=3, async_concurrency=3, shutdown_timeout=0.1)
    once = task.apply_async(("never",), timeout=0.3)
    twice = task.apply_async(("never",), timeout=0.3, max_attempts=2)
    cancelled = task.apply_async(("doomed",), max_attempts=5)
    kit.gate.wait_until_reached("doomed")
    cancel(cancelled)
    once, twice, cancelled = wait_until_final(once, twice, cancelled)
    interrupted = task.apply_async(("held",))
    kit.gate.wait_until_reached("held")
    a.terminate()
    assert a.exit_code() == 0
    interrupted = fresh(interrupted)

    runs = {"cancel": cancelled, "timeout": once, "shutdown": interrupted}
    said = {reason: run.progress["message"] for reason, run in runs.items() if isinstance(run.progress, dict)}
    assert said == {reason: f"{exceptions[reason]}: {reason}" for reason in runs}
    kinds = {reason: [error["kind"] for error in run.errors] for reason, run in runs.items()}
    assert kinds == {"cancel": ["cancelled"], "timeout": ["timeout"], "shutdown": ["shutdown"]}
    assert {reason: run.status for reason, run in runs.items()} == {
        "cancel": "CANCELLED",
        "timeout": "FAILED",
        "shutdown": "READY",
    }
    assert [run.failures for run in runs.values()] == [0, 1, 0]
    assert (twice.status, twice.attempt, twice.failures) == ("FAILED", 2, 2), "a timeout is tried again as a failure is"
    assert [error["kind"] for error in twice.errors] == ["timeout"] * 2


def test_an_at_most_once_run_is_not_repeated_after_a_crash_or_a_timeout(kit: Kit) -> None:
    """on_lost="fail" is honoured whoever ended the body; the default repeats. (Reclaim and shutdown: elsewhere.)"""
    kit.dispatchers(processes=3)
    timed_out = tasks.gated_once.apply_async(("never",), timeout=0.3, max_attempts=5)
    crashed = tasks.gated_once.apply_async(("crash",), max_attempts=5)
    repeated = tasks.gated.delay("crash-{attempt}")
    kit.gate.wait_until_reached("crash", "crash-1")
    for run in (crashed, repeated):
        os.kill(kit.ledger.rows(run)[0].pid, signal.SIGKILL)
    kit.gate.open("crash-2")
    timed_out, crashed, repeated = wait_until_final(timed_out, crashed, repeated)
    assert (timed_out.status, [error["kind"] for error in timed_out.errors]) == ("FAILED", ["timeout"])
    assert (crashed.status, [error["kind"] for error in crashed.errors]) == ("FAILED", ["lost"])
    assert (repeated.status, [error["kind"] for error in repeated.errors]) == ("SUCCESSFUL", ["lost"])
    assert [kit.ledger.starts(run) for run in (timed_out, crashed, repeated)] == [1, 1, 2]


@pytest.mark.slow
def test_a_timeout_counts_from_the_start_of_the_body(kit: Kit) -> None:
    """A run that was claimed waits in vain for a frozen executor, longer than its timeout; its body gets all of it."""
    a = kit.dispatchers()
    wait_until_final(*tasks.sometimes_slow.delay_many([()] * 50))
    (executor,) = a.executor_pids
    kit.freeze(executor)
    runs = [tasks.sometimes_slow.apply_async(("work",), timeout=3) for _ in range(2)]
    for run in runs:
        wait_for_status(run, "RUNNING")
    kit.sql.execute("SELECT pg_sleep(3.1)")
    kit.freeze.thaw(executor)
    kit.gate.wait_until_reached("work")
    kit.sql.execute("SELECT pg_sleep(0.3)")  # the watch looks every 0.05 s
    kit.gate.open("work")
    assert [(run.status, run.attempt, run.errors) for run in wait_until_final(*runs)] == [("SUCCESSFUL", 1, [])] * 2


def test_what_a_killed_executor_had_not_started_goes_back_without_an_attempt(kit: Kit) -> None:
    a = kit.dispatchers()
    wait_until_final(*tasks.sometimes_slow.delay_many([()] * 50))
    (executor,) = a.executor_pids
    kit.freeze(executor)
    runs = [tasks.sometimes_slow.delay() for _ in range(3)]
    for run in runs:
        wait_for_status(run, "RUNNING")
    os.kill(executor, signal.SIGKILL)
    for run in wait_until_final(*runs):
        assert (run.status, run.attempt, run.interruptions, run.errors) == ("SUCCESSFUL", 1, 0, [])
