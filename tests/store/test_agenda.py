"""The agenda says what each step would find, and writes nothing."""

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from django.db.models.functions import Now

from django_dispatch.models import Lease, PausedQueue, Run, Status
from django_dispatch.patterns import private_queue
from django_dispatch.store.base import Store
from django_dispatch.store.values import Agenda

from .tables import FAR_OFF, LONG_AGO, acquire, add_run, add_running, expire
from .test_schedules import TASK, a_schedule

NOTHING = Agenda([], [], None, None, None, False, [])


def agenda(store: Store, *, host: str = "here", limit: int = 100) -> Agenda:
    return store.agenda(host=host, tasks=[TASK], grace_seconds=2.0, limit=limit)


def in_seconds(run_id: int, name: str, seconds: float) -> None:
    Run.objects.filter(pk=run_id).update(**{name: Now() + timedelta(seconds=seconds)})


def test_of_what_has_ended_or_runs_nothing_is_to_do(store: Store) -> None:
    lease_id = acquire(store, host="here")
    for status in (Status.SUCCESSFUL, Status.FAILED, Status.CANCELLED):
        add_run(status=status, expires_at=LONG_AGO)
    add_running(store, lease_id)
    assert agenda(store) == NOTHING._replace(leases=[lease_id])


def test_it_names_the_queues_that_have_ready_runs_and_are_not_paused(store: Store) -> None:
    for queue in ("b", "a", "b", "paused"):
        add_run(queue=queue)
    PausedQueue.objects.create(name="paused")
    assert agenda(store) == NOTHING._replace(ready_queues=["a", "b"])


def test_it_names_the_first_keys_at_which_runs_wait(store: Store) -> None:
    for key in ("c", "b", "a", "b"):
        add_run(status=Status.BLOCKED, concurrency_key=key)
    add_run(status=Status.BLOCKED, queue="q")
    assert agenda(store) == NOTHING._replace(blocked_keys=["a", "b", "c", "queue:q"])
    assert agenda(store, limit=2).blocked_keys == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "columns", "found"),
    [
        ("run_after", {"status": Status.SCHEDULED}, "promote_seconds"),
        ("expires_at", {"status": Status.BLOCKED, "concurrency_key": "k"}, "expire_seconds"),
    ],
)
def test_the_seconds_are_those_until_the_first_run_of_all(
    store: Store, name: str, columns: dict[str, Any], found: str
) -> None:
    runs = [add_run(**columns) for _ in range(3)]
    in_seconds(runs[1], name, 50)
    seconds = getattr(agenda(store), found)
    assert 45 < seconds <= 50
    in_seconds(runs[2], name, -50)
    assert getattr(agenda(store), found) <= 0
    if found == "expire_seconds":
        Run.objects.update(attempt=1)
        assert getattr(agenda(store), found) is None


class TestSchedules:
    @pytest.mark.parametrize(
        "columns", [{}, {"next_at": None, "planned_revision": 0}, {"next_at": FAR_OFF, "planned_revision": 0}], ids=str
    )
    def test_one_that_is_due_or_not_planned_is_to_be_looked_at_now(self, store: Store, columns: dict[str, Any]) -> None:
        a_schedule(**columns)
        assert agenda(store) == NOTHING._replace(schedule_seconds=0.0)

    @pytest.mark.parametrize("columns", [{"task": "shop.other"}, {"enabled": False}, {"next_at": None}], ids=str)
    def test_others_are_not(self, store: Store, columns: dict[str, Any]) -> None:
        a_schedule(**columns)
        assert agenda(store) == NOTHING

    def test_the_seconds_are_those_until_the_next_one(self, store: Store) -> None:
        for number, next_at in enumerate((FAR_OFF, Now() + timedelta(seconds=50))):
            a_schedule(name=str(number), next_at=next_at)
        seconds = agenda(store).schedule_seconds
        assert seconds is not None
        assert 45 < seconds <= 50
        a_schedule(name="due", next_at=LONG_AGO)
        assert agenda(store).schedule_seconds == 0.0


class TestLost:
    def test_a_lease_that_expired_is_lost_after_the_grace(self, store: Store) -> None:
        lease_id = acquire(store)
        expire(lease_id, seconds=1.0)
        assert not agenda(store).has_lost
        expire(lease_id, seconds=3.0)
        assert agenda(store).has_lost
        store.reclaim(grace_seconds=2.0, max_interruptions=3)
        assert not agenda(store).has_lost

    def test_so_is_a_run_whose_lease_does_not_exist_among_others(self, store: Store) -> None:
        live = acquire(store)
        add_running(store, live)
        run = add_running(store, live)
        assert not agenda(store).has_lost
        Run.objects.filter(pk=run.id).update(lease=uuid4())
        assert agenda(store).has_lost

    def test_and_the_word_of_one_that_waited(self, store: Store) -> None:
        lease_id = acquire(store)
        store.say_waiting(lease_id, queues=["*"], is_waiting=True)
        assert not agenda(store).has_lost
        Lease.objects.all().delete()
        assert agenda(store).has_lost

    def test_and_a_run_in_the_private_queue_of_one(self, store: Store) -> None:
        add_run(queue=private_queue(acquire(store)))
        assert not agenda(store).has_lost
        add_run(queue=private_queue(uuid4()))
        assert agenda(store).has_lost
        store.cancel_unreachable()
        assert not agenda(store).has_lost


def test_the_leases_are_those_of_the_host(store: Store) -> None:
    ours = {acquire(store, host="here"), acquire(store, host="here")}
    acquire(store, host="there")
    assert set(agenda(store).leases) == ours
