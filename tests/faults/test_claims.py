"""What a dispatcher claims, and what it costs: no more than it can start, no more writes than needed."""

from collections import Counter
from collections.abc import Iterator
from typing import Any
from uuid import UUID

import pytest

from django_dispatch.control import ask
from django_dispatch.dispatcher.claims import LEAST_BESIDE
from django_dispatch.models import Lease, Run
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.relay import Relay
from tests.kit.runs import fresh, statuses, wait_for_status, wait_until_final
from tests.kit.waiting import wait_for

COUNT_WRITES = """
    CREATE TABLE kit_writes (op text, kind text, status text);
    CREATE FUNCTION kit_count() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      INSERT INTO kit_writes VALUES (TG_OP, TG_TABLE_NAME, CASE TG_TABLE_NAME WHEN 'django_dispatch_run' THEN
        to_jsonb(NEW)->>'status' END);
      RETURN NULL;
    END $$;
    CREATE TRIGGER kit_count AFTER INSERT OR UPDATE ON django_dispatch_run FOR EACH ROW EXECUTE FUNCTION kit_count();
    CREATE TRIGGER kit_count AFTER INSERT OR UPDATE ON django_dispatch_lease FOR EACH ROW EXECUTE FUNCTION kit_count();
"""

# No lock_timeout ends the wait; and no statement_timeout that of the claims after it in the same session.
HOLD_CLAIMS = """
    CREATE FUNCTION kit_hold() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      PERFORM set_config('lock_timeout', '0', false), set_config('statement_timeout', '0', false);
      PERFORM pg_advisory_xact_lock(42);
      RETURN NULL;
    END $$;
    CREATE TRIGGER kit_hold AFTER UPDATE ON django_dispatch_run
    FOR EACH ROW WHEN (NEW.status = 'RUNNING') EXECUTE FUNCTION kit_hold();
"""


@pytest.fixture
def writes(kit: Kit) -> Iterator[Any]:
    """Count every row version that anybody writes: (operation, table, status) → how many."""
    kit.sql.execute(COUNT_WRITES)
    yield lambda: Counter(kit.sql.execute("SELECT op, kind, status FROM kit_writes").fetchall())
    kit.dispatchers.close()
    kit.sql.execute("DROP FUNCTION kit_count CASCADE; DROP TABLE kit_writes")


def test_a_run_costs_one_insert_one_claim_and_one_finish(kit: Kit, writes: Any) -> None:
    """And renewing is one update a dispatcher, whatever it holds; an idle one writes nothing else."""
    kit.dispatchers(processes=2, async_concurrency=2)
    held = [tasks.gated.delay("work"), tasks.agated.delay("work")]
    runs = tasks.quick.delay_many([()] * 200)
    kit.gate.wait_until_reached("work", times=2)
    wait_until_final(*runs)
    renewed_at = Lease.objects.get().renewed_at
    wait_for(lambda: Lease.objects.get().renewed_at > renewed_at, what="a renewal")
    kit.gate.open("work")
    wait_until_final(*held)
    counts = writes()
    lease = Lease.objects.get()
    renewals = counts.pop(("UPDATE", "django_dispatch_lease", None))
    assert renewals <= (lease.renewed_at - lease.acquired_at).total_seconds() / 0.9 + 1
    assert counts == {
        ("INSERT", "django_dispatch_lease", None): 1,
        ("INSERT", "django_dispatch_run", "READY"): 202,
        ("UPDATE", "django_dispatch_run", "RUNNING"): 202,
        ("UPDATE", "django_dispatch_run", "SUCCESSFUL"): 202,
    }


def test_what_waits_behind_a_run_that_turns_out_long_is_taken_back(kit: Kit) -> None:
    """An assigned run that has not started can be taken back, and costs no attempt."""
    kit.dispatchers(queues="default")
    wait_until_final(*tasks.sometimes_slow.delay_many([()] * 300))
    long, *behind = tasks.sometimes_slow.delay_many([("work",)] + [()] * 20)
    kit.gate.wait_until_reached("work")
    wait_for(lambda: Run.objects.filter(status="READY").count() == len(behind), what="all given back")
    for run in map(fresh, behind):
        assert (run.attempt, run.started_at, run.lease_id, run.interruptions) == (0, None, None, 0)
    kit.dispatchers("b", queues="default")
    assert {(run.status, run.attempt) for run in wait_until_final(*behind)} == {("SUCCESSFUL", 1)}
    kit.gate.open("work")
    (long,) = wait_until_final(long)
    assert (long.status, long.attempt, kit.ledger.starts(long)) == ("SUCCESSFUL", 1, 1)


def test_a_dispatcher_claims_no_more_than_it_can_start(kit: Kit) -> None:
    runs = [tasks.gated.delay("work") for _ in range(6)] + [tasks.agated.delay("work") for _ in range(6)]
    kit.dispatchers("a", processes=2, async_concurrency=3)
    kit.gate.wait_until_reached("work", times=5)
    assert Run.objects.filter(status="RUNNING").count() == 5
    kit.dispatchers("b", processes=4, async_concurrency=3)
    kit.gate.wait_until_reached("work", times=12)
    kit.gate.open("work")
    assert {(run.status, run.attempt) for run in wait_until_final(*runs)} == {("SUCCESSFUL", 1)}


@pytest.mark.slow
def test_a_blocked_event_loop_keeps_no_runs_from_others(kit: Kit) -> None:
    """What it has not started is given back, and it gets no more until it turns again."""
    a = kit.dispatchers("a", queues="default,a", async_concurrency=4)
    blocking = tasks.blocks.apply_async(("work",), queue="a")
    kit.gate.wait_until_reached("work")
    runs = tasks.anote.delay_many([(n,) for n in range(2)])
    a.wait_for_log("The event loop of executor")
    wait_for(lambda: set(statuses(runs)) == {"READY"}, what="all given back")
    kit.dispatchers("b", queues="default", async_concurrency=4)
    assert {(run.status, run.attempt) for run in wait_until_final(*runs)} == {("SUCCESSFUL", 1)}
    kit.gate.open("work")
    after = tasks.anote.apply_async(queue="a")
    assert [run.status for run in wait_until_final(blocking, after)] == ["SUCCESSFUL"] * 2


def test_one_lane_does_not_hold_up_the_other(kit: Kit) -> None:
    """While every sync slot is taken, async runs start, also from behind a queue of sync ones."""
    kit.dispatchers(async_concurrency=1)
    held = tasks.gated.delay_many([("work",)] * 20)
    kit.gate.wait_until_reached("work")
    (passing,) = wait_until_final(tasks.anote.delay(), seconds=10)
    assert passing.status == "SUCCESSFUL"
    assert Run.objects.filter(status="READY").count() == len(held) - 1


def test_housekeeping_goes_on_under_full_load(kit: Kit) -> None:
    """Renew, promote, reclaim and prune run off their own timers while every slot is taken and a backlog waits."""
    old = Run.objects.create(task="tests.kit.tasks.note", status="SUCCESSFUL", finished_at="2000-01-01T00:00Z")
    a = kit.dispatchers(processes=2, lease_ttl=2)
    tasks.takes.delay_many([(0.01,)] * 3000)
    wait_for(kit.ledger.rows, what="load")
    lease = Lease.objects.get()
    due = tasks.note.apply_async(countdown=0.3, priority=100)
    orphan = Run.objects.create(
        task="tests.kit.tasks.note", status="RUNNING", lease_id=UUID(int=7), epoch=1, priority=100
    )
    assert fresh(due).status == "SCHEDULED"
    assert [run.status for run in wait_until_final(due, orphan, seconds=10)] == ["SUCCESSFUL"] * 2
    wait_for(lambda: (Lease.objects.get().renewed_at - lease.renewed_at).total_seconds() > 2, what="renewals")
    assert a.lease_id == lease.pk
    assert not Run.objects.filter(pk=old.pk).exists()
    assert Run.objects.filter(status="READY").exists(), "the load was there all the time"


@pytest.mark.slow
@pytest.mark.parametrize("way", ["swallow", "hold"])
def test_a_partitioned_dispatcher_is_fenced_before_its_lease_expires(kit: Kit, relay: Relay, way: str) -> None:
    """No renewal gets through: the bodies are dead in time, others repeat the runs, and the lost one comes back."""
    a = kit.dispatchers("a", database_url=relay.url, lease_ttl=2, queues="default,a")
    run = tasks.gated.delay("work-{attempt}", "by attempt {attempt}")
    kit.gate.wait_until_reached("work-1")
    old = a.lease_id
    getattr(relay, way)()
    a.wait_for_log("is lost: its deadline passed without a renewal")
    kit.dispatchers("b", lease_ttl=2, queues="default")
    kit.gate.wait_until_reached("work-2")
    assert kit.ledger.overlaps(run) == []
    relay.forward()
    wait_for(lambda: a.lease_id not in (None, old), 20, what="a new lease")
    (again,) = wait_until_final(tasks.note.apply_async(queue="a"))
    kit.gate.open("work-2")
    (run,) = wait_until_final(run)
    assert (run.status, run.result, again.status) == ("SUCCESSFUL", "by attempt 2", "SUCCESSFUL")
    assert [error["kind"] for error in run.errors] == ["lost"]


@pytest.fixture
def slow_claims(kit: Kit) -> Iterator[Any]:
    """Have claims wait in the database for a lock of the test's; ``slow_claims()`` says how many wait."""
    kit.sql.execute(HOLD_CLAIMS)
    kit.sql.execute("SELECT pg_advisory_lock(42)")
    waiting = """
        SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
        AND application_name = 'django_dispatch claims' AND wait_event_type = 'Lock'
    """
    yield lambda: (kit.sql.execute(waiting).fetchone() or (0,))[0]
    kit.sql.execute("SELECT pg_advisory_unlock_all()")
    kit.dispatchers.close()
    kit.sql.execute("DROP FUNCTION kit_hold CASCADE")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["cut", "swallowed"])
def test_a_claim_whose_reply_was_lost_is_released(kit: Kit, relay: Relay, slow_claims: Any, way: str) -> None:
    """After trouble, what the database holds under our lease is compared with what is here; a claim may come late."""
    a = kit.dispatchers(database_url=relay.url, lease_ttl=4)
    run = tasks.note.delay()
    wait_for(lambda: slow_claims() == 1, what="the claim at work")
    if way == "cut":
        relay.cut()
        a.wait_for_log("The trouble with the database is over")
        assert slow_claims() == 1, "the one that nobody listens to"
    else:
        relay.swallow_one(kit.cut.port("claims"))
    kit.sql.execute("SELECT pg_advisory_unlock(42)")
    (run,) = wait_until_final(run)
    assert (run.status, run.attempt, run.epoch, run.interruptions) == ("SUCCESSFUL", 1, 2, 0)
    assert f"Run {run.pk} was claimed, but the answer was lost; it is released." in a.log


@pytest.mark.slow
def test_two_claims_that_are_cut_off_at_once_lose_and_double_no_run(kit: Kit, slow_claims: Any) -> None:
    """One is at work when so much ends that another is sent: with outcomes, and for runs of its own."""
    kit.sql.execute("SELECT pg_advisory_unlock(42)")
    a = kit.dispatchers(lease_ttl=15, async_concurrency=2 * LEAST_BESIDE)
    slot = tasks.gated.delay("slot")  # so that what the other lane has room for is no bound
    kit.gate.wait_until_reached("slot")
    runs = [*tasks.agated.delay_many([("work", number) for number in range(LEAST_BESIDE + 10)])]
    kit.gate.wait_until_reached("work", times=len(runs))
    kit.sql.execute("SELECT pg_advisory_lock(42)")
    runs += tasks.anote.delay_many([(number,) for number in range(LEAST_BESIDE)])
    wait_for(lambda: slow_claims() == 1, what="a claim at work")
    kit.gate.open("slot", "work")
    wait_for(lambda: slow_claims() == 2, what="another one beside it")
    assert kit.cut("claims") == 2
    a.wait_for_log("The trouble with the database is over")
    kit.sql.execute("SELECT pg_advisory_unlock(42)")
    for run in wait_until_final(slot, *runs):
        assert (run.status, run.attempt, run.interruptions, kit.ledger.starts(run)) == ("SUCCESSFUL", 1, 0, 1)


@pytest.mark.slow
def test_a_claim_that_comes_late_to_a_paused_dispatcher_is_released(kit: Kit, relay: Relay, slow_claims: Any) -> None:
    """It makes no other claim, which would wait behind the late one; so it compares again when that must be over."""
    kit.sql.execute("SELECT pg_advisory_unlock(42)")
    a = kit.dispatchers(database_url=relay.url, lease_ttl=60, poll_interval=0.05)
    wait_until_final(tasks.note.delay())  # from now on the session waits for as long as it is told to
    kit.sql.execute("SELECT pg_advisory_lock(42)")
    run = tasks.note.delay()
    wait_for(lambda: slow_claims() == 1, what="the claim at work")
    assert len(ask("pause", timeout=20)) == 1
    relay.cut_one(kit.cut.port("claims"))
    a.wait_for_log("The trouble with the database is over")
    wait_for_polls(kit, 2)  # in the store's one session, behind the comparison that comes with the end of a trouble
    assert slow_claims() == 1
    kit.sql.execute("SELECT pg_advisory_unlock(42)")
    a.wait_for_log(f"Run {run.pk} was claimed, but the answer was lost; it is released.")
    run = wait_for_status(run, "READY")
    assert (run.epoch, run.attempt, run.lease_id) == (1, 0, None)
    ask("resume", timeout=20)
    (run,) = wait_until_final(run)
    assert (run.status, run.attempt, run.epoch, run.interruptions) == ("SUCCESSFUL", 1, 2, 0)


def wait_for_polls(kit: Kit, count: int) -> None:
    """Wait until a dispatcher has begun so many looks at the queues from now on."""
    look = """
        SELECT query_start FROM pg_stat_activity WHERE datname = current_database()
        AND application_name = 'django_dispatch store' AND query LIKE '%hop%'
    """
    seen = set(kit.sql.execute(look))

    def has_polled() -> bool:
        seen.update(kit.sql.execute(look))
        return len(seen) > count

    wait_for(has_polled, what="polls")
