"""An enqueue is part of the caller's transaction: no start before the commit, no run at all without one.

And a transaction that holds a run, by a cancel say, holds up that run's outcome and nothing else.
"""

from datetime import timedelta

import pytest
from django.db import connection, transaction

from django_dispatch.models import Lease, Run
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import wait_for_status, wait_until_final
from tests.kit.waiting import wait_for

SLOW_POLL = {"lease_ttl": 30, "poll_interval": 20}


def prove_that_it_looks(kit: Kit) -> None:
    """Have a run enqueued by another session, and wait for its end: the dispatcher has looked at the table since."""
    query = "INSERT INTO django_dispatch_run (task) VALUES ('tests.kit.tasks.note') RETURNING id"
    (pk,) = kit.sql.execute(query).fetchone() or (0,)
    status = "SELECT status FROM django_dispatch_run WHERE id = %s"
    wait_for(lambda: kit.sql.execute(status, [pk]).fetchone() == ("SUCCESSFUL",), what="the run of another session")


def test_nothing_starts_before_the_commit_and_then_at_once(kit: Kit) -> None:
    kit.dispatchers(**SLOW_POLL)
    with transaction.atomic():
        run = tasks.note.delay("after the commit")
        prove_that_it_looks(kit)
        assert kit.ledger.starts(run) == 0
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (committed_at,) = cursor.fetchone()
    (run,) = wait_until_final(run)
    (row,) = kit.ledger.rows(run)
    assert run.status == "SUCCESSFUL"
    assert (row.started_at - committed_at).total_seconds() < 1


def test_a_rollback_leaves_no_run_and_wakes_nobody(kit: Kit) -> None:
    kit.dispatchers()
    with transaction.atomic():
        rolled_back = tasks.note.delay()
        prove_that_it_looks(kit)
        transaction.set_rollback(True)
    with transaction.atomic():
        kept = tasks.note.delay()
        with transaction.atomic():
            undone = tasks.note.delay()
            transaction.set_rollback(True)
    (kept,) = wait_until_final(kept)
    prove_that_it_looks(kit)
    assert kept.status == "SUCCESSFUL"
    assert not Run.objects.filter(pk__in=[rolled_back.pk, undone.pk]).exists()
    assert [kit.ledger.starts(run) for run in (rolled_back, undone, kept)] == [0, 0, 1]


def test_a_wakeup_for_nothing_is_harmless(kit: Kit) -> None:
    kit.dispatchers(**SLOW_POLL)
    for payload in ("ready:default", "ready:no such queue", "cancel:nobody", "nonsense", "ready:", "x" * 7000):
        kit.sql.execute("SELECT pg_notify('django_dispatch', %s)", [payload])
    wait_for_status(tasks.note.delay(), "SUCCESSFUL", seconds=10)


def test_a_plain_insert_is_an_enqueue_and_wakes_the_dispatcher(kit: Kit) -> None:
    """Only task and args are needed, from psql or any other language; the table's trigger sends the wakeup."""
    kit.dispatchers(**SLOW_POLL)
    kit.sql.execute("""INSERT INTO django_dispatch_run (task, args) VALUES ('tests.kit.tasks.note', '["from SQL"]')""")
    (run,) = wait_until_final(Run.objects.get(), seconds=10)
    assert (run.status, run.result, run.source) == ("SUCCESSFUL", "from SQL", "sql")


@pytest.mark.slow
def test_a_transaction_that_holds_a_running_run_holds_up_nothing_else(kit: Kit) -> None:
    """Its outcome is kept, over a reconnect and a shutdown too, and written when the transaction is over."""
    a = kit.dispatchers(processes=2, lease_ttl=3)
    held, _ = tasks.gated.delay("held", "kept"), tasks.gated.delay("neighbour")
    kit.gate.wait_until_reached("held", "neighbour")
    lease = Lease.objects.get()
    (claims,) = kit.cut.sessions("claims")
    with transaction.atomic():
        Run.objects.select_for_update().get(pk=held.pk)
        kit.gate.open("held")
        a.wait_for_log(f"Run {held.pk} (tests.kit.tasks.gated): a transaction holds its row; its outcome waits.")
        kit.gate.open("neighbour")
        add = "INSERT INTO django_dispatch_run (task) SELECT 'tests.kit.tasks.note' FROM generate_series(1, 20)"
        kit.sql.execute(add)
        successes = Run.objects.filter(status="SUCCESSFUL")
        wait_for(lambda: successes.count() == 21, 10, what="the neighbour's outcome, and 20 runs after it")
        tries = set()
        last = "SELECT query_start FROM pg_stat_activity WHERE pid = %s"
        while Lease.objects.get().renewed_at < lease.renewed_at + timedelta(seconds=3):
            tries.add(kit.sql.execute(last, [claims]).fetchone())
        assert 1 < len(tries) < 60
        assert kit.cut.sessions("claims") == [claims], "no statement was broken off"

        kit.cut("claims")
        a.wait_for_log("Trouble with the database (claims)")
        reconnected_at = Lease.objects.get().renewed_at
        wait_for(lambda: Lease.objects.get().renewed_at > reconnected_at + timedelta(seconds=3), what="all comparisons")
        a.terminate()
        a.wait_for_log("Draining")
        assert Run.objects.get(pk=held.pk).status == "RUNNING"
    assert a.exit_code() == 0
    (held,) = wait_until_final(held)
    assert (held.status, held.result, held.attempt) == ("SUCCESSFUL", "kept", 1)
    assert a.log.count("its outcome waits") == 1
    assert "the answer was lost" not in a.log
