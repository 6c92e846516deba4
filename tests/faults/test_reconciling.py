"""After trouble with the database a dispatcher compares what it holds there with what is here."""

from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import fresh, wait_until_final


def test_what_runs_here_is_not_released_after_trouble(kit: Kit) -> None:
    kit.dispatchers(processes=2)
    run = tasks.gated.delay("work-{attempt}")
    kit.gate.wait_until_reached("work-1")
    assert kit.cut("claims") == 1
    wait_until_final(tasks.note.delay())  # its claim met the broken session, and came after the look at what is held
    assert (fresh(run).status, fresh(run).epoch) == ("RUNNING", 1)
    kit.gate.open("work-1")
    (run,) = wait_until_final(run)
    assert (run.status, run.attempt, kit.ledger.overlaps(run)) == ("SUCCESSFUL", 1, [])
