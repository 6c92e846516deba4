"""A lease that is lost: whoever held it can no longer write, run or start anything under it."""

from uuid import uuid4

import psutil
import pytest

from django_dispatch.models import Lease, Run
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import fresh, wait_until_final
from tests.kit.waiting import wait_for

SHORTEST_TTL_SECONDS = 1  # that the settings allow
NO_LIVE_LEASE = """
    SELECT count(*) FROM django_dispatch_run r LEFT JOIN django_dispatch_lease l ON l.id = r.lease_id
    WHERE r.status = 'RUNNING' AND (l.id IS NULL OR l.expires_at < clock_timestamp())
"""


@pytest.mark.slow
def test_a_frozen_family_that_finishes_late_changes_nothing(kit: Kit) -> None:
    """An outcome is written only where lease and epoch still match: here the whole family slept past its lease."""
    a = kit.dispatchers("a", lease_ttl=2)
    run = tasks.gated.delay("work-{attempt}", "by attempt {attempt}")
    kit.gate.wait_until_reached("work-1")
    kit.dispatchers("b", lease_ttl=2)
    zygote, executors = a.zygote_pid, a.executor_pids
    assert zygote
    old = a.lease_id
    kit.freeze(a.pid, zygote, *executors)
    kit.gate.wait_until_reached("work-2")

    kit.freeze.thaw(*executors)
    kit.gate.open("work-1")
    wait_for(lambda: kit.ledger.rows(run)[0].ended_at, what="the first attempt's body ended")
    kit.freeze.thaw(a.pid)
    a.wait_for_log("is lost")
    assert fresh(run).status == "RUNNING"
    kit.freeze.thaw(zygote)
    wait_for(lambda: a.lease_id != old, what="a new lease")

    kit.gate.open("work-2")
    (run,) = wait_until_final(run)
    assert (run.status, run.result, run.attempt) == ("SUCCESSFUL", "by attempt 2", 2)
    assert (run.interruptions, run.failures) == (1, 0)
    assert [error["kind"] for error in run.errors] == ["lost"]
    assert f"Run {run.pk} tests.kit.tasks.gated SUCCESSFUL" not in a.log


@pytest.mark.parametrize(
    ("queue", "epoch"),
    [("one", 1), ("two", 0)],
    ids=["claimed again under the same lease", "claimed again with the same epoch"],
)
def test_an_outcome_is_written_only_where_lease_and_epoch_still_match(kit: Kit, queue: str, epoch: int) -> None:
    a = kit.dispatchers("a", queues="one", processes=2)
    b = kit.dispatchers("b", queues="two")
    run = tasks.gated.apply_async(("work-{attempt}", "by attempt {attempt}"), queue="one")
    kit.gate.wait_until_reached("work-1")
    kit.sql.execute(
        "UPDATE django_dispatch_run SET status = 'READY', lease_id = NULL, queue = %s, epoch = %s", [queue, epoch]
    )
    kit.gate.wait_until_reached("work-2")

    kit.gate.open("work-1")
    a.wait_for_log("lease lost; its outcome is dropped")
    taker = a if queue == "one" else b
    assert (fresh(run).status, fresh(run).lease_id, fresh(run).result) == ("RUNNING", taker.lease_id, None)

    kit.gate.open("work-2")
    (run,) = wait_until_final(run)
    assert (run.status, run.result, run.epoch) == ("SUCCESSFUL", "by attempt 2", epoch + 1)


@pytest.mark.slow
def test_a_body_whose_run_was_taken_away_is_stopped_after_a_reconnect(kit: Kit) -> None:
    """Running here but not ours: a failover may have lost the claim, or somebody changed the row. No slot is free.

    Only a sweep meets the broken connection.
    """
    a = kit.dispatchers("a", queues="a", processes=2, lease_ttl=4, poll_interval=3.9)
    taken, kept = (tasks.gated.apply_async((f"{name}-{{attempt}}",), queue="a") for name in ("taken", "kept"))
    kit.gate.wait_until_reached("taken-1", "kept-1")
    kit.sql.execute(
        "UPDATE django_dispatch_run SET status = 'READY', lease_id = NULL, queue = 'b' WHERE id = %s", [taken.pk]
    )
    assert psutil.pid_exists(kit.ledger.rows(taken)[0].pid)
    look = "SELECT query LIKE '%%cancel_requested_at IS NOT NULL', query_start FROM pg_stat_activity WHERE pid = %s"
    (session,) = kit.cut.sessions("store")
    first = kit.sql.execute(look, [session]).fetchone()
    wait_for(
        lambda: (row := kit.sql.execute(look, [session]).fetchone()) and row[0] and row != first,
        what="a look for cancellations, so that the next one comes later than a sweep",
    )
    kit.cut("store")
    a.wait_for_log("runs what is not ours any more; it is killed.")
    wait_for(lambda: not psutil.pid_exists(kit.ledger.rows(taken)[0].pid), what="the body dead")
    kit.dispatchers("b", queues="b")
    kit.gate.open("taken-2", "kept-1")
    kept, taken = wait_until_final(kept, taken)
    assert (kept.status, kept.attempt, kit.ledger.starts(kept)) == ("SUCCESSFUL", 1, 1)
    assert (taken.status, taken.attempt, kit.ledger.overlaps(taken)) == ("SUCCESSFUL", 2, [])


@pytest.mark.slow
def test_the_bodies_of_a_frozen_dispatcher_are_dead_before_its_lease_expires(kit: Kit) -> None:
    """Self-fencing: the zygote is the dead man's switch, so two bodies of one run never overlap; at any TTL."""
    options = {"lease_ttl": SHORTEST_TTL_SECONDS, "poll_interval": 0.2, "async_concurrency": 2, "processes": 3}
    a = kit.dispatchers("a", queues="default,a", **options)
    runs = [tasks.gated.delay("work-{attempt}"), tasks.agated.delay("work-{attempt}"), tasks.stubborn.delay("hold")]
    late = tasks.gated.delay("late-{attempt}", "by attempt {attempt}")
    kit.gate.wait_until_reached("work-1", times=2)
    kit.gate.wait_until_reached("hold", "late-1")
    lease = Lease.objects.get(pk=a.lease_id)
    executors = [psutil.Process(pid) for pid in a.executor_pids]
    kit.freeze(a.pid)
    kit.gate.open("late-1", "late-2")  # its outcome waits in the socket
    wait_for(lambda: not any(process.is_running() for process in executors), what="every executor dead")
    lease.refresh_from_db()
    assert all(row.last_seen_at < lease.expires_at for row in kit.ledger.rows())

    kit.dispatchers("b", queues="default", **options)
    kit.gate.wait_until_reached("work-2", times=2)
    kit.gate.open("work-2", "hold")
    (late,) = wait_until_final(late)

    kit.freeze.thaw(a.pid)
    a.wait_for_log(f"Lease {lease.pk} is lost")
    runs = [*wait_until_final(*runs), late]
    assert [(run.status, run.attempt, kit.ledger.starts(run)) for run in runs] == [("SUCCESSFUL", 2, 2)] * 4
    assert [kit.ledger.overlaps(run) for run in runs] == [[], [], [], []]
    assert fresh(late).result == "by attempt 2"
    assert f"Run {late.pk} {late.task} SUCCESSFUL" not in a.log
    again = tasks.note.apply_async(queue="a")
    (again,) = wait_until_final(again)
    assert again.status == "SUCCESSFUL"
    assert a.lease_id != lease.pk


@pytest.mark.parametrize("is_killed", [False, True], ids=["owner lives", "owner is killed"])
def test_a_deleted_lease_gives_its_runs_back_and_stops_their_bodies(kit: Kit, is_killed: bool) -> None:
    """Reclaim is a sweep for RUNNING runs whose lease is expired or does not exist."""
    a = kit.dispatchers("a")
    if is_killed:
        kit.dispatchers("b")
    run = tasks.gated.delay("work-{attempt}")
    kit.gate.wait_until_reached("work-1")
    owner = a if fresh(run).lease_id == a.lease_id else kit.dispatchers.all[1]
    Lease.objects.filter(pk=owner.lease_id).delete()
    if is_killed:
        owner.kill9()
    else:
        owner.wait_for_log("is lost: it expired or was reclaimed")
    kit.gate.wait_until_reached("work-2")
    assert kit.sql.execute(NO_LIVE_LEASE).fetchone() == (0,)
    kit.gate.open("work-2")
    (run,) = wait_until_final(run)
    assert (run.status, run.attempt, run.interruptions) == ("SUCCESSFUL", 2, 1)
    assert run.errors[0]["message"] == "The dispatcher was lost: its lease does not exist"
    assert kit.ledger.overlaps(run) == []


def test_a_run_of_a_lease_that_never_was_is_run(kit: Kit) -> None:
    """Reclaim finds RUNNING runs whose lease does not exist; at-most-once runs fail at once."""
    orphans = [
        Run.objects.create(task=f"tests.kit.tasks.{name}", status="RUNNING", lease_id=uuid4(), epoch=1, attempt=1)
        for name in ("note", "note")
    ]
    Run.objects.filter(pk=orphans[1].pk).update(on_lost="fail")
    kit.dispatchers()
    run, doomed = wait_until_final(*orphans)
    assert (run.status, run.attempt, run.epoch, run.interruptions) == ("SUCCESSFUL", 2, 2, 1)
    assert (doomed.status, doomed.attempt, kit.ledger.starts(doomed)) == ("FAILED", 1, 0)


def test_a_lost_lease_is_followed_by_another_one_only_when_its_bodies_are_dead(kit: Kit) -> None:
    """A new lease is taken only when every body of the old one is dead; here it takes a while, as the zygote sleeps."""
    a = kit.dispatchers(settings={"LEASE_MARGIN": 1.5}, processes=2)
    run = tasks.stubborn.delay("hold")
    kit.gate.wait_until_reached("hold")
    old, zygote = a.lease_id, a.zygote_pid
    assert zygote
    kit.freeze(zygote)
    Lease.objects.filter(pk=old).delete()
    a.wait_for_log("is lost")
    wait_for(lambda: a.lease_id, what="a new lease")
    assert kit.ledger.rows(run)[0].last_seen_at < Lease.objects.get().acquired_at
    kit.gate.open("hold")
    (run,) = wait_until_final(run)
    assert (run.status, kit.ledger.overlaps(run)) == ("SUCCESSFUL", [])
