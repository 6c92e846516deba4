"""A broadcast is one run for each live dispatcher that serves its queue."""

from collections.abc import Iterator
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.db import connection, transaction
from django.db.models.functions import Now

from django_dispatch import Call, InvalidOption, InvalidTask, Task, run_now, task
from django_dispatch.models import Lease, Run, Schedule
from django_dispatch.patterns import private_queue
from django_dispatch.store.vendors import open_store
from tests.wakeups import Ear

pytestmark = pytest.mark.usefixtures("any_database")


HOUR = timedelta(hours=1)


@task(broadcast=True, queue="mail.fast", priority=3)
def refresh(what: str) -> None: ...


def plain() -> None: ...


def a_dispatcher(node: str, *queues: str, lives: timedelta = HOUR, **columns: Any) -> UUID:
    lease = Lease.objects.create(id=uuid4(), node=node, queues=list(queues), **columns)
    Lease.objects.filter(pk=lease.pk).update(expires_at=Now() + lives)
    return lease.pk


def test_a_schedule_of_one_is_refused() -> None:
    with pytest.raises(InvalidTask, match="this task is a broadcast"):
        Task(plain, broadcast=True, schedule="@daily")


def test_it_is_not_run_now_by_a_schedule(db: None) -> None:
    schedule = Schedule.objects.create(name="daily", task=refresh.path, args=["menu"], cron="@daily")
    with pytest.raises(InvalidOption, match="this task is a broadcast"):
        run_now(schedule)
    assert not Run.objects.exists()


@pytest.fixture
def ear(transactional_db: None) -> Iterator[Ear]:
    ear = Ear()
    yield ear
    ear.close()


def queues() -> list[str]:
    return list(Run.objects.order_by("pk").values_list("queue", flat=True))


@pytest.fixture
def targets(db: None) -> list[str]:
    """The private queues of the two dispatchers of five that are live, claim, and serve it."""
    b = a_dispatcher("b", "mail*", "-mail.slow")
    a = a_dispatcher("a", "*")
    a_dispatcher("expired", "*", lives=-HOUR)
    a_dispatcher("draining", "*", state="DRAINING")
    a_dispatcher("elsewhere", "mail", "reports")
    return [private_queue(a), private_queue(b)]


def test_each_dispatcher_that_serves_the_queue_gets_a_run(targets: list[str]) -> None:
    run = refresh.delay("menu")
    assert queues() == targets
    assert (run.queue, run.args, run.priority, run.status) == (targets[0], ["menu"], 3, "READY")
    first, second = Run.objects.order_by("pk")
    assert first.pk == run.pk
    assert first.meta == second.meta == run.meta
    assert set(run.meta) == {"broadcast"}


def test_the_queue_of_the_call_says_who_serves_it(targets: list[str]) -> None:
    run = refresh.apply_async(("menu",), queue="mail.slow", countdown=60)
    assert queues() == targets[:1]
    assert (run.queue, run.status) == (targets[0], "SCHEDULED")


def test_of_many_calls_the_first_run_of_each_is_returned_in_order(targets: list[str]) -> None:
    runs = refresh.delay_many([("a",), Call(("b",))])
    assert queues() == targets * 2
    assert [(run.args, run.queue) for run in runs] == [(["a"], targets[0]), (["b"], targets[0])]
    assert runs[0].meta != runs[1].meta
    assert refresh.delay_many([]) == []


@pytest.mark.django_db(transaction=True)
def test_it_is_part_of_the_transaction_and_wakes_each_after_the_commit(ear: Ear) -> None:
    lease_ids = [a_dispatcher(node, "*") for node in "ab"]
    with transaction.atomic():
        refresh.delay("menu")
        transaction.set_rollback(True)
    assert (queues(), ear.heard()) == ([], [])
    with transaction.atomic():
        refresh.delay("menu")
        assert ear.heard() == []
    assert ear.heard() == [f"ready:{private_queue(lease_id)}" for lease_id in lease_ids]


@pytest.mark.django_db(transaction=True)
def test_without_a_dispatcher_one_run_is_recorded_and_cancelled_by_the_next_one() -> None:
    run = refresh.delay("menu")
    reachable = private_queue(a_dispatcher("a", "reports"))
    others = [Run.objects.create(task="shop.add", queue=queue, source="app") for queue in ("lease", reachable)]
    store = open_store("default", "test", statement_timeout_seconds=20.0)
    try:
        if connection.features.has_select_for_update:
            with transaction.atomic():
                Run.objects.select_for_update().get(pk=run.pk)
                assert store.cancel_unreachable() == 0
        assert store.cancel_unreachable() == 1
    finally:
        store.close()
    run.refresh_from_db()
    assert run.status == "CANCELLED"
    assert set(Run.objects.filter(status="READY")) == set(others)
    assert run.finished_at is not None
    (error,) = run.errors
    assert (error["kind"], error["message"]) == ("unreachable", "It was for one dispatcher alone, which lives no more.")
