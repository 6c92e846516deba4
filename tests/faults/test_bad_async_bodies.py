"""Async bodies that block, stop or fork the event loop that they share: what their neighbours notice of it."""

from typing import Any

import pytest

from django_dispatch import Task, cancel
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.loop_misdeeds import OnTheLoop
from tests.kit.runs import fresh, wait_for_status, wait_until_final

ENDS: dict[str, tuple[str, Any]] = {
    "exit_in_a_subtask": ("FAILED", None),
    "interrupt_in_a_callback": ("SUCCESSFUL", "went on"),
    "stop_the_loop": ("SUCCESSFUL", "went on"),
    "leave_a_task": ("SUCCESSFUL", None),
    "leave_a_generator": ("SUCCESSFUL", None),
    "leave_a_transaction": ("SUCCESSFUL", None),
    "fork_and_return": ("SUCCESSFUL", "the parent"),
    "fork_and_await": ("SUCCESSFUL", "the parent"),
}


def test_who_meddles_with_the_loop_is_alone_with_the_consequences(kit: Kit) -> None:
    """A neighbour on the same loop ends once and in its first attempt, and so does whoever comes later."""
    a = kit.dispatchers(async_concurrency=3)
    neighbours = [tasks.aticking.delay("work") for _ in range(2)]
    kit.gate.wait_until_reached("work", times=2)
    runs = [tasks.amisbehave.delay(name) for name in ENDS]
    for name, run in zip(ENDS, wait_until_final(*runs), strict=True):
        assert (name, run.status, run.result, run.attempt) == (name, *ENDS[name], 1)
        assert kit.ledger.starts(run) == 1
    assert wait_until_final(runs[0])[0].errors[0]["exception_class"] == "SystemExit"
    kit.gate.open("work")
    neighbours = wait_until_final(*neighbours)
    assert [(run.status, run.attempt) for run in neighbours] == [("SUCCESSFUL", 1)] * 2
    assert kit.gate.reached("tick") == sorted(f"{run.pk}-{run.result}" for run in neighbours), "in one process only"
    (after,) = wait_until_final(tasks.ais_outside_transactions.delay())
    assert (after.status, after.result) == ("SUCCESSFUL", True), "not inside the transaction that was left"
    a.terminate()
    assert a.exit_code() == 0, "a task that was left behind keeps nobody from ending"
    assert {name for name in vars(OnTheLoop) if not name.startswith("_")} == ENDS.keys()


@pytest.mark.slow
def test_a_blocked_loop_keeps_nobody_else_from_running_what_it_has_not_started(kit: Kit) -> None:
    """A warning names the task; what waits behind it is given back, and the loop takes work again when it turns."""
    a = kit.dispatchers("a", async_concurrency=4)
    blocking = tasks.ablock.delay("work")
    kit.gate.wait_until_reached("work")
    waiting = tasks.anote.delay("elsewhere")
    a.wait_for_log("by one of: tests.kit.tasks.ablock.")
    b = kit.dispatchers("b", async_concurrency=2)
    (waiting,) = wait_until_final(waiting)
    assert (waiting.status, waiting.attempt, kit.ledger.starts(waiting)) == ("SUCCESSFUL", 1, 1)
    assert fresh(blocking).status == "RUNNING"
    b.terminate()
    assert b.exit_code() == 0
    kit.gate.open("work")
    blocking, after = wait_until_final(blocking, tasks.anote.delay("here"))
    assert [(run.status, run.attempt, run.result) for run in (blocking, after)] == [
        ("SUCCESSFUL", 1, "at last"),
        ("SUCCESSFUL", 1, "here"),
    ]


@pytest.mark.parametrize("task", [tasks.ablock, tasks.astubborn], ids=["blocks the loop", "swallows the cancel"])
def test_neighbours_of_a_body_that_has_to_be_killed_are_run_again(kit: Kit, task: Task[..., Any]) -> None:
    """Interrupted, not lost: it counts against no limit of theirs."""
    kit.dispatchers(async_concurrency=2, settings={"CANCEL_GRACE": 0.3, "MAX_INTERRUPTIONS": 1})
    neighbour = tasks.agated.delay("work-{attempt}", "fine")
    kit.gate.wait_until_reached("work-1")
    bad = task.apply_async(("never",), timeout=0.3)
    kit.gate.wait_until_reached("work-2")
    kit.gate.open("work-2")
    bad, neighbour = wait_until_final(bad, neighbour)
    assert (bad.status, bad.attempt, bad.errors[0]["kind"]) == ("FAILED", 1, "timeout")
    assert bad.errors[0]["message"].endswith("did not stop when told to; it was killed.")
    assert (neighbour.status, neighbour.attempt, neighbour.interruptions) == ("SUCCESSFUL", 2, 0)
    assert [error["kind"] for error in neighbour.errors] == ["shutdown"]
    assert kit.ledger.overlaps(neighbour) == []


def test_a_body_that_hangs_is_killed_even_where_its_executor_is_to_be_replaced(kit: Kit) -> None:
    """An executor that retires waits for its last bodies, but not for ever."""
    kit.dispatchers(async_concurrency=2, settings={"CANCEL_GRACE": 0.3, "EXECUTOR_MAX_RUNS": 1})
    hanging = tasks.astubborn.delay("never")
    kit.gate.wait_until_reached("never")
    (last,) = wait_until_final(tasks.anote.delay())
    assert kit.ledger.rows(last)[0].pid != kit.ledger.rows(hanging)[0].pid, "the old one takes nothing more"
    cancel(hanging)
    hanging = wait_for_status(hanging, "CANCELLED")
    assert "killed" in hanging.errors[0]["message"]
