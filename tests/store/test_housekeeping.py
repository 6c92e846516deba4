"""Promote, prune, the list of queues with work, and the sending of wakeups."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from django_dispatch.models import Run, Status
from django_dispatch.store.base import Store
from tests.wakeups import Ear

from .tables import FAR_OFF, LONG_AGO, add_run, add_runs, columns_of, statuses, stored


def finished_ago(seconds: float, **columns: Any) -> int:
    run_id = add_run(**{"status": Status.SUCCESSFUL, **columns})
    Run.objects.filter(pk=run_id).update(finished_at=Now() - timedelta(seconds=seconds))
    return run_id


class TestPromote:
    def test_due_runs_become_ready_and_their_queues_are_named(self, store: Store) -> None:
        due = [add_run(status=Status.SCHEDULED, run_after=LONG_AGO, queue=queue) for queue in ("a", "b", "b")]
        later = add_run(status=Status.SCHEDULED, queue="c")
        before = columns_of(later)
        queues, next_seconds, _ = store.promote(limit=100)
        assert sorted(queues) == ["a", "b"]
        assert next_seconds is not None
        assert next_seconds > 365 * 86_400
        assert [(stored(run_id).status, stored(run_id).run_after) for run_id in due] == [(Status.READY, None)] * 3
        assert columns_of(later) == before

    def test_the_seconds_are_those_until_the_next_run_is_due(self, store: Store) -> None:
        first = add_runs(2, status=Status.SCHEDULED)[1]
        Run.objects.filter(pk=first).update(run_after=Now() + timedelta(seconds=50))
        queues, next_seconds, _ = store.promote(limit=100)
        assert queues == []
        assert next_seconds is not None
        assert 45 < next_seconds <= 50

    def test_nothing_scheduled_means_nothing_due(self, store: Store) -> None:
        add_run()
        assert store.promote(limit=100) == ([], None, [])

    def test_the_limit_takes_the_longest_due(self, store: Store) -> None:
        ages = (1, 3, 2)
        runs = [add_run(status=Status.SCHEDULED, run_after=LONG_AGO - timedelta(days=age)) for age in ages]
        store.promote(limit=2)
        assert statuses(runs) == [Status.SCHEDULED, Status.READY, Status.READY]

    @pytest.mark.parametrize("status", [Status.READY, Status.BLOCKED, Status.SUCCESSFUL, Status.CANCELLED])
    def test_only_scheduled_runs_are_promoted(self, store: Store, status: Status) -> None:
        run_id = add_run(status=status)
        before = columns_of(run_id)
        assert store.promote(limit=100) == ([], None, [])
        assert columns_of(run_id) == before


class TestExpire:
    @pytest.mark.parametrize("status", [Status.READY, Status.SCHEDULED, Status.BLOCKED])
    def test_what_waits_for_its_first_start_for_too_long_is_cancelled(self, store: Store, status: Status) -> None:
        run_id = add_run(status=status, expires_at=LONG_AGO, unique_key="k")
        assert store.expire(limit=100)[:2] == (1, None)
        run = stored(run_id)
        assert (run.status, run.run_after, run.unique_key) == (Status.CANCELLED, None, None)
        assert run.finished_at is not None
        ((kind, attempt),) = [(error["kind"], error["attempt"]) for error in run.errors]
        assert (kind, attempt) == ("expired", 0)

    @pytest.mark.parametrize(
        "columns",
        [
            {"expires_at": FAR_OFF},
            {},
            {"expires_at": LONG_AGO, "attempt": 1},
            {"expires_at": LONG_AGO, "status": Status.SUCCESSFUL},
            {"expires_at": LONG_AGO, "status": Status.FAILED},
        ],
        ids=str,
    )
    def test_others_stay_as_they_are(self, store: Store, columns: dict[str, Any]) -> None:
        run_id = add_run(**columns)
        before = columns_of(run_id)
        assert store.expire(limit=100)[0] == 0
        assert columns_of(run_id) == before

    def test_the_seconds_are_those_until_the_next_one_expires(self, store: Store) -> None:
        first = add_runs(2, expires_at=FAR_OFF)[1]
        add_run(expires_at=LONG_AGO, attempt=1)
        Run.objects.filter(pk=first).update(expires_at=Now() + timedelta(seconds=50))
        expired, next_seconds, _ = store.expire(limit=100)
        assert expired == 0
        assert next_seconds is not None
        assert 45 < next_seconds <= 50

    def test_it_says_where_places_are_free_now(self, store: Store) -> None:
        late: dict[str, Any] = {"expires_at": LONG_AGO, "concurrency_key": "k"}
        add_run(**late, places=1)
        add_run(**late, status=Status.BLOCKED, blocked_by="k")
        assert store.expire(limit=100).freed == ["k"]
        add_run(**late, places=2, queue="q")
        assert sorted(store.expire(limit=100).freed) == ["k", "queue:q"]
        add_run(**late, status=Status.BLOCKED, blocked_by="k")
        assert store.expire(limit=100).freed == []

    def test_the_limit_takes_the_first_to_expire(self, store: Store) -> None:
        runs = [add_run(expires_at=LONG_AGO - timedelta(days=age)) for age in (1, 3, 2)]
        assert store.expire(limit=2)[:2] == (2, None)
        assert statuses(runs) == [Status.READY, Status.CANCELLED, Status.CANCELLED]


class TestPrune:
    def test_it_deletes_runs_of_that_status_past_their_age(self, store: Store) -> None:
        old = finished_ago(61)
        young = finished_ago(50)
        failed = finished_ago(61, status=Status.FAILED)
        assert store.prune(status="SUCCESSFUL", age_seconds=60.0, limit=100) == 1
        assert set(Run.objects.values_list("pk", flat=True)) == {young, failed}
        assert old not in (young, failed)

    def test_the_limit_takes_the_oldest(self, store: Store) -> None:
        runs = [finished_ago(seconds) for seconds in (100, 300, 200)]
        assert store.prune(status="SUCCESSFUL", age_seconds=60.0, limit=2) == 2
        assert Run.objects.get().pk == runs[0]
        assert store.prune(status="SUCCESSFUL", age_seconds=60.0, limit=2) == 1

    @pytest.mark.parametrize("status", [Status.SCHEDULED, Status.READY, Status.BLOCKED])
    def test_runs_that_have_not_ended_stay(self, store: Store, status: Status) -> None:
        add_run(status=status, enqueued_at=LONG_AGO)
        for final in ("SUCCESSFUL", "FAILED", "CANCELLED"):
            assert store.prune(status=final, age_seconds=0.0, limit=100) == 0
        assert Run.objects.count() == 1


class TestReadyQueues:
    def test_they_are_those_with_ready_runs(self, store: Store) -> None:
        for queue in ("b", "a", "c", "b"):
            add_run(queue=queue)
        for status in (status for status in Status if status not in (Status.READY, Status.RUNNING)):
            add_run(queue=f"only {status}", status=status)
        assert sorted(store.ready_queues()) == ["a", "b", "c"]

    def test_there_may_be_none(self, store: Store) -> None:
        add_run(status=Status.SCHEDULED, run_after=FAR_OFF)
        assert store.ready_queues() == []


def test_notify_sends_each_payload(store: Store, ear: Ear) -> None:
    store.notify(["ready:a", "ready:b"])
    store.notify([])
    assert sorted(ear.heard()) == ["ready:a", "ready:b"]
