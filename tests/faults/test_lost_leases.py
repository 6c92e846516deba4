"""A lease that is lost: whoever had it cannot write, run or start anything any more."""

from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import wait_until_final


def test_smoke(kit: Kit) -> None:
    kit.dispatchers()
    run = tasks.gated.delay("g", "v{attempt}")
    kit.gate.wait_until_reached("g")
    kit.gate.open("g")
    (run,) = wait_until_final(run)
    assert (run.status, run.result) == ("SUCCESSFUL", "v1")
    assert kit.ledger.starts(run) == 1
    assert kit.ledger.overlaps(run) == []
