"""An enqueue is part of the caller's transaction: no start before the commit, no run at all without one."""

from django.db import connection, transaction

from django_dispatch.models import Run
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
