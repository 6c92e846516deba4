"""Cancelling runs, and running them again."""

from collections.abc import Iterator
from datetime import timedelta
from threading import Thread
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.db import connection, connections, transaction

from django_dispatch import CancelAnswer, InvalidOption, cancel, cancel_many, run_again, task
from django_dispatch.models import Lease, Run, Status
from django_dispatch.wakeups.base import CHANNEL

pytestmark = pytest.mark.usefixtures("any_database")


@task(queue="mail", priority=3, on_lost="fail")
def send(address: str, *, copies: int = 1) -> None: ...


def a_run(status: Status, **columns: Any) -> Run:
    if status == Status.RUNNING:
        columns["lease"] = Lease.objects.create(id=uuid4())
    if status == Status.SCHEDULED:
        columns["run_after"] = "2060-01-01T00:00Z"
    if status == Status.BLOCKED:
        columns["blocked_by"] = "queue:mail"
    run = Run.objects.create(task=send.path, status=status, source="app", **columns)
    return Run.objects.get(pk=run.pk)


@pytest.fixture
def listener(transactional_db: None) -> Iterator[psycopg.Connection[Any]]:
    parameters = connection.get_connection_params()
    listening = psycopg.connect(
        **{key: parameters[key] for key in ("dbname", "user", "password", "host", "port") if parameters.get(key)},
        autocommit=True,
    )
    listening.execute(f"LISTEN {CHANNEL}")
    yield listening
    listening.close()


def payloads(listener: psycopg.Connection[Any]) -> list[str]:
    listener.execute("SELECT pg_notify(%s, 'test:end')", [CHANNEL])
    found: list[str] = []
    for notification in listener.notifies(timeout=10):
        if notification.payload == "test:end":
            return found
        found.append(notification.payload)
    raise AssertionError("the listener's own wakeup did not come back")


class TestCancel:
    @pytest.mark.parametrize("status", [Status.SCHEDULED, Status.READY, Status.BLOCKED])
    def test_a_run_that_has_not_started_is_over_at_once(self, db: None, status: Status) -> None:
        run = a_run(status, unique_key="k")
        assert cancel(run) is CancelAnswer.CANCELLED
        run.refresh_from_db()
        assert (run.status, run.unique_key, run.run_after, run.errors) == (Status.CANCELLED, None, None, [])
        assert run.finished_at is not None
        assert run.cancel_requested_at is None

    def test_a_running_body_is_asked_to_stop_and_stays_running(self, listener: psycopg.Connection[Any]) -> None:
        run = a_run(Status.RUNNING, unique_key="k")
        with transaction.atomic():
            assert cancel(run.pk) is CancelAnswer.REQUESTED
            assert payloads(listener) == []
        row = Run.objects.get(pk=run.pk)
        assert (row.status, row.lease_id, row.unique_key) == (Status.RUNNING, run.lease_id, "k")
        assert row.cancel_requested_at is not None
        assert row.finished_at is None
        assert payloads(listener) == [f"cancel:{run.lease_id}"]

    def test_asking_again_keeps_the_time_of_the_first_request(self, db: None) -> None:
        run = a_run(Status.RUNNING)
        cancel(run)
        first = Run.objects.get(pk=run.pk).cancel_requested_at
        assert cancel(run) is CancelAnswer.REQUESTED
        assert Run.objects.get(pk=run.pk).cancel_requested_at == first

    @pytest.mark.parametrize("status", [Status.SUCCESSFUL, Status.FAILED, Status.CANCELLED])
    def test_a_run_that_has_ended_is_left_alone(self, db: None, status: Status) -> None:
        run = a_run(status, finished_at="2020-01-01T00:00Z", unique_key="k")
        assert cancel(run) is CancelAnswer.ALREADY_FINAL
        row = Run.objects.get(pk=run.pk)
        assert (row.status, row.finished_at, row.unique_key) == (status, run.finished_at, "k")
        assert row.cancel_requested_at is None

    def test_a_run_that_is_not_there_is_unknown(self, db: None) -> None:
        assert cancel(2**40) is CancelAnswer.UNKNOWN

    def test_many_are_cancelled_by_one_statement(
        self, listener: psycopg.Connection[Any], django_assert_num_queries: Any
    ) -> None:
        waiting, running, ended = a_run(Status.READY), a_run(Status.RUNNING), a_run(Status.FAILED)
        untouched = a_run(Status.READY)
        with transaction.atomic(), django_assert_num_queries(1):
            answers = cancel_many([waiting, running.pk, ended, waiting, 2**40])
        assert answers == {
            waiting.pk: CancelAnswer.CANCELLED,
            running.pk: CancelAnswer.REQUESTED,
            ended.pk: CancelAnswer.ALREADY_FINAL,
            2**40: CancelAnswer.UNKNOWN,
        }
        assert Run.objects.get(pk=untouched.pk).status == Status.READY
        assert payloads(listener) == [f"cancel:{running.lease_id}"]

    def test_runs_of_one_lease_are_one_wakeup(self, listener: psycopg.Connection[Any]) -> None:
        runs = [a_run(Status.RUNNING), a_run(Status.RUNNING)]
        Run.objects.update(lease=runs[0].lease)
        cancel_many(runs)
        assert payloads(listener) == [f"cancel:{runs[0].lease_id}"]

    def test_a_rollback_takes_it_back(self, listener: psycopg.Connection[Any]) -> None:
        waiting, running = a_run(Status.READY), a_run(Status.RUNNING)
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            cancel_many([waiting, running])
            raise ZeroDivisionError
        assert Run.objects.get(pk=waiting.pk).status == Status.READY
        assert Run.objects.get(pk=running.pk).cancel_requested_at is None
        assert payloads(listener) == []

    def test_a_claim_that_commits_meanwhile_makes_it_a_request(self, listener: psycopg.Connection[Any]) -> None:
        run, lease_id = a_run(Status.READY), uuid4()
        answers: list[CancelAnswer] = []

        def cancel_it() -> None:
            answers.append(cancel(run.pk))
            connections.close_all()

        canceller = Thread(target=cancel_it)
        with transaction.atomic():
            Run.objects.filter(pk=run.pk).update(status=Status.RUNNING, lease_id=lease_id, epoch=1)
            canceller.start()
            wait_until_blocked(listener)
        canceller.join(10)
        row = Run.objects.get(pk=run.pk)
        assert answers == [CancelAnswer.REQUESTED]
        assert (row.status, row.lease_id, row.finished_at) == (Status.RUNNING, lease_id, None)
        assert payloads(listener) == [f"cancel:{lease_id}"]


def wait_until_blocked(observer: psycopg.Connection[Any]) -> None:
    """Return once another connection to this database waits for a lock."""
    query = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    for _ in range(100_000):
        row = observer.execute(query).fetchone()
        if row and row[0]:
            return
    raise AssertionError("nobody waits for a lock")


class TestRunAgain:
    @pytest.mark.parametrize("status", [Status.SUCCESSFUL, Status.FAILED, Status.CANCELLED])
    def test_the_copy_has_the_call_and_the_options_and_a_life_of_its_own(
        self, db: None, any_database: str, django_assert_num_queries: Any, status: Status
    ) -> None:
        old = send.apply_async(("ada",), {"copies": 2}, timeout=5, max_attempts=4)
        ended = {"status": status, "attempt": 3, "failures": 2, "interruptions": 1, "epoch": 4, "result": 1}
        Run.objects.filter(pk=old.pk).update(**ended, errors=[{}], meta={"x": 1}, progress={}, unique_key="k")
        with django_assert_num_queries(1 if any_database == "postgres" else 7):
            new = run_again(old)
        assert new.pk > old.pk
        assert (new.task, new.args, new.kwargs) == (send.path, ["ada"], {"copies": 2})
        assert (new.queue, new.priority, new.on_lost, new.source) == ("mail", 3, "fail", "app")
        assert (new.timeout, new.max_attempts) == (timedelta(seconds=5), 4)
        assert (new.status, new.meta) == (Status.READY, {"rerun_of": old.pk})
        assert (new.attempt, new.failures, new.interruptions, new.epoch, new.errors) == (0, 0, 0, 0, [])
        assert (new.result, new.progress, new.unique_key, new.finished_at) == (None, None, None, None)
        assert Run.objects.get(pk=old.pk).status == status

    @pytest.mark.parametrize("status", [Status.SCHEDULED, Status.READY, Status.BLOCKED, Status.RUNNING])
    def test_a_run_that_has_not_ended_is_refused(self, db: None, status: Status) -> None:
        run = a_run(status)
        with pytest.raises(InvalidOption, match=f"Run {run.pk} .*has not ended"):
            run_again(run)
        assert Run.objects.count() == 1

    def test_the_copy_expires_after_as_long_a_time(self, db: None) -> None:
        old = send.apply_async(("ada",), expires=60)
        Run.objects.filter(pk=old.pk).update(
            status=Status.CANCELLED, enqueued_at="2026-01-01T00:00Z", expires_at="2026-01-01T00:01Z"
        )
        new = run_again(old)
        assert new.expires_at is not None
        assert abs(new.expires_at - new.enqueued_at - timedelta(seconds=60)) < timedelta(seconds=1)
        Run.objects.filter(pk=old.pk).update(expires_at="2025-01-01T00:00Z")
        assert run_again(old).expires_at is None

    def test_a_run_that_is_not_there_is_refused(self, db: None) -> None:
        with pytest.raises(InvalidOption, match="does not exist"):
            run_again(2**40)

    def test_it_wakes_the_queue_after_the_commit(self, listener: psycopg.Connection[Any]) -> None:
        old = a_run(Status.FAILED, queue="again")
        with transaction.atomic():
            run_again(old.pk)
            assert payloads(listener) == []
        assert payloads(listener) == ["ready:again"]
