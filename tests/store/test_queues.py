"""Paused queues give nothing to any claim; runs that waited too long are brought forward."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.db.models.functions import Now

from django_dispatch import InvalidOption, pause_queue, resume_queue
from django_dispatch.dispatcher.queues import Queues
from django_dispatch.models import Lease, PausedQueue, Run, Status
from django_dispatch.store.base import Store
from tests.wakeups import Ear

from .tables import acquire, add_run, add_runs, claim, finish, stored, success

HOUR = timedelta(hours=1)


def claimed(store: Store, lease_id: Any, *queues: str, limit: int = 100) -> list[str]:
    return [run.queue for run in claim(store, lease_id, queues=queues, limit=limit)]


class TestPause:
    @pytest.mark.parametrize("until", [None, HOUR])
    def test_nothing_is_claimed_from_a_paused_queue_and_the_others_go_on(
        self, store: Store, until: timedelta | None
    ) -> None:
        waiting, free = add_run(queue="mail", priority=9), add_run(queue="b")
        lease_id = acquire(store)
        pause_queue("mail", reason="its server moves", until=until, by="ann")
        assert claimed(store, lease_id, "mail", "b") == ["b"]
        assert claimed(store, lease_id, "mail", "b") == []
        assert (stored(waiting).status, stored(free).status) == (Status.READY, Status.RUNNING)
        assert store.ready_queues() == []
        paused = PausedQueue.objects.get()
        assert (paused.name, paused.reason, paused.paused_by) == ("mail", "its server moves", "ann")
        assert (paused.paused_until is None) == (until is None)

    def test_a_resumed_queue_is_claimed_from_and_dispatchers_are_woken_after_the_commit(
        self, store: Store, ear: Ear
    ) -> None:
        run_id = add_run(queue="mail")
        lease_id = acquire(store)
        pause_queue("mail")
        ear.heard()
        with transaction.atomic():
            assert resume_queue("mail") is True
            assert claimed(store, lease_id, "mail") == []
            assert ear.heard() == []
        assert ear.heard() == ["ready:mail"]
        assert store.ready_queues() == ["mail"]
        assert claimed(store, lease_id, "mail") == ["mail"]
        assert stored(run_id).status == Status.RUNNING
        assert resume_queue("mail") is False

    def test_a_pause_ends_by_itself(self, store: Store) -> None:
        add_run(queue="mail")
        lease_id = acquire(store)
        pause_queue("mail", until=HOUR)
        PausedQueue.objects.update(paused_until=Now() - timedelta(milliseconds=1))
        assert store.ready_queues() == ["mail"]
        assert claimed(store, lease_id, "mail") == ["mail"]
        assert resume_queue("mail") is False

    def test_a_pause_that_is_rolled_back_never_was(self, store: Store) -> None:
        add_run(queue="mail")
        with transaction.atomic():
            pause_queue("mail")
            transaction.set_rollback(True)
        assert claimed(store, acquire(store), "mail") == ["mail"]

    def test_what_runs_is_finished(self, store: Store) -> None:
        run_id = add_run(queue="mail")
        lease_id = acquire(store)
        (run,) = claim(store, lease_id, queues=["mail"])
        pause_queue("mail")
        assert finish(store, lease_id, success(run)) == []
        assert stored(run_id).status == Status.SUCCESSFUL

    def test_pausing_again_changes_why_and_until_when_and_not_since_when(self, transactional_db: None) -> None:
        pause_queue("mail", reason="a", until=HOUR)
        before = PausedQueue.objects.get()
        pause_queue("mail", reason="b")
        after = PausedQueue.objects.get()
        assert (after.paused_at, after.reason, after.paused_until) == (before.paused_at, "b", None)
        PausedQueue.objects.update(paused_until=Now())
        pause_queue("mail")
        assert PausedQueue.objects.get().paused_at > before.paused_at

    @pytest.mark.parametrize(
        "options",
        [
            {"name": ""},
            {"name": "q" * 101},
            {"name": 7},
            {"name": "lease:x"},
            {"reason": "x" * 1001},
            {"reason": "\0"},
            {"reason": None},
            {"by": "x" * 151},
            {"until": timedelta(0)},
            {"until": -HOUR},
            {"until": timedelta.max},
            {"until": "tomorrow"},
            {"until": 60},
        ],
    )
    def test_nonsense_is_refused(self, transactional_db: None, options: dict[str, Any]) -> None:
        with pytest.raises(InvalidOption):
            pause_queue(**{"name": "mail", **options})
        assert not PausedQueue.objects.exists()


@pytest.mark.postgres
def test_a_look_at_a_paused_queue_writes_nothing(new_store: Callable[[], Store]) -> None:
    store = new_store()
    add_run(queue="mail")
    lease_id = acquire(store)
    pause_queue("mail")
    with transaction.atomic():
        Lease.objects.select_for_update(no_key=True).get(pk=lease_id)
        # Whoever wanted to claim would wait for the lease; this one comes back at once.
        assert claimed(store, lease_id, "mail") == []


class TestShares:
    def test_a_run_beside_a_flood_starts_within_the_next_claims(self, store: Store) -> None:
        Run.objects.bulk_create([Run(task="shop.add", source="app", queue="flood")] * 10_000)
        alone = add_run(queue="alone")
        lease_id = acquire(store)
        queues = Queues(("flood", "alone"), {"flood": 100})
        for _ in range(2):
            found = claim(store, lease_id, queues=queues.names(), limit=10)
            queues.note_claimed(run.queue for run in found)
            assert len(found) == 10
        assert stored(alone).status == Status.RUNNING

    def test_a_thousand_runs_are_shared_by_weight(self, store: Store) -> None:
        for queue in ("mail", "reports"):
            Run.objects.bulk_create([Run(task="shop.add", source="app", queue=queue)] * 1000)
        lease_id = acquire(store)
        queues = Queues(None, {"mail": 3})
        queues.add(store.ready_queues())
        for _ in range(100):
            queues.note_claimed(run.queue for run in claim(store, lease_id, queues=queues.names(), limit=10))
        assert Run.objects.filter(status="RUNNING", queue="mail").count() == pytest.approx(750, abs=20)
        assert Run.objects.filter(status="RUNNING").count() == 1000


class TestAging:
    def test_the_longest_waiting_come_before_all_others_of_their_queue(self, store: Store) -> None:
        old = add_runs(3, priority=-50)
        add_runs(2, priority=7)
        elsewhere = add_run(queue="b", priority=-50)
        Run.objects.update(enqueued_at=Now() - timedelta(seconds=61))
        young = add_run(priority=-50)
        before = {run_id: stored(run_id) for run_id in (elsewhere, young)}
        assert store.age(age_seconds=60.0, limit=2) == 2
        assert [stored(run_id).priority for run_id in old] == [7, 7, -50]
        assert {run_id: stored(run_id).priority for run_id in before} == dict.fromkeys(before, -50)
        assert [run.id for run in claim(store, acquire(store), limit=2)] == old[:2]

    def test_those_that_do_not_wait_long_are_left_alone(self, store: Store) -> None:
        add_runs(2, priority=-50)
        add_run(priority=7)
        assert store.age(age_seconds=60.0, limit=10) == 0
        assert store.age(age_seconds=0.0, limit=10) == 2
        assert store.age(age_seconds=0.0, limit=10) == 0

    @pytest.mark.parametrize("status", [Status.SCHEDULED, Status.BLOCKED, Status.SUCCESSFUL])
    def test_only_ready_runs_age(self, store: Store, status: Status) -> None:
        add_run(priority=7)
        add_run(priority=0, status=status)
        assert store.age(age_seconds=0.0, limit=10) == 0

    def test_an_endless_flow_does_not_keep_a_run_waiting_for_ever(self, store: Store) -> None:
        low = add_run(priority=-100)
        lease_id = acquire(store)
        for turn in range(20):
            add_runs(2, priority=100)
            if turn == 15:
                store.age(age_seconds=0.0, limit=10)
            claim(store, lease_id, limit=1)
            if stored(low).status == Status.RUNNING:
                break
        assert turn == 15

    @pytest.mark.postgres
    def test_a_run_that_somebody_holds_is_not_waited_for(self, store: Store) -> None:
        held, free = add_runs(2, priority=-50)
        add_run(priority=7)
        with transaction.atomic():
            Run.objects.select_for_update().get(pk=held)
            assert store.age(age_seconds=0.0, limit=10) == 1
        assert (stored(held).priority, stored(free).priority) == (-50, 7)
