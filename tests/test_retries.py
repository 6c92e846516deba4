"""When real runs are tried again, and what is on their record: by options, and by what bodies raise and return."""

from collections.abc import Iterator
from datetime import timedelta
from itertools import pairwise
from typing import Any

import pytest
from pytest_django.plugin import DjangoDbBlocker

from django_dispatch.models import Run
from tests.kit import retries, tasks
from tests.kit.fixtures import Kit, open_kit
from tests.kit.runs import wait_for_status, wait_until_final

RETRY, SNOOZE, CANCEL = ("Retry", {"after": 0.01}), ("Snooze", {"after": 0.01}), ("Cancel", {"reason": "not wanted"})


@pytest.fixture(scope="module")
def served(
    tmp_path_factory: pytest.TempPathFactory, database_url: str, django_db_blocker: DjangoDbBlocker
) -> Iterator[Kit]:
    """The kit with a dispatcher, for all tests of this module."""
    with open_kit(tmp_path_factory.mktemp("kit"), database_url, django_db_blocker) as kit:
        settings = {"MAX_INTERRUPTIONS": 1, "CANCEL_GRACE": 0.2}
        kit.dispatchers(processes=2, async_concurrency=4, queues="default,other", settings=settings)
        yield kit


def kinds(run: Run) -> list[str]:
    return [error["kind"] for error in run.errors]


def test_a_failing_task_is_tried_so_often_at_growing_distances_and_every_error_is_kept(served: Kit) -> None:
    (run,) = wait_until_final(retries.fails.delay())
    starts = served.ledger.rows(run)
    assert (run.status, run.attempt, run.failures) == ("FAILED", 4, 4)
    assert [row.attempt for row in starts] == [1, 2, 3, 4]
    assert [(error["attempt"], error["message"]) for error in run.errors] == [(n, f"failure {n}") for n in (1, 2, 3, 4)]
    assert all("raise ValueError" in error["traceback"] for error in run.errors)
    distances = [(after.started_at - before.started_at).total_seconds() for before, after in pairwise(starts)]
    assert all(found >= least for found, least in zip(distances, (0.1, 0.2, 0.4), strict=True)), distances


@pytest.mark.parametrize(
    ("asks", "starts", "note"),
    [
        ("timedelta", 3, ""),
        ("none", 1, ""),
        ("negative", 3, ""),
        ("nan", 3, "it returned nan"),
        ("text", 3, "it returned 'soon'"),
        ("bool", 3, "it returned True"),
        ("raise", 3, "it raised RuntimeError('no idea')"),
    ],
)
def test_whatever_a_backoff_function_does_the_run_goes_on_and_its_folly_is_recorded(
    served: Kit, asks: str, starts: int, note: str
) -> None:
    (run,) = wait_until_final(retries.fails_by_the_book.delay(asks))
    assert (run.status, served.ledger.starts(run), kinds(run)) == ("FAILED", starts, ["exception"] * starts)
    assert all(note in error.get("note", "") and bool(note) == ("note" in error) for error in run.errors)


def test_a_huge_delay_is_cut_to_what_can_be_stored(served: Kit) -> None:
    run = wait_for_status(retries.fails_by_the_book.delay("huge"), "SCHEDULED")
    assert run.run_after is not None
    assert run.run_after - run.enqueued_at > timedelta(days=36_500)


def test_types_of_errors_decide(served: Kit) -> None:
    runs = wait_until_final(*(retries.fails_with.delay(name) for name in ("Passing", "Fatal", "ValueError")))
    assert [served.ledger.starts(run) for run in runs] == [2, 1, 1]
    assert {run.status for run in runs} == {"FAILED"}


@pytest.mark.parametrize("decides", [retries.decides, retries.adecides])
@pytest.mark.parametrize("how", ["raise", "return"])
def test_a_body_decides(served: Kit, how: str, decides: Any) -> None:
    retried, snoozed, cancelled, mixed = wait_until_final(
        decides.delay([how, *RETRY]),
        decides.delay(*[[how, *SNOOZE]] * 5, ["done"]),
        decides.delay([how, *CANCEL]),
        decides.delay(*[[how, *RETRY], [how, *SNOOZE], [how, *SNOOZE], [how, *RETRY], ["done"]]),
    )
    assert (retried.status, retried.failures, kinds(retried)) == ("FAILED", 3, ["retry"] * 3)
    assert (snoozed.status, snoozed.result, snoozed.failures, snoozed.errors) == ("SUCCESSFUL", 6, 0, [])
    assert (cancelled.status, kinds(cancelled)) == ("CANCELLED", ["cancelled"])
    assert cancelled.errors[0]["message"] == "not wanted"
    assert (mixed.status, mixed.failures, mixed.attempt) == ("SUCCESSFUL", 2, 5)
    assert [served.ledger.starts(run) for run in (retried, snoozed, cancelled, mixed)] == [3, 6, 1, 5]


def test_a_retry_may_go_to_another_queue_at_another_priority(served: Kit) -> None:
    step = ["raise", "Retry", {"after": 0, "queue": "other", "priority": 7}]
    (run,) = wait_until_final(retries.decides.delay(step, ["done"]))
    assert (run.status, run.queue, run.priority) == ("SUCCESSFUL", "other", 7)


def test_a_decision_that_makes_no_sense_is_a_failure(served: Kit) -> None:
    (run,) = wait_until_final(retries.decides.delay(["raise", "Snooze", {"after": -1}], ["done"]))
    assert run.status == "SUCCESSFUL"
    assert run.errors[0]["exception_class"] == "django_dispatch.exceptions.InvalidOption"


def test_a_retry_that_was_the_last_one_fails_with_its_cause(served: Kit) -> None:
    (run,) = wait_until_final(retries.retries_for_a_reason.delay())
    assert (run.status, run.failures) == ("FAILED", 2)
    assert {(error["exception_class"], error["message"]) for error in run.errors} == {
        ("tests.kit.retries.Passing", "no answer")
    }


def test_a_timeout_may_be_final_and_a_body_that_had_to_be_killed_goes_by_the_default(served: Kit) -> None:
    final, hanging = wait_until_final(retries.times_out.delay("never"), retries.hangs.delay())
    assert (final.status, served.ledger.starts(final), kinds(final)) == ("FAILED", 1, ["timeout"])
    first, second = served.ledger.rows(hanging)
    assert second.started_at - first.started_at >= timedelta(seconds=1)
    assert (hanging.status, kinds(hanging)) == ("FAILED", ["timeout"] * 2)


def test_what_was_logged_last_is_on_the_record_of_a_run_that_was_lost(served: Kit) -> None:
    silent, talkative = wait_until_final(retries.logs_and_dies.delay(2), retries.logs_and_dies.delay(1000))
    assert [run.status for run in (silent, talkative)] == ["FAILED"] * 2
    assert silent.errors[0]["log"].splitlines()[-2:] == [f"[run {silent.pk}] WARNING kit: line {n}" for n in (0, 1)]
    lines = talkative.errors[0]["log"].splitlines()
    assert len(lines) == 20
    assert lines[-1] == f"[run {talkative.pk}] WARNING kit: line 999"
    error = talkative.errors[0]
    assert (error["kind"], error["exit_status"]) == ("lost", -9)
    assert error["executor"].startswith("a:")
    assert error["peak_kb"] > 1024


def test_what_has_expired_is_not_started(served: Kit) -> None:
    in_time = tasks.note.apply_async(("here",), expires=3600)
    late = tasks.note.apply_async(countdown=0.5, expires=timedelta(seconds=0.1))
    elsewhere = tasks.note.apply_async(queue="nobody serves it", expires=0.1)
    in_time, late, elsewhere = wait_until_final(in_time, late, elsewhere, seconds=40)
    assert (in_time.status, in_time.result) == ("SUCCESSFUL", "here")
    assert [(run.status, kinds(run), run.run_after) for run in (late, elsewhere)] == [
        ("CANCELLED", ["expired"], None)
    ] * 2
    assert [served.ledger.starts(run) for run in (late, elsewhere)] == [0, 0]


def test_what_was_started_in_time_does_not_expire_while_it_waits_for_another_attempt(served: Kit) -> None:
    run = retries.decides.apply_async(([*("raise", "Retry"), {"after": 1.5}], ["done"]), expires=1)
    (run,) = wait_until_final(run)
    starts = served.ledger.rows(run)
    assert (run.status, len(starts)) == ("SUCCESSFUL", 2)
    assert run.expires_at is not None
    assert starts[1].started_at > run.expires_at
