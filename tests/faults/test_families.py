"""What a body has started ends with its dispatcher, and with its zygote; and what a signal to all does not reach."""

import os
import signal
from pathlib import Path

import psutil
import pytest

from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import wait_until_final
from tests.kit.waiting import wait_for

from .test_left_running import programs, start


@pytest.mark.parametrize("is_killed", [True, False], ids=["kill -9", "SIGTERM"])
def test_nothing_runs_on_when_the_dispatcher_is_gone(kit: Kit, is_killed: bool) -> None:
    a = kit.dispatchers(settings={"CANCEL_GRACE": 0.3}, shutdown_timeout=0)
    start(kit, a, tasks.leave_programs_and_hang, "hang")
    if is_killed:
        a.kill9()
    else:
        a.terminate()
        assert a.exit_code() == 0
    wait_for(lambda: not a.processes(), 1, what="all processes dead")


def test_what_a_body_started_dies_with_a_zygote_that_it_killed(kit: Kit) -> None:
    """Bodies of all executors are lost and repeated; the dispatcher kills the process groups that are left."""
    a = kit.dispatchers(processes=2)
    neighbour = tasks.gated.delay("work-{attempt}", "by attempt {attempt}")
    kit.gate.wait_until_reached("work-1")
    run = tasks.kill_zygote.delay()
    kit.gate.wait_until_reached("work-2", seconds=30)
    kit.gate.open("work-2")
    run, neighbour = wait_until_final(run, neighbour)
    assert (run.status, run.result, run.interruptions) == ("SUCCESSFUL", "again", 1)
    assert (neighbour.status, neighbour.result, neighbour.interruptions) == ("SUCCESSFUL", "by attempt 2", 1)
    assert programs(a) == []
    assert not any(kit.ledger.overlaps(each) for each in (run, neighbour))


def test_the_zygote_is_out_of_reach_of_what_stops_a_whole_job(kit: Kit) -> None:
    """It leads a session of its own: a signal to the dispatcher's process group misses the dead man's switch."""
    a = kit.dispatchers(lease_ttl=2)
    tasks.stubborn.delay("hold")
    kit.gate.wait_until_reached("hold")
    executors = [psutil.Process(pid) for pid in a.executor_pids]
    os.killpg(a.pid, signal.SIGSTOP)
    wait_for(lambda: not any(process.is_running() for process in executors), what="every executor dead")
    left = "SELECT clock_timestamp() < expires_at FROM django_dispatch_lease"
    assert kit.sql.execute(left).fetchone() == (True,)


def test_executors_die_with_their_zygote_whatever_the_dispatcher_does(kit: Kit) -> None:
    """The kernel kills them: nobody else is left who could."""
    a = kit.dispatchers()
    tasks.stubborn.delay("hold")
    kit.gate.wait_until_reached("hold")
    zygote, executors = a.zygote_pid, [psutil.Process(pid) for pid in a.executor_pids]
    assert zygote
    kit.freeze(a.pid)
    os.kill(zygote, signal.SIGKILL)
    wait_for(lambda: not any(is_alive(process) for process in executors), 5, what="every executor dead")


def test_a_zygote_that_still_imports_the_project_dies_with_its_dispatcher(kit: Kit, tmp_path: Path) -> None:
    (tmp_path / "sabotage").write_text("zygote hang")
    a = kit.dispatchers(is_awaited=False)
    wait_for((tmp_path / "sabotaged").exists, 30, what="the zygote at its import")
    a.kill9()
    wait_for(lambda: not a.processes(), 5, what="all processes dead")


def is_alive(process: psutil.Process) -> bool:
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False
