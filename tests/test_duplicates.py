"""Duplicates: what becomes of an enqueue while another run of its key waits, runs, or has ended not long ago."""

from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.db import OperationalError, connection, connections, transaction
from django.db.models.functions import Now

from django_dispatch import InvalidArguments, InvalidOption, Task, cancel, cancel_many, run_again
from django_dispatch.models import Run, Status
from django_dispatch.store import postgres_unique
from tests.kit import limited
from tests.kit.waiting import wait_for
from tests.wakeups import Ear

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("any_database")]

BLOCKED_BACKENDS = "SELECT count(*) FROM pg_stat_activity WHERE cardinality(pg_blocking_pids(pid)) > 0"


@pytest.fixture
def ear() -> Iterator[Ear]:
    ear = Ear()
    yield ear
    ear.close()


def stored() -> list[Run]:
    return list(Run.objects.order_by("pk"))


def end(run: Run, status: str = "SUCCESSFUL", **changes: Any) -> None:
    """Have a run end as the store does: its key is kept for as long as it is to be unique."""
    row = Run.objects.get(pk=run.pk)
    is_kept = row.unique_until is not None and status != "CANCELLED"
    Run.objects.filter(pk=run.pk).update(
        **{"status": status, "finished_at": Now(), "unique_key": row.unique_key if is_kept else None} | changes
    )


class TestDiscard:
    def test_the_run_that_is_there_is_returned_and_marked(self, ear: Ear) -> None:
        first = limited.discard.delay(1, label="x")
        assert ear.heard() == ["ready:default"]
        again = limited.discard.delay(1, label="x")
        assert (again.pk, again.is_duplicate, first.is_duplicate) == (first.pk, True, False)
        assert again.kwargs == {"label": "x"}
        assert ear.heard() == []
        assert len(stored()) == 1

    @pytest.mark.parametrize(
        "call",
        [
            lambda task: task.delay(number=1, gate="g"),
            lambda task: task.delay(1, "g"),
            lambda task: task.apply_async((1,), {"gate": "g"}, priority=5, queue="other"),
            lambda task: task.apply_async((1, "g"), countdown=60),
            lambda task: async_to_sync(task.adelay)(1, "g"),
        ],
    )
    def test_a_call_is_the_same_however_it_is_written(self, call: Any) -> None:
        first = limited.discard.delay(1, gate="g")
        assert call(limited.discard).pk == first.pk
        assert not limited.discard.delay(1).is_duplicate
        assert not limited.discard.delay(2, gate="g").is_duplicate

    @pytest.mark.parametrize("status", ["SCHEDULED", "RUNNING"])
    def test_a_retry_and_a_body_count(self, status: str) -> None:
        first = limited.discard.delay(1)
        later = {"run_after": Now()} if status == "SCHEDULED" else {"lease_id": "00000000-0000-0000-0000-000000000001"}
        Run.objects.update(status=status, **later)
        assert limited.discard.delay(1).pk == first.pk

    def test_what_has_ended_does_not(self) -> None:
        first = limited.discard.delay(1)
        end(first)
        assert limited.discard.delay(1).pk != first.pk
        cancel(stored()[-1])
        assert not limited.discard.delay(1).is_duplicate

    def test_what_was_rolled_back_does_not(self) -> None:
        with transaction.atomic():
            limited.discard.delay(1)
            transaction.set_rollback(True)
        assert not limited.discard.delay(1).is_duplicate

    def test_one_duplicate_does_not_cancel_the_rest(self, ear: Ear) -> None:
        there = limited.discard.delay(3)
        ear.heard()
        runs = limited.discard.delay_many([(number,) for number in (5, 3, 1, 5, 2)])
        assert [run.args for run in runs] == [[5], [3], [1], [5], [2]]
        assert [run.is_duplicate for run in runs] == [False, True, False, True, False]
        assert runs[1].pk == there.pk
        assert runs[0].pk == runs[3].pk
        assert len(stored()) == 4
        assert ear.heard() == ["ready:default"]

    def test_many_at_once_make_one(self) -> None:
        def enqueue(_: int) -> tuple[int, bool]:
            try:
                run = limited.discard.delay(1)
                return run.pk, run.is_duplicate
            finally:
                connection.close()

        with ThreadPoolExecutor(4) as threads:
            answers = list(threads.map(enqueue, range(40)))
        (row,) = stored()
        assert {pk for pk, _ in answers} == {row.pk}
        assert [is_duplicate for _, is_duplicate in answers].count(False) == 1

    def test_bulks_in_different_orders_do_not_deadlock(self) -> None:
        def enqueue(numbers: list[int]) -> int:
            try:
                return sum(not run.is_duplicate for run in limited.discard.delay_many([(n,) for n in numbers]))
            finally:
                connection.close()

        numbers = list(range(300))
        with ThreadPoolExecutor(4) as threads:
            new = list(threads.map(enqueue, (numbers, numbers[::-1], numbers[150:] + numbers[:150], numbers[::-1])))
        assert sum(new) == len(stored()) == 300


@pytest.mark.postgres
class TestWhatHappensInBetween:
    @pytest.fixture
    def other(self) -> Iterator["psycopg.Connection[Any]"]:
        """A session in whose transaction a run is enqueued, of the same key."""
        row = limited.discard.delay(1)
        key = row.unique_key
        Run.objects.all().delete()
        with psycopg.connect(**connections["default"].get_connection_params() | {"cursor_factory": None}) as session:
            session.execute("INSERT INTO django_dispatch_run (task, unique_key) VALUES ('other', %s)", [key])
            yield session

    @pytest.fixture
    def is_waited_for(self, other: Any) -> Iterator[Callable[[], bool]]:
        """Whether somebody waits for that transaction."""
        params = connections["default"].get_connection_params() | {"cursor_factory": None}
        with psycopg.connect(**params, autocommit=True) as eye:
            yield lambda: eye.execute(BLOCKED_BACKENDS).fetchone() == (1,)

    @pytest.fixture
    def waiting(self, is_waited_for: Callable[[], bool]) -> Iterator[Future[Run]]:
        """An enqueue that waits for that transaction."""

        def enqueue() -> Run:
            try:
                return limited.discard.delay(1)
            finally:
                connection.close()

        with ThreadPoolExecutor() as threads:
            future = threads.submit(enqueue)
            wait_for(is_waited_for)
            yield future

    def test_a_transaction_that_commits_was_first(self, other: Any, waiting: "Future[Run]") -> None:
        other.commit()
        run = waiting.result()
        assert (run.task, run.is_duplicate) == ("other", True)

    def test_one_that_rolls_back_was_not(self, other: Any, waiting: "Future[Run]") -> None:
        other.rollback()
        assert not waiting.result().is_duplicate

    def test_bulks_take_their_keys_in_one_order(self, other: Any, is_waited_for: Callable[[], bool]) -> None:
        """So that two bulks never wait for each other: one that waits for a key has taken none that comes after it."""
        keys = {number: limited.discard.new_run((number,), {}).unique_key or "" for number in range(1, 20)}
        later = next(number for number in keys if keys[number] > keys[1])

        def enqueue() -> list[bool]:
            try:
                return [run.is_duplicate for run in limited.discard.delay_many([(later,), (1,)])]
            finally:
                connection.close()

        with ThreadPoolExecutor() as threads:
            future = threads.submit(enqueue)
            wait_for(is_waited_for)
            other.execute("INSERT INTO django_dispatch_run (task, unique_key) VALUES ('other', %s)", [keys[later]])
            other.commit()
            assert future.result() == [True, True]

    @pytest.mark.parametrize(
        "statement", ["DELETE FROM django_dispatch_run", "UPDATE django_dispatch_run SET unique_key = NULL"]
    )
    def test_a_run_that_vanishes_before_it_is_looked_at_is_not_in_the_way(
        self, monkeypatch: pytest.MonkeyPatch, statement: str
    ) -> None:
        first = limited.discard.delay(1)
        find = postgres_unique._find

        def vanish(*args: Any) -> None:
            with connection.cursor() as cursor:
                cursor.execute(statement)
            find(*args)

        monkeypatch.setattr(postgres_unique, "_find", vanish)
        run = limited.discard.delay(1)
        assert (run.is_duplicate, run.pk == first.pk) == (False, False)

    def test_a_key_that_comes_and_goes_for_ever_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        limited.discard.delay(1)
        monkeypatch.setattr(postgres_unique, "_find", lambda *args: None)
        with pytest.raises(OperationalError, match="come and go too fast"):
            limited.discard.delay(1)


class TestUniqueFor:
    def test_it_holds_when_the_run_has_ended(self) -> None:
        first = limited.once_a_minute.delay(1)
        assert first.unique_until == first.enqueued_at + timedelta(seconds=60)
        end(first)
        again = limited.once_a_minute.delay(1)
        assert (again.pk, again.is_duplicate, again.status) == (first.pk, True, "SUCCESSFUL")
        assert not limited.once_a_minute.delay(2).is_duplicate

    def test_when_the_time_is_over_the_next_one_takes_the_key(self) -> None:
        first = limited.once_a_minute.delay(1)
        end(first, unique_until=Now() - timedelta(seconds=1))
        second = limited.once_a_minute.delay(1)
        assert not second.is_duplicate
        assert [run.unique_key for run in stored()] == [None, second.unique_key]
        assert stored()[0].status == "SUCCESSFUL"

    def test_a_run_that_has_not_ended_by_then_is_waited_for(self) -> None:
        first = limited.once_a_minute.delay(1)
        Run.objects.update(unique_until=Now() - timedelta(seconds=1))
        assert limited.once_a_minute.delay(1).pk == first.pk

    def test_a_cancelled_one_is_out_of_the_way(self) -> None:
        cancel(limited.once_a_minute.delay(1))
        assert not limited.once_a_minute.delay(1).is_duplicate


class TestReplace:
    def test_the_one_that_waits_gives_way(self) -> None:
        first = limited.replace.delay("a", 1)
        second = limited.replace.delay("a", 2)
        other = limited.replace.delay("b", 1)
        assert [run.status for run in stored()] == ["CANCELLED", "READY", "READY"]
        assert [second.is_duplicate, other.is_duplicate] == [False, False]
        (error,) = Run.objects.get(pk=first.pk).errors
        assert (error["kind"], error["message"]) == ("cancelled", "A newer run of its key took its place.")

    def test_one_that_runs_goes_on(self, claim_all: Any) -> None:
        first = limited.replace.delay("a", 1)
        claim_all()
        second, third = limited.replace.delay("a", 2), limited.replace.delay("a", 3)
        assert [run.status for run in stored()] == ["RUNNING", "CANCELLED", "READY"]
        assert (second.pk, third.is_duplicate, stored()[0].pk) == (stored()[1].pk, False, first.pk)

    @pytest.mark.postgres
    def test_one_that_comes_in_between_gives_way_too(self, monkeypatch: pytest.MonkeyPatch) -> None:
        limited.replace.delay("a", 1)
        whole = postgres_unique._holders

        def too_late(*args: Any) -> Any:
            monkeypatch.setattr(postgres_unique, "_holders", whole)
            limited.replace.delay("a", 2)
            return whole(*args)

        monkeypatch.setattr(postgres_unique, "_holders", too_late)
        third = limited.replace.delay("a", 3)
        assert (third.is_duplicate, third.args) == (False, ["a", 3])
        assert [run.status for run in stored()] == ["CANCELLED", "CANCELLED", "READY"]

    def test_of_a_bulk_the_last_one_stays(self) -> None:
        limited.replace.delay_many([("a", number) for number in range(5)])
        (last,) = Run.objects.exclude(status="CANCELLED")
        assert last.args == ["a", 4]


class TestQueueOne:
    def test_one_waits_beside_the_one_that_runs(self, claim_all: Any) -> None:
        first = limited.queue_one.delay("a")
        assert limited.queue_one.delay("a").pk == first.pk
        claim_all()
        second = limited.queue_one.delay("a")
        third = limited.queue_one.delay("a")
        assert (second.is_duplicate, third.pk) == (False, second.pk)
        claim_all()
        assert [run.status for run in stored()] == ["RUNNING", "BLOCKED"]


class TestIdempotencyKey:
    def test_the_first_run_is_returned_for_as_long_as_it_is_known(self) -> None:
        first = limited.whole.apply_async((1,), idempotency_key="order 7")
        end(first)
        again = limited.whole.apply_async((2,), idempotency_key="order 7")
        assert (again.pk, again.is_duplicate, again.status, first.uuid) == (first.pk, True, "SUCCESSFUL", "order 7")
        Run.objects.all().delete()
        assert not limited.whole.apply_async((1,), idempotency_key="order 7").is_duplicate

    def test_it_is_one_name_space_with_the_uuids_of_messages(self) -> None:
        Run.objects.create(task="other", uuid="u1", source="notify")
        assert limited.whole.apply_async(idempotency_key="u1").task == "other"

    def test_it_counts_beside_a_key(self) -> None:
        limited.discard.apply_async((1,), idempotency_key="a")
        assert limited.discard.apply_async((1,), idempotency_key="b").is_duplicate
        assert limited.discard.apply_async((2,), idempotency_key="a").is_duplicate
        assert len(stored()) == 1

    def test_it_is_for_one_run(self) -> None:
        with pytest.raises(InvalidOption, match="is for one run"):
            limited.whole.delay_many([(1,)], idempotency_key="a")


@pytest.mark.postgres
@pytest.mark.parametrize("level", ["repeatable read", "serializable"])
def test_under_other_isolation_levels_the_database_refuses_what_it_cannot_see(level: str) -> None:
    with pytest.raises(OperationalError, match="could not serialize"), transaction.atomic():
        with connection.cursor() as cursor:
            cursor.execute(f"SET TRANSACTION ISOLATION LEVEL {level}")
            cursor.execute("SELECT 1 FROM django_dispatch_run")

        def enqueue() -> None:
            try:
                limited.discard.delay(1)
            finally:
                connection.close()

        with ThreadPoolExecutor() as threads:
            threads.submit(enqueue).result()
        limited.discard.delay(1)


class TestKeys:
    def test_the_row_is_what_the_call_returned(self) -> None:
        for run in (
            limited.three.delay("k"),
            limited.once_a_minute.delay(1),
            limited.rated.apply_async(("r",), countdown=60),
            limited.serial.delay_many([("s",)])[0],
            limited.queue_one.delay("q"),
        ):
            row = Run.objects.get(pk=run.pk)
            different = {
                field.attname
                for field in Run._meta.concrete_fields
                if getattr(run, field.attname) != getattr(row, field.attname)
            }
            assert different == set()

    def test_an_option_takes_the_place_of_the_tasks_key(self) -> None:
        assert limited.one.delay("a").concurrency_key == "key:a"
        assert limited.one.apply_async(("a",), key="b").concurrency_key == "key:b"
        assert limited.whole.delay().concurrency_key == "task:tests.kit.limited.whole"
        assert limited.whole.apply_async(key="b").concurrency_key == "key:b"

    def test_a_long_one_is_hashed(self) -> None:
        one, two = (limited.one.delay("x" * 300 + end).concurrency_key for end in "ab")
        assert one != two
        assert one is not None
        assert len(one) < 255

    @pytest.mark.parametrize("bad", ["", "a\0", "\ud800"])
    def test_one_that_cannot_be_stored_is_refused(self, bad: str) -> None:
        with pytest.raises((InvalidArguments, InvalidOption)):
            limited.one.delay(bad)
        with pytest.raises(InvalidOption):
            limited.one.apply_async(("a",), key=bad)

    def test_one_that_means_nothing_is_refused(self) -> None:
        from testproject.shop.tasks import send_receipt

        task: Task[..., Any] = send_receipt
        with pytest.raises(InvalidOption, match="a key would mean nothing"):
            task.apply_async((1,), key="k")

    def test_a_copy_keeps_to_the_limits_and_is_nobodys_duplicate(self, ear: Ear) -> None:
        old = limited.serial.delay("a")
        end(old)
        ear.heard()
        new = run_again(old)
        assert (new.status, new.blocked_by, new.on_duplicate) == ("BLOCKED", "serial:key:a", "serial")
        assert ear.heard() == ["blocked:serial:key:a"]

    def test_a_wakeup_tells_of_the_key(self, ear: Ear) -> None:
        limited.one.delay("a")
        limited.one.delay_many([("b",), ("b",), ("c",)])
        limited.one.apply_async(("d",), countdown=60)
        assert ear.heard() == ["blocked:key:a", "blocked:key:b", "blocked:key:c", "scheduled:default"]

    def test_of_many_keys_one_wakeup_tells(self, ear: Ear) -> None:
        runs = limited.one.delay_many([(str(number),) for number in range(50)])
        with connection.cursor() as cursor:
            cursor.execute(
                "INSERT INTO django_dispatch_run (task, concurrency_key)"
                " SELECT 't', 'key ' || n FROM generate_series(1, 50) AS n"
            )
        Run.objects.filter(pk__in=[run.pk for run in runs]).update(status="READY", places=1, blocked_by=None)
        cancel_many(runs)
        assert ear.heard() == ["blocked:queue:"] * 3


@pytest.fixture
def claim_all() -> Iterator[Any]:
    """Admit and claim, as a dispatcher does."""
    from django_dispatch.store.vendors import open_store
    from tests.store.tables import acquire, claim

    store = open_store("default", "test", statement_timeout_seconds=20.0)

    def claim_all() -> None:
        store.admit(store.blocked_keys(after="", limit=100), most=100, queue_limits="{}")
        claim(store, lease)

    lease = acquire(store)
    yield claim_all
    store.close()


def test_a_limited_queues_runs_wait_there(settings: Any) -> None:
    settings.DISPATCH = {"QUEUE_LIMITS": {"mail": 5}}
    run = limited.discard.apply_async((1,), queue="mail")
    assert (run.status, run.blocked_by) == (Status.BLOCKED, "queue:mail")
    assert limited.discard.apply_async((2,), queue="default").status == Status.READY
