"""The end of a dispatcher: what runs may finish, the rest is handed back, nothing stays RUNNING under it."""

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from django_dispatch.models import Lease, Run
from tests.kit import tasks
from tests.kit.dispatchers import Dispatcher
from tests.kit.fixtures import Kit
from tests.kit.runs import fresh, statuses, wait_until_final
from tests.kit.waiting import wait_for

BODIES = (tasks.gated, tasks.agated)


def start_full(kit: Kit, **options: Any) -> tuple[Dispatcher, list[Run]]:
    """Start a dispatcher of which every slot is taken: by 2 sync and 2 async runs at the gate ``work``."""
    settings = {"CANCEL_GRACE": 0.5}
    dispatcher = kit.dispatchers(processes=2, async_concurrency=2, settings=settings, **options)
    runs = [body.delay("work") for body in BODIES for _ in range(2)]
    kit.gate.wait_until_reached("work", times=4)
    return dispatcher, runs


def assert_nothing_left_behind(dispatcher: Dispatcher) -> None:
    assert dispatcher.exit_code() == 0
    assert not Run.objects.filter(status="RUNNING").exists()
    assert not Lease.objects.exists()
    assert dispatcher.processes() == []


def test_runs_longer_than_the_patience_are_handed_back(kit: Kit) -> None:
    dispatcher, runs = start_full(kit, shutdown_timeout=0.3)
    waiting = tasks.note.delay()
    dispatcher.terminate()
    assert_nothing_left_behind(dispatcher)
    for run in map(fresh, runs):
        assert (run.status, run.lease_id, run.attempt, run.failures, run.interruptions) == ("READY", None, 1, 0, 0)
        assert [error["kind"] for error in run.errors] == ["shutdown"]
    assert (fresh(waiting).status, fresh(waiting).attempt) == ("READY", 0)
    assert all(row.ended_at for row in kit.ledger.rows()), "each body was told to stop, and left in order"


def test_the_lease_says_that_it_drains_and_claims_no_more(kit: Kit) -> None:
    """From the signal on nothing is claimed, though a slot is free and a wakeup comes; others do the work."""
    dispatcher = kit.dispatchers(processes=2, poll_interval=2.5)
    run = tasks.gated.delay("work")
    kit.gate.wait_until_reached("work")
    dispatcher.terminate()
    wait_for(lambda: Lease.objects.get().state == "DRAINING", what="a lease that says it drains")
    later = tasks.note.delay()
    kit.dispatchers("b")
    (later,) = wait_until_final(later)
    assert (later.status, f"Run {later.pk} " in dispatcher.log) == ("SUCCESSFUL", False)
    kit.gate.open("work")
    (run,) = wait_until_final(run)
    assert (run.status, dispatcher.exit_code()) == ("SUCCESSFUL", 0)


def test_a_second_signal_makes_haste_and_still_writes(kit: Kit) -> None:
    dispatcher, runs = start_full(kit, shutdown_timeout=600)
    dispatcher.terminate()
    dispatcher.wait_for_log("Draining (SIGTERM)")
    dispatcher.terminate()
    assert_nothing_left_behind(dispatcher)
    assert statuses(runs) == ["READY"] * 4


def test_ctrl_c_at_the_terminal_kills_no_body(kit: Kit) -> None:
    """The whole process group gets SIGINT: it is the dispatcher's to answer."""
    dispatcher, runs = start_full(kit, shutdown_timeout=600)
    os.killpg(dispatcher.pid, signal.SIGINT)
    dispatcher.wait_for_log("Draining (SIGINT)")
    kit.gate.open("work")
    assert_nothing_left_behind(dispatcher)
    assert statuses(runs) == ["SUCCESSFUL"] * 4
    assert [kit.ledger.starts(run) for run in runs] == [1] * 4


def test_sigterm_to_every_process_lets_bodies_end(kit: Kit) -> None:
    """Some service managers send SIGTERM to all: the zygote stays at work until its dispatcher lets it go."""
    dispatcher = kit.dispatchers(shutdown_timeout=600)
    run = tasks.gated.delay("work")
    kit.gate.wait_until_reached("work")
    zygote = dispatcher.zygote_pid
    assert zygote
    os.kill(zygote, signal.SIGTERM)
    dispatcher.terminate()
    dispatcher.wait_for_log("Draining")
    kit.gate.open("work")
    assert_nothing_left_behind(dispatcher)
    assert statuses([run]) == ["SUCCESSFUL"]


def test_a_body_that_will_not_stop_is_killed_and_its_run_handed_back(kit: Kit) -> None:
    dispatcher = kit.dispatchers(shutdown_timeout=0.1, settings={"CANCEL_GRACE": 0.3})
    run = tasks.stubborn.delay("work")
    kit.gate.wait_until_reached("work")
    dispatcher.terminate()
    assert_nothing_left_behind(dispatcher)
    run = fresh(run)
    assert (run.status, run.failures, run.interruptions) == ("READY", 0, 0)
    assert [error["kind"] for error in run.errors] == ["shutdown"]
    assert kit.ledger.rows(run)[0].ended_at is None


def test_an_at_most_once_run_that_is_cut_short_fails(kit: Kit) -> None:
    """on_lost="fail" never repeats a body whose end nobody saw."""
    dispatcher = kit.dispatchers(shutdown_timeout=0.1)
    run = tasks.gated_once.delay("work")
    kit.gate.wait_until_reached("work")
    dispatcher.terminate()
    assert_nothing_left_behind(dispatcher)
    assert (fresh(run).status, [error["kind"] for error in fresh(run).errors]) == ("FAILED", ["shutdown"])


@pytest.mark.slow
def test_deploys_use_up_no_attempt(kit: Kit) -> None:
    """Interrupted by a shutdown is an outcome of its own: neither a failure nor a loss, however often."""
    run = tasks.gated.apply_async(("work-{attempt}", "done"), max_attempts=1)
    for number in range(1, 6):
        dispatcher = kit.dispatchers(is_awaited=False, shutdown_timeout=0.1)
        kit.gate.wait_until_reached(f"work-{number}")
        dispatcher.terminate()
        assert_nothing_left_behind(dispatcher)
        run = fresh(run)
        assert (run.status, run.attempt, run.failures, run.interruptions) == ("READY", number, 0, 0)
    kit.gate.open("work-6")
    kit.dispatchers()
    (run,) = wait_until_final(run)
    assert (run.status, run.result, run.attempt) == ("SUCCESSFUL", "done", 6)
    assert [error["kind"] for error in run.errors] == ["shutdown"] * 5


def test_a_bounded_dispatcher_ends_by_itself(kit: Kit) -> None:
    runs = tasks.note.delay_many([(n,) for n in range(7)])
    assert kit.dispatchers("few", is_awaited=False, max_runs=3).exit_code() == 0
    assert sorted(statuses(runs)) == ["READY"] * 4 + ["SUCCESSFUL"] * 3
    assert kit.dispatchers("burst", is_awaited=False, burst=True).exit_code() == 0
    assert statuses(runs) == ["SUCCESSFUL"] * 7
    assert not Lease.objects.exists()


def test_a_project_that_is_imported_when_the_end_has_come_starts_nothing(kit: Kit, tmp_path: Path) -> None:
    sabotage = tmp_path / "sabotage"
    sabotage.write_text("zygote wait")
    a = kit.dispatchers("a", is_awaited=False)
    wait_for(lambda: (tmp_path / "sabotaged").exists() and a.lease_id, what="a zygote that imports, and a lease")
    a.terminate()
    wait_for(lambda: not Lease.objects.exists(), what="the lease surrendered")
    sabotage.unlink()
    assert_nothing_left_behind(a)
    assert "Ready:" in a.log
    assert "Traceback" not in a.log
