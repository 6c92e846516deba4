"""Two endings of one run at once: each order has one winner, the same for the caller, the run and its retries.

The body's last word is held back by freezing its dispatcher, which then finds both in its way.
"""

from datetime import timedelta

import pytest
from django.db import transaction

from django_dispatch import CancelAnswer, cancel, cancel_many
from django_dispatch.models import Run
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import fresh, wait_for_status, wait_until_final
from tests.kit.waiting import wait_for

UNDER_WAY = Run.objects.exclude(status__in=["SUCCESSFUL", "FAILED", "CANCELLED"])


def test_a_cancel_before_at_and_after_the_end_of_a_body(kit: Kit) -> None:
    """The body's own verdict wins over a cancel, an acknowledged cancel wins over another attempt."""
    a = kit.dispatchers(processes=5)
    before = tasks.gated.delay("never")
    returned, deleted = tasks.gated.delay("at", "done"), tasks.gated.delay("at")
    failed, failed_again = tasks.raises.delay("at"), tasks.raises.apply_async(("at",), max_attempts=1)
    kit.gate.wait_until_reached("never")
    kit.gate.wait_until_reached("at", times=4)
    assert cancel(before) is cancel(before) is CancelAnswer.REQUESTED
    (before,) = wait_until_final(before)

    at = [returned, failed, failed_again, deleted]
    with transaction.atomic():  # until it is over no outcome of theirs can be written
        assert set(cancel_many(at).values()) == {CancelAnswer.REQUESTED}
        kit.gate.open("at")
        for run in at:
            a.wait_for_log(f"Run {run.pk} ({run.task}): a transaction holds its row; its outcome waits.")
        assert cancel(before) is CancelAnswer.ALREADY_FINAL
        Run.objects.filter(pk=deleted.pk).delete()
    returned, failed, failed_again = wait_until_final(returned, failed, failed_again)
    a.wait_for_log(f"Run {deleted.pk} (tests.kit.tasks.gated): lease lost; its outcome is dropped.")

    assert (before.status, [error["kind"] for error in before.errors]) == ("CANCELLED", ["cancelled"])
    assert (returned.status, returned.result, returned.errors) == ("SUCCESSFUL", "done", [])
    assert (failed.status, failed.failures, failed.run_after) == ("CANCELLED", 1, None)
    assert (failed_again.status, failed_again.failures) == ("FAILED", 1)
    assert set(cancel_many(at).values()) == {CancelAnswer.ALREADY_FINAL, CancelAnswer.UNKNOWN}
    assert not UNDER_WAY.exists()
    assert [kit.ledger.starts(run) for run in (before, returned, failed, failed_again)] == [1] * 4
    (after,) = wait_until_final(tasks.note.delay())
    assert after.status == "SUCCESSFUL"


def test_of_a_timeout_and_a_cancel_the_first_counts_and_nothing_is_tried_again(kit: Kit) -> None:
    kit.dispatchers(processes=3, settings={"CANCEL_GRACE": 30})
    timed_out = tasks.tidying.apply_async(("never", "tidying-1"), timeout=0.3, max_attempts=5)
    timed_out_last = tasks.tidying.apply_async(("never", "tidying-1"), timeout=0.3)
    cancelled = tasks.tidying.apply_async(("never", "tidying-2"), timeout=2, max_attempts=5)
    kit.gate.wait_until_reached("never", times=3)
    assert cancel(cancelled) is CancelAnswer.REQUESTED
    kit.gate.wait_until_reached("tidying-2")
    kit.gate.wait_until_reached("tidying-1", times=2)
    assert set(cancel_many([timed_out, timed_out_last]).values()) == {CancelAnswer.REQUESTED}
    is_overdue = "SELECT clock_timestamp() > started_at + interval '2.2 s' FROM django_dispatch_run WHERE id = %s"
    wait_for(lambda: kit.sql.execute(is_overdue, [cancelled.pk]).fetchone() == (True,), what="its timeout over too")
    kit.gate.open("tidying-1", "tidying-2")
    timed_out, timed_out_last, cancelled = wait_until_final(timed_out, timed_out_last, cancelled)
    assert (timed_out.status, [error["kind"] for error in timed_out.errors]) == ("CANCELLED", ["timeout"])
    assert (timed_out_last.status, [error["kind"] for error in timed_out_last.errors]) == ("FAILED", ["timeout"])
    assert (cancelled.status, [error["kind"] for error in cancelled.errors]) == ("CANCELLED", ["cancelled"])
    assert [kit.ledger.starts(run) for run in (timed_out, timed_out_last, cancelled)] == [1] * 3


@pytest.mark.slow
def test_a_cancel_and_the_loss_of_the_dispatcher(kit: Kit) -> None:
    """Whether the cancel came before the loss or waits for the reclaim: the run is CANCELLED and never repeated."""
    a = kit.dispatchers("a", processes=3, lease_ttl=30)
    runs = [tasks.stubborn.delay("hold"), tasks.gated.delay("hold"), tasks.gated.delay("hold")]
    kit.gate.wait_until_reached("hold", times=3)
    early, late, uncancelled = runs
    assert cancel(early) is CancelAnswer.REQUESTED
    a.kill9()
    assert cancel(late) is CancelAnswer.REQUESTED
    kit.dispatchers("b", lease_ttl=30)
    kit.gate.open("hold")
    runs = wait_until_final(early, late, uncancelled)
    assert [run.status for run in runs] == ["CANCELLED", "CANCELLED", "SUCCESSFUL"]
    assert [[error["kind"] for error in run.errors] for run in runs] == [["lost"]] * 3
    assert [kit.ledger.starts(run) for run in runs] == [1, 1, 2]
    assert set(cancel_many(runs).values()) == {CancelAnswer.ALREADY_FINAL}


def test_what_is_cancelled_while_it_waits_for_another_attempt_is_not_tried_again(kit: Kit) -> None:
    kit.dispatchers()
    kit.gate.open("at once")
    run = tasks.raises.delay("at once")
    run = wait_for_status(run, "SCHEDULED")
    assert cancel(run) is CancelAnswer.CANCELLED
    assert run.run_after
    kit.sql.execute("SELECT pg_sleep_until(%s)", [run.run_after + timedelta(seconds=0.5)])
    assert (fresh(run).status, kit.ledger.starts(run)) == ("CANCELLED", 1)
