"""A body that kills its event loop: its neighbours run again once, and only it is FAILED as lost."""

from tests.kit import retries, tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import fresh, wait_until_final

NEIGHBOURS = 3


def test_who_kills_an_event_loop_is_found_out_and_its_neighbours_pay_no_more(kit: Kit) -> None:
    kit.dispatchers(async_concurrency=NEIGHBOURS + 1, settings={"MAX_INTERRUPTIONS": 2})
    neighbours = [tasks.agated.delay("hold-{attempt}", "done") for _ in range(NEIGHBOURS)]
    killer = retries.akills.delay("kill-{attempt}")
    kit.gate.wait_until_reached("hold-1", times=NEIGHBOURS)
    kit.gate.wait_until_reached("kill-1")
    kit.gate.open("kill-1")
    kit.gate.wait_until_reached("hold-2", times=NEIGHBOURS)
    kit.gate.wait_until_reached("kill-2")
    again = [kit.ledger.rows(run)[1].pid for run in (*neighbours, killer)]
    assert len(set(again)) == NEIGHBOURS + 1, "each alone"

    kit.gate.open("kill-2")
    (killer,) = wait_until_final(killer)
    assert (killer.status, killer.interruptions, kit.ledger.starts(killer)) == ("FAILED", 2, 2)
    assert [error["message"] for error in killer.errors] == [
        "Its executor died: killed by SIGKILL. Other runs were in it.",
        "Its executor died: killed by SIGKILL.",
    ]
    assert {fresh(run).status for run in neighbours} == {"RUNNING"}
    kit.gate.open("hold-2")
    neighbours = wait_until_final(*neighbours)
    assert [(run.status, run.interruptions, kit.ledger.starts(run)) for run in neighbours] == [("SUCCESSFUL", 1, 2)] * 3

    together = [tasks.agated.delay("together") for _ in range(2)]
    kit.gate.wait_until_reached("together", times=2)
    assert len({kit.ledger.rows(run)[0].pid for run in together}) == 1
    kit.gate.open("together")
    wait_until_final(*together)


def test_runs_that_were_lost_together_are_not_lost_for_good_even_if_one_loss_is_too_many(kit: Kit) -> None:
    kit.dispatchers(async_concurrency=2, settings={"MAX_INTERRUPTIONS": 1})
    neighbour, killer = tasks.agated.delay("hold-{attempt}"), retries.akills.delay("kill-{attempt}")
    kit.gate.wait_until_reached("hold-1")
    kit.gate.wait_until_reached("kill-1")
    kit.gate.open("kill-1", "kill-2", "hold-2")
    neighbour, killer = wait_until_final(neighbour, killer)
    assert (neighbour.status, killer.status) == ("SUCCESSFUL", "FAILED")
