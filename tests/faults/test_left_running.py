"""What a body has started ends with it, daemons too, and before its run is final."""

from collections.abc import Iterator
from typing import Any

import pytest
from pytest_django.plugin import DjangoDbBlocker

from django_dispatch import Task, cancel
from django_dispatch.models import Run
from tests.kit import tasks
from tests.kit.dispatchers import Dispatcher
from tests.kit.fixtures import Kit, open_kit
from tests.kit.runs import wait_until_final
from tests.kit.waiting import wait_for

ALL_PROGRAMS = 3  # of one body: a daemon's, and two of a tree


def programs(dispatcher: Dispatcher) -> list[int]:
    """Return the programs that bodies of this dispatcher have started and that are alive."""
    return [process.pid for process in dispatcher.processes() if process.name() == "sleep"]


def start(kit: Kit, dispatcher: Dispatcher, task: Task[..., Any], gate: str) -> Run:
    """Enqueue a run of the task, and wait until its body has started its programs."""
    run = task.delay(gate)
    kit.gate.wait_until_reached(gate)
    wait_for(lambda: len(programs(dispatcher)) == ALL_PROGRAMS, what="the programs")
    return run


@pytest.fixture(scope="module")
def shared_kit(
    tmp_path_factory: pytest.TempPathFactory, database_url: str, django_db_blocker: DjangoDbBlocker
) -> Iterator[Kit]:
    with open_kit(tmp_path_factory.mktemp("running"), database_url, django_db_blocker) as kit:
        yield kit


@pytest.fixture(scope="module")
def dispatcher(shared_kit: Kit) -> Dispatcher:
    return shared_kit.dispatchers(async_concurrency=2, settings={"CANCEL_GRACE": 1})


@pytest.mark.parametrize("how", ["return", "cancel", "timeout"])
@pytest.mark.parametrize("task", [tasks.leave_programs, tasks.aleave_programs], ids=["sync", "async"])
def test_nothing_runs_on_when_a_run_is_final(
    shared_kit: Kit, dispatcher: Dispatcher, task: Task[..., Any], how: str
) -> None:
    """The body obeyed or returned, so nobody killed its executor; yet what it left is dead before the run is final."""
    gate = f"{task.function.__name__}-{how}"
    run = task.apply_async((gate,), timeout=1) if how == "timeout" else start(shared_kit, dispatcher, task, gate)
    if how == "return":
        shared_kit.gate.open(gate)
    elif how == "cancel":
        cancel(run)
    (run,) = wait_until_final(run)
    (row,) = shared_kit.ledger.rows(run)
    assert programs(dispatcher) == []
    assert (run.status, run.attempt) == ({"return": "SUCCESSFUL", "cancel": "CANCELLED", "timeout": "FAILED"}[how], 1)
    assert not run.errors or "killed" not in run.errors[0]["message"]
    dispatcher.wait_for_log(f"Run {run.pk} ({task.path}) left ")
    (after,) = wait_until_final((tasks.note if task is tasks.leave_programs else tasks.anote).delay())
    assert shared_kit.ledger.rows(after)[0].pid != row.pid, "its executor is replaced"


def test_nothing_runs_on_when_a_body_had_to_be_killed(shared_kit: Kit, dispatcher: Dispatcher) -> None:
    run = start(shared_kit, dispatcher, tasks.leave_programs_and_hang, "hang")
    cancel(run)
    (run,) = wait_until_final(run)
    assert (run.status, "killed" in run.errors[0]["message"]) == ("CANCELLED", True)
    wait_for(lambda: not programs(dispatcher), 1, what="all programs dead")


def test_a_child_that_was_waited_for_costs_no_executor(shared_kit: Kit, dispatcher: Dispatcher) -> None:
    first, second = wait_until_final(
        tasks.misbehave.delay("Starts", "pool_by_fork"), tasks.misbehave.delay("Starts", "program")
    )
    assert (first.status, second.status) == ("SUCCESSFUL", "SUCCESSFUL")
    assert shared_kit.ledger.rows(first)[0].pid == shared_kit.ledger.rows(second)[0].pid


@pytest.mark.parametrize("is_stopped", [True, False], ids=["cancel", "return"])
def test_a_thread_that_outlives_a_stopped_body_costs_the_executor(
    shared_kit: Kit, dispatcher: Dispatcher, is_stopped: bool
) -> None:
    """It may be about to do what was to be stopped. After a body that returned it is left alone: it may be a pool's."""
    gate = f"thread-{is_stopped}"
    run = tasks.leave_a_thread.delay(gate)
    shared_kit.gate.wait_until_reached(gate)
    if is_stopped:
        cancel(run)
    else:
        shared_kit.gate.open(gate)
    run, after = wait_until_final(run, tasks.note.delay())
    assert run.status == ("CANCELLED" if is_stopped else "SUCCESSFUL")
    first, second = (shared_kit.ledger.rows(each)[0].pid for each in (run, after))
    assert (first != second) == is_stopped
