"""``kill -9``: of the dispatcher, of its zygote. Nothing of theirs goes on, and every run ends, once."""

import os
import signal
import subprocess
import sys
from datetime import datetime
from typing import Any

import psutil
import pytest

from django_dispatch.dispatcher import process
from django_dispatch.models import Lease, Run
from tests.kit import tasks
from tests.kit.dispatchers import Dispatcher
from tests.kit.fixtures import Kit
from tests.kit.runs import wait_until_final
from tests.kit.waiting import wait_for


def wait_until_childless(dispatcher: Dispatcher) -> None:
    """No executor, and nothing that one started, outlives its dispatcher by more than a second."""
    wait_for(lambda: not dispatcher.processes(), 1, what="all processes of the dispatcher dead")


@pytest.mark.slow
def test_every_run_in_flight_ends_once_after_kill_9(kit: Kit) -> None:
    a = kit.dispatchers("a", processes=2, async_concurrency=2)
    held = [task.delay("work-{attempt}") for task in (tasks.gated, tasks.agated) for _ in range(2)]
    waiting = tasks.note.delay_many([(number,) for number in range(20)])
    kit.gate.wait_until_reached("work-1", times=4)
    a.kill9()
    wait_until_childless(a)
    kit.dispatchers("b", processes=2, async_concurrency=2)
    kit.gate.wait_until_reached("work-2", times=4)
    kit.gate.open("work-2")
    runs = wait_until_final(*held, *waiting)
    assert {run.status for run in runs} == {"SUCCESSFUL"}
    assert [(run.attempt, kit.ledger.starts(run)) for run in runs] == [(2, 2)] * 4 + [(1, 1)] * 20
    assert not any(kit.ledger.overlaps(run) for run in runs)
    assert [run.result for run in runs[4:]] == list(range(20))
    assert not Lease.objects.filter(node="a").exists()


def test_a_neighbour_reclaims_from_a_dead_process_at_once(kit: Kit) -> None:
    """A dead process on the same host is reclaimed without waiting for its lease to expire, half a minute later."""
    a = kit.dispatchers("a", lease_ttl=30, queues="default")
    run, once = tasks.gated.delay("work-{attempt}"), tasks.gated_once.delay("never")
    kit.gate.wait_until_reached("work-1")
    once = Run.objects.get(pk=once.pk)
    kit.sql.execute(
        "UPDATE django_dispatch_run SET status = 'RUNNING', lease_id = %s, attempt = 1 WHERE id = %s",
        [a.lease_id, once.pk],
    )
    a.kill9()
    b = kit.dispatchers("b", lease_ttl=30)
    kit.gate.wait_until_reached("work-2", seconds=10)
    kit.gate.open("work-2")
    (run, once) = wait_until_final(run, once)
    (error,) = run.errors
    expected = f"The dispatcher was lost: its process died (node a, pid {a.pid} on {process.host_name()})"
    assert (run.status, error["message"], error["executor"]) == ("SUCCESSFUL", expected, "a")
    seconds = (datetime.fromisoformat(error["at"]) - Lease.objects.get(pk=b.lease_id).acquired_at).total_seconds()
    assert seconds < 2, "a dispatcher that was just started looks who is dead"
    assert (once.status, kit.ledger.starts(once), once.errors[0]["kind"]) == ("FAILED", 0, "lost")


@pytest.mark.slow
@pytest.mark.parametrize("is_listening", [True, False], ids=["listening", "polling"])
def test_a_neighbour_runs_again_what_a_killed_dispatcher_had_within_two_seconds(kit: Kit, is_listening: bool) -> None:
    """Also when that one was born and killed between two sweeps, which are minutes apart here."""
    how: dict[str, Any] = {"lease_ttl": 600} if is_listening else {"lease_ttl": 600, "no_listen": True}
    kit.dispatchers("b", queues="default", **how)
    if is_listening:
        wait_for(lambda: kit.cut.sessions("listener"), what="the listener")
    a = kit.dispatchers("a", queues="a", **how)
    run = tasks.gated.apply_async(("work-{attempt}",), queue="a")
    kit.gate.wait_until_reached("work-1")
    kit.sql.execute("UPDATE django_dispatch_run SET queue = 'default'")
    (killed_at,) = kit.sql.execute("SELECT clock_timestamp()").fetchone() or (None,)
    a.kill9()
    kit.gate.wait_until_reached("work-2")
    kit.gate.open("work-2")
    (run,) = wait_until_final(run)
    assert (kit.ledger.rows(run)[1].started_at - killed_at).total_seconds() < 2
    assert (run.status, kit.ledger.overlaps(run)) == ("SUCCESSFUL", [])


@pytest.mark.slow
def test_another_host_reclaims_only_after_expiry(kit: Kit) -> None:
    """Nobody can tell from afar whether a dispatcher is dead: its lease has to expire, and nothing else has to."""
    a = kit.dispatchers("a", lease_ttl=2, host="far-away")
    run = tasks.gated.apply_async(("work-{attempt}",), timeout=600)
    kit.gate.wait_until_reached("work-1")
    assert Lease.objects.get().host == "far-away"
    kit.dispatchers("b", lease_ttl=2)
    a.kill9()
    expires_at = Lease.objects.get(node="a").expires_at
    kit.gate.wait_until_reached("work-2")
    kit.gate.open("work-2")
    (run,) = wait_until_final(run)
    first, second = kit.ledger.rows(run)
    assert first.last_seen_at < expires_at < second.started_at
    reason = f"The dispatcher was lost: its lease expired (node a, pid {a.pid} on far-away)"
    assert [error["message"] for error in run.errors] == [reason]


def test_a_dispatcher_is_dead_only_when_its_executors_are() -> None:
    """Reclaim at once is for a dead dispatcher, provided that its zygote and executors are gone too."""
    mark = f"mark-of-{os.getpid()}"
    ended = subprocess.Popen([sys.executable, "-c", ""])
    neighbour = {**process.identity(mark), "dispatcher": [ended.pid, process.start_time(ended.pid)]}
    ended.wait()
    environment = {**os.environ, process.BOOT_MARK: mark}
    executor = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, env=environment)
    wait_for(lambda: mark in str(psutil.Process(executor.pid).environ()))
    assert not process.is_dead(neighbour)
    executor.kill()
    executor.wait()
    assert process.is_dead(neighbour)
    assert not process.is_dead({**neighbour, "dispatcher": [os.getpid(), process.start_time(os.getpid())]})
    assert process.is_dead({**neighbour, "dispatcher": [os.getpid(), 1]}), "a process that has its pid by now"
    for other_machine in ({"boot_id": "another"}, {"pid_namespace": "pid:[1]"}):
        assert not process.is_dead({**neighbour, **other_machine})
    assert not process.is_dead({}), "a platform without /proc"


def test_what_a_body_started_dies_with_its_dispatcher(kit: Kit) -> None:
    """Each executor leads a process group that is killed whole."""
    a = kit.dispatchers()
    tasks.run_sleep.delay(600)
    wait_for(lambda: any("sleep" in child.name() for child in a.processes()), what="a sleep that the body started")
    a.kill9()
    wait_until_childless(a)


def test_the_statement_of_a_killed_body_does_not_run_on(kit: Kit) -> None:
    """Nor does its SQL outlive it: PostgreSQL looks, within the lease's margin, whether its client is still there."""
    a = kit.dispatchers()
    tasks.sleep_in_sql.delay(600)
    sleeping = "SELECT 1 FROM pg_stat_activity WHERE datname = current_database() AND wait_event = 'PgSleep'"
    wait_for(lambda: kit.sql.execute(sleeping).fetchone())
    assert kit.cut.sessions("executor")
    a.kill9()
    wait_for(lambda: not kit.cut.sessions("executor"), 2, what="no session of an executor left")


def test_a_killed_zygote_takes_its_executors_along_and_is_replaced(kit: Kit) -> None:
    """PR_SET_PDEATHSIG: executors die with the zygote, their runs are lost and repeated, the dispatcher lives on."""
    a = kit.dispatchers()
    run = tasks.gated.delay("work-{attempt}")
    kit.gate.wait_until_reached("work-1")
    zygote, executors = a.zygote_pid, [psutil.Process(pid) for pid in a.executor_pids]
    assert zygote
    os.kill(zygote, signal.SIGKILL)
    psutil.wait_procs(executors, timeout=1)
    assert not any(p.is_running() and p.status() != psutil.STATUS_ZOMBIE for p in executors)
    kit.gate.wait_until_reached("work-2")
    assert a.zygote_pid not in (None, zygote)
    kit.gate.open("work-2")
    (run,) = wait_until_final(run)
    assert (run.status, run.interruptions, kit.ledger.overlaps(run)) == ("SUCCESSFUL", 1, [])


def test_a_run_that_kills_its_executor_is_lost_for_good_after_its_third_start(kit: Kit) -> None:
    """A run's outcome is always recorded; the attempt is counted when it is claimed, and losses have a cap."""
    a = kit.dispatchers()
    deadly, others = tasks.kill_me.delay(), tasks.note.delay_many([(n,) for n in range(5)])
    deadly, *others = wait_until_final(deadly, *others)
    assert (deadly.status, deadly.attempt, deadly.interruptions, deadly.failures) == ("FAILED", 3, 3, 0)
    assert {(e["kind"], e["message"], e["exit_status"]) for e in deadly.errors} == {
        ("lost", "Its executor died: killed by SIGKILL.", -9)
    }
    first, second, third = kit.ledger.rows(deadly)
    assert (third.started_at - second.started_at).total_seconds() > 1.9, "reclaim backs off"
    assert len({first.pid, second.pid, third.pid}) == 3
    assert {run.status for run in others} == {"SUCCESSFUL"}
    a.terminate()
    assert a.exit_code() == 0


@pytest.mark.slow
def test_a_run_that_kills_its_dispatcher_is_lost_for_good_after_its_third_start(kit: Kit) -> None:
    """The same cap holds when the run takes the whole dispatcher down, each time."""
    run = tasks.kill_dispatcher.delay()
    for node in "abc":
        kit.dispatchers(node, is_awaited=False, lease_ttl=30).exit_code()
    kit.dispatchers("d")
    (run,) = wait_until_final(run)
    assert (run.status, run.attempt, run.interruptions) == ("FAILED", 3, 3)
    assert all(e["message"].startswith("The dispatcher was lost: its process died (node ") for e in run.errors)
    assert kit.ledger.starts(run) == 3


@pytest.mark.parametrize("role", ["executor", "claims", "store", "keeper"])
def test_a_terminated_session_costs_no_run(kit: Kit, role: str) -> None:
    """The LeaseKeeper and the store have connections of their own, opened again when they are lost; so have bodies."""
    a = kit.dispatchers(database={"CONN_MAX_AGE": 600})
    wait_until_final(tasks.query.delay())
    run = tasks.gated.delay("work")
    kit.gate.wait_until_reached("work")
    lease_id, renewed_at = a.lease_id, Lease.objects.get().renewed_at
    (session,) = kit.cut.sessions(role)
    assert kit.cut(role) == 1
    wait_for(lambda: session not in kit.cut.sessions(role), what="the session gone")
    kit.gate.open("work")
    runs = wait_until_final(run, tasks.query.delay())
    assert [(run.status, run.attempt, run.interruptions) for run in runs] == [("SUCCESSFUL", 1, 0)] * 2
    assert kit.ledger.starts(run) == 1, "its outcome was kept"
    wait_for(lambda: Lease.objects.get().renewed_at > renewed_at, what="a renewal")
    assert a.lease_id == lease_id
