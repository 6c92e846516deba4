"""A run marked final has no body still running: one that is being stopped is RUNNING until its body has ended."""

import psutil
import pytest
from django.db import transaction

from django_dispatch import CancelAnswer, cancel
from django_dispatch.control import ask
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import fresh, wait_until_final
from tests.kit.waiting import wait_for


def test_a_cancelled_run_is_running_until_its_body_has_tidied_up(kit: Kit) -> None:
    kit.dispatchers()
    run = tasks.tidying.delay("work", "tidying")
    kit.gate.wait_until_reached("work")
    assert cancel(run) == CancelAnswer.REQUESTED
    kit.gate.wait_until_reached("tidying")
    run = fresh(run)
    assert run.status == "RUNNING"
    assert run.cancel_requested_at
    kit.gate.open("tidying")
    (run,) = wait_until_final(run)
    (row,) = kit.ledger.rows(run)
    assert (run.status, [error["kind"] for error in run.errors]) == ("CANCELLED", ["cancelled"])
    assert row.ended_at
    assert run.finished_at
    assert row.ended_at < run.finished_at


def test_an_async_run_is_cancelled_and_its_neighbours_go_on(kit: Kit) -> None:
    kit.dispatchers(async_concurrency=2)
    doomed, neighbour = tasks.agated.delay("never"), tasks.agated.delay("work", "fine")
    kit.gate.wait_until_reached("never", "work")
    cancel(doomed)
    (doomed,) = wait_until_final(doomed)
    assert (doomed.status, fresh(neighbour).status) == ("CANCELLED", "RUNNING")
    kit.gate.open("work")
    (neighbour,) = wait_until_final(neighbour)
    assert (neighbour.status, neighbour.attempt, kit.ledger.starts(neighbour)) == ("SUCCESSFUL", 1, 1)


def test_a_cancel_at_the_last_moment_is_what_is_told_and_counted(kit: Kit) -> None:
    """The body fails, and is to be tried again; before that is written, somebody cancels the run."""
    a = kit.dispatchers()
    run = tasks.raises.delay("work")
    kit.gate.wait_until_reached("work")
    with transaction.atomic():
        assert cancel(run) == CancelAnswer.REQUESTED
        kit.gate.open("work")
        a.wait_for_log(f"Run {run.pk} ({run.task}): a transaction holds its row; its outcome waits.")
    (run,) = wait_until_final(run)
    assert (run.status, run.attempt, [error["kind"] for error in run.errors]) == ("CANCELLED", 1, ["exception"])
    a.wait_for_log(f"Run {run.pk} {run.task} CANCELLED: raised after")
    (answer,) = ask("metrics", timeout=20)
    finished = answer["django_dispatch_runs_finished_total"]
    assert [(one["status"], one["value"]) for one in finished] == [("CANCELLED", 1)]


@pytest.mark.parametrize("is_cancelled", [True, False], ids=["cancel", "timeout"])
def test_a_body_that_does_not_stop_is_killed_after_the_grace(kit: Kit, is_cancelled: bool) -> None:
    kit.dispatchers(settings={"CANCEL_GRACE": 0.3})
    run = tasks.stubborn.apply_async(("never",), timeout=None if is_cancelled else 0.3)
    kit.gate.wait_until_reached("never")
    (row,) = kit.ledger.rows(run)
    if is_cancelled:
        cancel(run)
    (run,) = wait_until_final(run)
    assert run.status == ("CANCELLED" if is_cancelled else "FAILED")
    assert [error["kind"] for error in run.errors] == ["cancelled" if is_cancelled else "timeout"]
    assert "killed" in run.errors[0]["message"]
    assert not psutil.pid_exists(row.pid)
    (after,) = wait_until_final(tasks.note.delay())
    assert (after.status, kit.ledger.rows(after)[0].pid != row.pid) == ("SUCCESSFUL", True)


def test_a_timeout_stops_a_body_and_its_executor_goes_on(kit: Kit) -> None:
    kit.dispatchers(async_concurrency=1)
    runs = [task.apply_async(("never",), timeout=0.3) for task in (tasks.gated, tasks.agated)]
    for run in wait_until_final(*runs):
        assert (run.status, run.failures, [error["kind"] for error in run.errors]) == ("FAILED", 1, ["timeout"])
        assert kit.ledger.rows(run)[0].ended_at
    after = wait_until_final(tasks.note.delay(), tasks.anote.delay())
    pids = [kit.ledger.rows(run)[0].pid for run in (*runs, *after)]
    assert pids[:2] == pids[2:], "a body that obeys costs no executor"


def test_what_a_cancelled_body_started_is_gone(kit: Kit) -> None:
    """A body that waits for a program and does not stop takes the program along when it is killed."""
    a = kit.dispatchers(settings={"CANCEL_GRACE": 0.3})
    run = tasks.run_sleep.delay(600)
    wait_for(lambda: any("sleep" in process.name() for process in a.processes()), what="the program")
    cancel(run)
    (run,) = wait_until_final(run)
    assert run.status == "CANCELLED"
    wait_for(lambda: not any("sleep" in process.name() for process in a.processes()), 1, what="the program gone")


def test_a_statement_is_cancelled_with_its_body(kit: Kit) -> None:
    """A stop derives from KeyboardInterrupt: psycopg then cancels the statement that is under way."""
    kit.dispatchers()
    run = tasks.sleep_in_sql.delay(600)
    sleeping = """
        SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND query LIKE '%pg_sleep%' AND wait_event = 'PgSleep'
    """
    wait_for(lambda: kit.sql.execute(sleeping).fetchone() == (1,), what="the statement")
    cancel(run)
    (run,) = wait_until_final(run)
    assert (run.status, "killed" in run.errors[0]["message"]) == ("CANCELLED", False)
    wait_for(lambda: kit.sql.execute(sleeping).fetchone() == (0,), 1, what="the statement gone")


def test_a_body_that_is_stopped_in_a_statement_may_go_on_with_its_session(kit: Kit) -> None:
    """The statement was cancelled in the server, and the session is free to clean up with."""
    kit.dispatchers()
    (run,) = wait_until_final(tasks.session_after_a_stop.apply_async(timeout=0.3))
    assert (run.status, run.errors) == ("SUCCESSFUL", [])
    before, after = run.result
    assert before == after
