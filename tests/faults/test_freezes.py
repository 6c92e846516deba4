"""SIGSTOP, one process at a time: who stands still is found out by another, and never runs beside a successor."""

import psutil
import pytest

from django_dispatch import Task
from django_dispatch.control import ask
from django_dispatch.models import Lease
from tests.kit import tasks
from tests.kit.dispatchers import Dispatcher
from tests.kit.fixtures import Kit
from tests.kit.relay import Relay
from tests.kit.runs import wait_until_final
from tests.kit.waiting import wait_for


def zygote_of(dispatcher: Dispatcher) -> int:
    zygote = dispatcher.zygote_pid
    assert zygote
    return zygote


@pytest.mark.parametrize("task", [tasks.gated, tasks.agated])
def test_the_timeout_ends_the_run_of_a_frozen_executor(kit: Kit, task: Task) -> None:
    """It cannot obey, so it is killed after the grace; the slot comes back with a fresh executor."""
    is_async = task is tasks.agated
    a = kit.dispatchers(async_concurrency=int(is_async), settings={"CANCEL_GRACE": 0.2})
    run = task.apply_async(("never",), timeout=1)
    kit.gate.wait_until_reached("never")
    (frozen,) = [row.pid for row in kit.ledger.rows(run)]
    kit.freeze(frozen)
    (run,) = wait_until_final(run)
    assert (run.status, [error["kind"] for error in run.errors]) == ("FAILED", ["timeout"])
    a.wait_for_log(f"did not stop within 0.2 s; its executor {frozen} is killed")
    wait_for(lambda: not psutil.pid_exists(frozen), what="the frozen executor gone")
    (after,) = wait_until_final((tasks.anote if is_async else tasks.note).delay())
    assert after.status == "SUCCESSFUL"


@pytest.mark.slow
def test_a_free_executor_that_is_frozen_loses_what_it_was_given(kit: Kit) -> None:
    """A run that was assigned and has not started is taken back; it costs no attempt."""
    a = kit.dispatchers()
    (frozen,) = a.executor_pids
    kit.freeze(frozen)
    (run,) = wait_until_final(tasks.note.delay())
    assert (run.status, run.attempt, run.errors, kit.ledger.starts(run)) == ("SUCCESSFUL", 1, [], 1)
    assert f"Executor {frozen} does not start what it was given; it is replaced." in a.log


@pytest.mark.slow
def test_a_frozen_zygote_is_replaced(kit: Kit) -> None:
    """Who is to kill bodies in time must be awake: else it and its executors are killed, and runs are repeated."""
    a = kit.dispatchers()
    run = tasks.gated.delay("work-{attempt}")
    kit.gate.wait_until_reached("work-1")
    lease_id, zygote = a.lease_id, zygote_of(a)
    kit.freeze(zygote)
    kit.gate.wait_until_reached("work-2")
    assert "The zygote has stood still for" in a.log
    assert zygote_of(a) != zygote
    kit.gate.open("work-2")
    (run,) = wait_until_final(run)
    assert (run.status, run.attempt, run.interruptions) == ("SUCCESSFUL", 2, 1)
    assert kit.ledger.overlaps(run) == []
    assert a.lease_id == lease_id, "the lease was never in danger"


@pytest.mark.slow
def test_of_two_zygotes_either_is_missed_when_it_is_frozen(kit: Kit) -> None:
    """One of the old code that still has a body, and its successor: each is watched, and only its own bodies suffer."""
    a = kit.dispatchers()
    old_run, old = tasks.gated.delay("old-{attempt}"), zygote_of(a)
    kit.gate.wait_until_reached("old-1")
    assert ask("recycle", timeout=20).answers[0]["is_new"]
    new_run = tasks.gated.delay("new-{attempt}")
    kit.gate.wait_until_reached("new-1")
    (new,) = [psutil.Process(row.pid).ppid() for row in kit.ledger.rows(new_run)]
    assert new != old
    kit.freeze(new)
    kit.gate.wait_until_reached("new-2")
    kit.gate.open("new-2")
    wait_until_final(new_run)
    assert kit.ledger.starts(old_run) == 1
    kit.freeze(old)
    kit.gate.wait_until_reached("old-2")
    kit.gate.open("old-2")
    for run in wait_until_final(old_run, new_run):
        assert (run.status, run.attempt, run.interruptions) == ("SUCCESSFUL", 2, 1)
        assert kit.ledger.overlaps(run) == []


@pytest.mark.slow
def test_bodies_under_a_frozen_zygote_are_dead_before_the_lease_expires(kit: Kit, relay: Relay) -> None:
    """The dispatcher looks after the dead man's switch: what that does not kill in time, it kills itself."""
    a = kit.dispatchers(lease_ttl=2, processes=2, database_url=relay.url)
    run, program = tasks.stubborn.delay("never"), tasks.run_sleep.delay(600)
    kit.gate.wait_until_reached("never")
    (sleep,) = wait_for(lambda: [child for child in a.processes() if "sleep" in child.name()], what="a sleep")
    lease, zygote = Lease.objects.get(), zygote_of(a)
    kit.freeze(zygote)
    relay.swallow()
    a.wait_for_log("The zygote has not killed what had to be dead")
    wait_for(lambda: not psutil.pid_exists(zygote), what="the frozen zygote gone")
    wait_for(lambda: not sleep.is_running(), what="what a body started is gone too")
    assert kit.ledger.rows(run)[0].last_seen_at < Lease.objects.get(pk=lease.pk).expires_at
    assert kit.ledger.rows(program)[0].ended_at is None
    wait_for(lambda: a.log.count("Ready:") == 2, 30, what="another zygote")
