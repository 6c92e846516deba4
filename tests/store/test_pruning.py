"""Runs are kept as long as their task, or RETENTION, says; several prune at once while others finish."""

import io
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from threading import Barrier
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.db import connections, transaction
from django.db.models.functions import Now

from django_dispatch import InvalidTask, run_again, task
from django_dispatch.dispatcher.submissions import message_run
from django_dispatch.finish import TaskFacts
from django_dispatch.messages import Kind
from django_dispatch.models import Run, Status
from django_dispatch.store.base import Store
from django_dispatch.store.postgres import PostgresStore
from django_dispatch.store.postgres_enqueue import enqueue_many
from django_dispatch.store.values import NewRun

from .tables import acquire, add_run, claim, success
from .test_housekeeping import finished_ago

HOUR = timedelta(hours=1)


@task(retention=HOUR)
def kept_an_hour() -> None: ...


@task(retention={"FAILED": None, "SUCCESSFUL": 0})
def kept_by_status() -> None: ...


@task
def plain() -> None: ...


class TestWhatIsWritten:
    def test_the_retention_of_a_task_is_in_its_runs(self, db: None, settings: Any) -> None:
        settings.DISPATCH = {"RETENTION": {"CANCELLED": 5, "FAILED": 6}}
        every_hour = dict.fromkeys(("SUCCESSFUL", "FAILED", "CANCELLED"), 3600.0)
        for run in (kept_an_hour.delay(), kept_an_hour.apply_async(countdown=9), *kept_an_hour.delay_many([()])):
            assert Run.objects.get(pk=run.pk).retention == run.retention == every_hour
        assert kept_by_status.delay().retention == {"SUCCESSFUL": 0.0, "FAILED": None, "CANCELLED": 5.0}
        assert plain.delay().retention is None

    def test_it_is_that_of_the_task_in_runs_that_come_as_messages_and_in_copies(self, store: Store) -> None:
        facts = {"shop.pay": TaskFacts(Kind.SYNC, retention='{"FAILED": 5.0}')}
        (received,) = store.receive([message_run({"uuid": "u", "task": "shop.pay"}, facts, None)])
        Run.objects.filter(pk=received.id).update(status="FAILED", finished_at=Now())
        assert Run.objects.get(pk=received.id).retention == run_again(received.id).retention == {"FAILED": 5.0}

    @pytest.mark.parametrize("value", [-1, "1 day", True, {}, {"READY": 1}, {"FAILED": -1}, {"FAILED": "x"}, [], 1e12])
    def test_nonsense_is_refused_where_it_is_declared(self, value: Any) -> None:
        with pytest.raises(InvalidTask, match="retention"):
            task(retention=value)(plain.function)


class TestPruneOwn:
    def test_each_goes_when_its_own_time_has_come_by_its_status(self, store: Store) -> None:
        ages: dict[str, Any] = {"SUCCESSFUL": 60.0, "FAILED": None}
        gone = finished_ago(61, retention=ages)
        young = finished_ago(50, retention=ages)
        for_ever = finished_ago(10**8, retention=ages, status=Status.FAILED)
        not_said = finished_ago(10**8, retention=ages, status=Status.CANCELLED)
        other = finished_ago(10**8)
        assert store.prune_own(limit=100) == 1
        assert set(Run.objects.values_list("pk", flat=True)) == {young, for_ever, not_said, other}
        assert gone not in Run.objects.values_list("pk", flat=True)
        for status in ("SUCCESSFUL", "FAILED", "CANCELLED"):
            store.prune(status=status, age_seconds=0.0, limit=100)
        assert set(Run.objects.values_list("pk", flat=True)) == {young, for_ever, not_said}

    def test_the_limit_takes_those_that_are_past_it_for_the_longest(self, store: Store) -> None:
        short, long = {"SUCCESSFUL": 1.0}, {"SUCCESSFUL": 90.0}
        later, first = finished_ago(110, retention=long), finished_ago(100, retention=short)
        assert store.prune_own(limit=1) == 1
        assert Run.objects.get().pk == later
        assert first != later
        assert store.prune_own(limit=1) == 1

    def test_runs_that_have_not_ended_stay(self, store: Store) -> None:
        add_run(retention={"SUCCESSFUL": 0.0, "READY": 0.0})
        assert store.prune_own(limit=100) == 0

    @pytest.mark.postgres
    def test_one_that_somebody_holds_is_not_waited_for(self, store: Store) -> None:
        held, free = (finished_ago(61, retention={"SUCCESSFUL": 1.0}) for _ in range(2))
        with transaction.atomic():
            Run.objects.select_for_update().get(pk=held)
            assert store.prune_own(limit=10) == 1
        assert Run.objects.get().pk == held
        assert free != held


@pytest.mark.postgres
def test_many_prune_at_once_while_runs_finish_and_nobody_waits_or_deadlocks(new_store: Callable[[], Store]) -> None:
    """Four prune in small batches, both kinds; two claim and finish. Each old run goes once, no new one does."""
    count = 2_000
    with connections["default"].cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_dispatch_run (task, source, status, finished_at, retention) SELECT 'shop.add', 'app',"
            " 'SUCCESSFUL', now() - interval '1 hour', CASE WHEN n %% 2 = 0 THEN '{\"SUCCESSFUL\": 60}'::jsonb END"
            " FROM generate_series(1, %s) AS n",
            [count],
        )
    enqueue_many("default", [NewRun("shop.add")] * 400)
    stores = [new_store() for _ in range(6)]
    leases = [acquire(store) for store in stores[:2]]
    for store in stores:
        assert isinstance(store, PostgresStore)
        store.session.execute("SET deadlock_timeout = '10ms'")
    barrier = Barrier(len(stores))

    def prune(store: Store) -> int:
        barrier.wait()
        deleted = 0
        while batch := store.prune_own(limit=7) + store.prune(status="SUCCESSFUL", age_seconds=60.0, limit=7):
            deleted += batch
        return deleted

    def work(store: Store, lease_id: Any) -> int:
        barrier.wait()
        done = 0
        while runs := claim(store, lease_id, limit=5):
            outcomes = [success(run) for run in runs]
            while outcomes:  # another claim may have looked at a run in this moment: it is busy, and sent again
                exchange = store.exchange(lease_id, outcomes, queues=(), limit=0)
                assert exchange.refused == []
                outcomes = [outcome for outcome in outcomes if outcome.run_id in exchange.busy]
            done += len(runs)
        return done

    with ThreadPoolExecutor(len(stores)) as pool:
        workers = [pool.submit(work, store, lease_id) for store, lease_id in zip(stores, leases, strict=False)]
        pruners = [pool.submit(prune, store) for store in stores[2:]]
        assert sum(one.result() for one in pruners) == count
        assert sum(one.result() for one in workers) == 400
    assert Run.objects.filter(status="SUCCESSFUL").count() == 400


def prune(*words: str) -> str:
    out = io.StringIO()
    call_command("prunedispatch", *words, stdout=out, skip_checks=True)
    return out.getvalue()


class TestCommand:
    @pytest.fixture
    def ended(self, transactional_db: None) -> dict[str, int]:
        day = 86_400
        return {
            "young": finished_ago(60),
            "old": finished_ago(2 * day),
            "failed": finished_ago(2 * day, status=Status.FAILED),
            "other task": finished_ago(2 * day, task="shop.pay"),
            "own": finished_ago(2 * day, retention={"SUCCESSFUL": 60.0}),
            "for ever": finished_ago(2 * day, retention={"SUCCESSFUL": None}),
            "ready": add_run(),
        }

    @pytest.mark.parametrize(
        ("words", "gone"),
        [
            ([], {"old", "other task", "own"}),
            (["--task=shop.pay"], {"other task"}),
            (["--status=FAILED"], set()),
            (["--older-than=1d"], {"old", "failed", "other task", "own", "for ever"}),
            (["--older-than=1d", "--status=FAILED"], {"failed"}),
            (["--older-than=1440m", "--task=shop.pay"], {"other task"}),
            (["--older-than=30"], {"young", "old", "failed", "other task", "own", "for ever"}),
            (["--older-than=3d"], set()),
        ],
    )
    def test_it_deletes_what_is_meant_and_a_dry_run_only_counts_it(
        self, ended: dict[str, int], words: list[str], gone: set[str]
    ) -> None:
        assert f"{len(gone)} runs would be deleted." in prune("--dry-run", *words)
        assert Run.objects.count() == len(ended)
        assert f"{len(gone)} runs were deleted." in prune(*words)
        left = set(Run.objects.values_list("pk", flat=True))
        assert {name for name, pk in ended.items() if pk not in left} == gone

    def test_it_works_in_batches(self, ended: dict[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("django_dispatch.management.commands.prunedispatch.BATCH", 1)
        assert "6 runs were deleted." in prune("--older-than=0")

    @pytest.mark.parametrize(
        "word", ["--older-than=x", "--older-than=-1", "--older-than=1w", "--older-than=999999999d", "--status=READY"]
    )
    def test_nonsense_is_refused(self, ended: dict[str, int], word: str) -> None:
        with pytest.raises(CommandError):
            prune(word)
        assert Run.objects.count() == len(ended)
