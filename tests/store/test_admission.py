"""Admission: who may pass a limit, in which order, and that two admissions at once never let too many pass."""

import asyncio
import json
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any
from unittest.mock import Mock

import psycopg
import pytest
from django.db import IntegrityError, OperationalError, connection, transaction
from django.db.models.functions import Now

from django_dispatch import cancel
from django_dispatch.dispatcher.admission import SECOND_LOOK_SECONDS, Admission
from django_dispatch.dispatcher.store_thread import StoreThread
from django_dispatch.models import Bucket, Run, Status
from django_dispatch.rates import Limit
from django_dispatch.store.base import Store
from django_dispatch.store.values import Admitted, Settlement
from tests.wakeups import Ear

from .tables import FAR_OFF, acquire, add_run, add_running, claim, expire, finish, statuses, stored, success

HOT = {"concurrency_key": "hot", "concurrency_limit": 2}
SERIAL = {"concurrency_key": "serial:x", "concurrency_limit": 1, "on_duplicate": "serial"}
NOTHING = Admitted([], [], {})


def admit(store: Store, *keys: str, most: int = 100, **limits: Any) -> Admitted:
    return store.admit(keys, most=most, queue_limits=json.dumps(limits))


def blocked(count: int = 1, **columns: Any) -> list[int]:
    """Runs as anybody inserts them: they have a key."""
    runs = [add_run(**{**HOT, **columns}) for _ in range(count)]
    assert statuses(runs) == ["BLOCKED"] * count
    return runs


class TestTheGate:
    def test_a_run_with_a_key_waits_by_whichever_door_it_came(self, store: Store, ear: Ear) -> None:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO django_dispatch_run (task, concurrency_key) VALUES ('t', 'hot') RETURNING id")
            (run_id,) = cursor.fetchone()
        run = stored(run_id)
        assert (run.status, run.blocked_by, run.places, run.source) == ("BLOCKED", "hot", 0, "sql")
        assert ear.heard() == ["blocked:hot"]

    @pytest.mark.postgres
    def test_a_row_that_waits_for_its_queue_need_not_say_so(self, store: Store) -> None:
        assert stored(add_run(status="BLOCKED", queue="mail")).blocked_by == "queue:mail"

    def test_one_without_a_key_does_not_wait(self, store: Store) -> None:
        run = stored(add_run())
        assert (run.status, run.blocked_by, run.places) == ("READY", None, 0)

    def test_one_that_is_due_later_waits_for_its_time_first(self, store: Store) -> None:
        run_id = add_run(**HOT, status="SCHEDULED")
        assert (stored(run_id).status, stored(run_id).blocked_by) == ("SCHEDULED", None)
        Run.objects.update(run_after=Now() - timedelta(seconds=1))
        assert store.promote(limit=10) == ([], None, ["hot"])
        assert (stored(run_id).status, stored(run_id).blocked_by) == ("BLOCKED", "hot")

    @pytest.mark.parametrize(
        "change", ["status = 'READY'", "blocked_by = NULL", "concurrency_key = 'queue:mail'", "concurrency_key = ''"]
    )
    def test_no_statement_gets_a_run_past_its_limit(self, store: Store, change: str) -> None:
        blocked()
        with pytest.raises(IntegrityError), connection.cursor() as cursor:
            cursor.execute(f"UPDATE django_dispatch_run SET {change}")


class TestPlaces:
    def test_as_many_as_the_limit_pass_best_first(self, store: Store) -> None:
        low, first, second, high = blocked(3) + blocked(priority=5)
        assert admit(store, "hot") == (["default"], [], {})
        assert statuses([high, low, first, second]) == ["READY", "READY", "BLOCKED", "BLOCKED"]
        assert admit(store, "hot") == NOTHING
        assert stored(high).blocked_by is None

    @pytest.mark.parametrize("status", ["SUCCESSFUL", "FAILED", "CANCELLED", "SCHEDULED"])
    def test_an_end_or_a_later_retry_frees_the_place(self, store: Store, status: str) -> None:
        one, two = blocked(2, concurrency_limit=1)
        lease = acquire(store)
        admit(store, "hot")
        (run,) = claim(store, lease)
        assert (run.id, run.concurrency_key) == (one, "hot")
        assert admit(store, "hot") == NOTHING
        finish(store, lease, success(run, status=status, delay_seconds=60.0 if status == "SCHEDULED" else None))
        assert admit(store, "hot").queues == ["default"]
        assert stored(two).status == "READY"

    def test_a_run_that_is_given_back_keeps_its_place(self, store: Store) -> None:
        one, two = blocked(2, concurrency_limit=1)
        lease = acquire(store)
        admit(store, "hot")
        (run,) = claim(store, lease)
        finish(store, lease, Settlement(one, run.epoch, "READY", was_started=False))
        assert admit(store, "hot") == NOTHING
        assert statuses([one, two]) == ["READY", "BLOCKED"]

    def test_the_first_loss_keeps_the_place_and_the_next_gives_it_up(self, store: Store) -> None:
        one, two = blocked(2, concurrency_limit=1)
        admit(store, "hot")
        for expected in (["READY", "BLOCKED"], ["SCHEDULED", "READY"]):
            lease = acquire(store)
            assert [run.id for run in claim(store, lease)] == [one]
            expire(lease, seconds=100)
            store.reclaim(grace_seconds=2, max_interruptions=5)
            admit(store, "hot")
            assert statuses([one, two]) == expected

    def test_a_cancel_frees_the_place_and_tells(self, store: Store, ear: Ear) -> None:
        one, two = blocked(2, concurrency_limit=1)
        admit(store, "hot")
        ear.heard()
        cancel(two)
        assert ear.heard() == []  # it had none
        cancel(one)
        assert ear.heard() == ["blocked:hot"]

    def test_a_key_without_a_limit_admits_one(self, store: Store) -> None:
        runs = blocked(2, concurrency_limit=None)
        admit(store, "hot")
        assert statuses(runs) == ["READY", "BLOCKED"]

    def test_no_more_pass_at_once_than_asked_and_the_key_is_named_again(self, store: Store) -> None:
        runs = blocked(5, concurrency_limit=4)
        assert admit(store, "hot", most=2) == (["default"], ["hot"], {})
        assert admit(store, "hot", most=2) == (["default"], ["hot"], {})
        assert admit(store, "hot", most=2) == NOTHING
        assert statuses(runs) == ["READY"] * 4 + ["BLOCKED"]

    @pytest.mark.postgres
    def test_a_row_that_somebody_holds_is_not_waited_for(self, store: Store) -> None:
        held, free = blocked(2)
        with transaction.atomic():
            Run.objects.select_for_update().get(pk=held)
            admit(store, "hot")
        assert statuses([held, free]) == ["BLOCKED", "READY"]

    @pytest.mark.postgres
    def test_where_order_counts_nobody_passes_one_that_is_held(self, store: Store) -> None:
        held, free = blocked(2, **SERIAL)
        with transaction.atomic():
            Run.objects.select_for_update().get(pk=held)
            assert admit(store, "serial:x") == NOTHING
        assert statuses([held, free]) == ["BLOCKED", "BLOCKED"]


class TestSerial:
    def test_a_retry_keeps_its_place_and_so_the_order(self, store: Store) -> None:
        one, two = blocked(2, **SERIAL)
        lease = acquire(store)
        admit(store, "serial:x")
        (run,) = claim(store, lease)
        finish(store, lease, Settlement(one, run.epoch, "SCHEDULED", delay_seconds=0.0, has_failed=True))
        assert admit(store, "serial:x") == NOTHING
        assert store.promote(limit=10).queues == ["default"]
        assert statuses([one, two]) == ["READY", "BLOCKED"]

    @pytest.mark.parametrize("interruptions", [0, 1])
    def test_a_loss_keeps_it_too(self, store: Store, interruptions: int) -> None:
        one, two = blocked(2, **SERIAL, interruptions=interruptions)
        lease = acquire(store)
        admit(store, "serial:x")
        claim(store, lease)
        expire(lease, seconds=100)
        store.reclaim(grace_seconds=2, max_interruptions=5)
        assert admit(store, "serial:x") == NOTHING
        assert stored(two).status == "BLOCKED"
        assert stored(one).status == ("READY", "SCHEDULED")[interruptions]


class TestQueues:
    def test_a_queue_has_places_of_its_own(self, store: Store) -> None:
        runs = [add_run(queue="mail", status="BLOCKED") for _ in range(3)]
        assert admit(store, "queue:mail", mail={"concurrency": 2}) == (["mail"], [], {})
        assert statuses(runs) == ["READY", "READY", "BLOCKED"]
        assert admit(store, "queue:mail", mail={"concurrency": 2}) == NOTHING

    def test_a_run_passes_its_key_and_then_its_queue(self, store: Store) -> None:
        one, two, three = blocked(2, queue="mail") + blocked(queue="mail", concurrency_key="other")
        limits = {"mail": {"concurrency": 1}}
        assert admit(store, "hot", "other", **limits) == ([], ["queue:mail", "queue:mail"], {})
        assert [(run.status, run.blocked_by) for run in map(stored, (one, two, three))] == [
            ("BLOCKED", "queue:mail")
        ] * 3
        assert admit(store, "queue:mail", **limits).queues == ["mail"]
        assert statuses([one, two, three]) == ["READY", "BLOCKED", "BLOCKED"]
        four = blocked(queue="mail")[0]
        admit(store, "hot", **limits)
        assert stored(four).blocked_by == "hot"  # two hold its places, though one of them waits for the queue

    def test_a_retry_gives_the_places_up_and_waits_for_them_again(self, store: Store) -> None:
        (one,) = blocked(queue="mail")
        lease = acquire(store)
        admit(store, "hot", mail={"concurrency": 1})
        admit(store, "queue:mail", mail={"concurrency": 1})
        (run,) = claim(store, lease, queues=["mail"])
        finish(store, lease, Settlement(one, run.epoch, "SCHEDULED", delay_seconds=0.0))
        assert stored(one).places == 0
        assert store.promote(limit=10, limited_queues=["mail"]).blocked_keys == ["hot"]

    def test_runs_of_a_limited_queue_wait_there_when_they_are_due(self, store: Store) -> None:
        add_run(queue="mail", status="SCHEDULED", run_after=Now())
        assert store.promote(limit=10, limited_queues=["mail"]).blocked_keys == ["queue:mail"]

    def test_a_queue_that_has_no_limit_any_more_lets_all_pass(self, store: Store) -> None:
        runs = [add_run(queue="mail", status="BLOCKED") for _ in range(3)]
        admit(store, "queue:mail")
        assert statuses(runs) == ["READY"] * 3


class TestRates:
    RATE = {"concurrency_key": "api", "concurrency_limit": None, "rate_amount": 3, "rate_seconds": 60.0}

    def test_a_full_bucket_lets_its_amount_pass_and_says_when_to_come_again(self, store: Store) -> None:
        runs = blocked(5, **self.RATE)
        admitted = admit(store, "api")
        assert admitted.queues == ["default"]
        assert 15 < admitted.later["api"] <= 20
        assert statuses(runs).count("READY") == 3
        assert admit(store, "api").queues == []

    def test_a_token_comes_with_time(self, store: Store) -> None:
        runs = blocked(5, **self.RATE)
        admit(store, "api")
        Bucket.objects.update(filled_at=Now() - timedelta(seconds=21))
        admit(store, "api")
        assert statuses(runs).count("READY") == 4
        Bucket.objects.update(filled_at=Now() - timedelta(days=365))
        admit(store, "api")
        assert statuses(runs).count("READY") == 5
        assert Bucket.objects.get().tokens == 2  # it held no more than its amount

    def test_a_clock_that_goes_back_takes_nothing_away(self, store: Store) -> None:
        Bucket.objects.create(key="api", tokens=2.0, filled_at=Now() + timedelta(days=1))
        runs = blocked(5, **self.RATE)
        admit(store, "api")
        assert statuses(runs).count("READY") == 2

    def test_rate_and_limit_hold_both(self, store: Store) -> None:
        runs = blocked(5, **{**self.RATE, "concurrency_limit": 1})
        assert admit(store, "api") == (["default"], [], {})
        assert statuses(runs).count("READY") == 1

    def test_a_queue_may_have_one(self, store: Store) -> None:
        runs = [add_run(queue="mail", status="BLOCKED") for _ in range(3)]
        admitted = admit(store, "queue:mail", mail={"rate_amount": 1, "rate_seconds": 10})
        assert (statuses(runs), list(admitted.later)) == (["READY", "BLOCKED", "BLOCKED"], ["queue:mail"])

    def test_buckets_that_are_full_again_are_forgotten(self, store: Store) -> None:
        Bucket.objects.create(key="old", tokens=0.0, filled_at=Now() - timedelta(days=1, seconds=1))
        Bucket.objects.create(key="new", tokens=0.0, filled_at=Now() - timedelta(hours=23))
        store.prune_buckets()
        assert list(Bucket.objects.values_list("key", flat=True)) == ["new"]


class TestTheSweep:
    def test_it_goes_from_key_to_key_and_on_from_where_it_ended(self, store: Store) -> None:
        for key in ("a", "b", "b", "c", "d"):
            blocked(concurrency_key=key)
        assert store.blocked_keys(after="", limit=3) == ["a", "b", "c"]
        assert store.blocked_keys(after="c", limit=3) == ["d"]
        assert store.blocked_keys(after="d", limit=3) == []


class TestAtTheSameTime:
    def test_many_at_many_keys_neither_deadlock_nor_admit_too_many(self, new_store: Callable[[], Store]) -> None:
        keys = [f"key {number}" for number in range(30)]
        for key in keys:
            blocked(3, concurrency_key=key, concurrency_limit=1)

        def all_of(mine: Sequence[str]) -> None:
            store = new_store()
            for _ in range(10):
                admit(store, *mine)

        with ThreadPoolExecutor() as threads:
            list(threads.map(all_of, (keys, keys[::-1], keys[10:] + keys[:10], keys[::2] + keys[1::2])))
        assert Run.objects.filter(status=Status.READY).count() == len(keys)


class TestTheStep:
    """The dispatcher's part, on its loop."""

    @pytest.fixture
    def admission(self, new_store: Callable[[], Store]) -> Iterator[Callable[..., Admission]]:
        def make(**limits: Any) -> Admission:
            thread = StoreThread(new_store(), deadline_seconds=20)  # type: ignore[arg-type]
            threads.append(thread)
            return Admission(thread, limits, announce=announce, sweep_pause=lambda: 1000.0, hurry=lambda: None)

        async def announce(queues: Sequence[str]) -> None:
            pass

        threads: list[StoreThread] = []
        yield make
        for thread in threads:
            thread._executor.shutdown()

    def test_a_burst_looks_at_every_key(self, admission: Any) -> None:
        for number in range(250):
            blocked(concurrency_key=f"key {number}")
        asyncio.run(admission().settle())
        assert Run.objects.filter(status="READY").count() == 250

    def test_a_run_passes_all_its_limits_one_after_the_other(self, admission: Any) -> None:
        run_id = blocked(queue="mail")[0]

        async def main() -> None:
            steps = admission(mail=Limit(1))
            steps.admit_soon(["hot"])
            while await steps.step() == 0:
                pass

        asyncio.run(main())
        assert (stored(run_id).status, stored(run_id).places) == ("READY", 2)

    def test_what_the_agenda_names_is_admitted_without_a_sweep(self, admission: Any) -> None:
        runs = [blocked(concurrency_key=key)[0] for key in "ab"]
        Run.objects.filter(pk__in=runs).update(status=Status.SCHEDULED, blocked_by=None, run_after=FAR_OFF)

        async def main() -> list[list[str]]:
            steps = admission()
            await steps.step()  # a sweep that finds nobody
            await asyncio.to_thread(block)
            assert steps.swept([], 1000.0) > 900
            assert steps.swept(["a"], 1000.0) == 0.0
            await steps.step()
            seen = [await asyncio.to_thread(statuses, runs)]
            steps.sweep_soon()
            steps.swept([], 1000.0)  # it was read before
            await steps.step()
            return [*seen, await asyncio.to_thread(statuses, runs)]

        def block() -> None:
            for run_id, key in zip(runs, "ab", strict=True):
                Run.objects.filter(pk=run_id).update(status=Status.BLOCKED, blocked_by=key, run_after=None)
            connection.close()

        assert asyncio.run(main()) == [["READY", "BLOCKED"], ["READY", "READY"]]

    @pytest.mark.postgres
    def test_it_looks_again_after_an_admission_for_what_no_wakeup_told(self, admission: Any) -> None:
        told, untold = blocked(2)
        Run.objects.filter(pk=untold).update(blocked_by="elsewhere")

        async def main() -> None:
            steps = admission()
            assert await steps.step() < 1  # long before the next sweep
            with psycopg.connect(**connection.get_connection_params() | {"cursor_factory": None}) as session:
                session.execute("UPDATE django_dispatch_run SET blocked_by = 'hot' WHERE id = %s", [untold])
            await asyncio.sleep(SECOND_LOOK_SECONDS)
            await steps.step()

        asyncio.run(main())
        assert statuses([told, untold]) == ["READY", "READY"]

    def test_it_comes_again_when_a_rate_is_due(self, admission: Any) -> None:
        runs = blocked(2, concurrency_key="api", concurrency_limit=None, rate_amount=1, rate_seconds=0.2)

        async def main() -> None:
            steps = admission()
            for _ in range(100):
                pause = await steps.step()
                if not steps._due:
                    return
                await asyncio.sleep(pause)

        asyncio.run(main())
        assert statuses(runs) == ["READY", "READY"]

    def test_what_an_error_kept_from_being_admitted_is_wanted_still(self, admission: Any) -> None:
        (run_id,) = blocked()

        async def main() -> None:
            steps = admission()
            store = steps._store.store
            whole, store.admit = store.admit, Mock(side_effect=OperationalError)
            with pytest.raises(OperationalError):
                await steps.step()
            store.admit = whole
            await steps.step()

        asyncio.run(main())
        assert stored(run_id).status == "READY"


def test_a_claim_does_not_look_at_keys(store: Store) -> None:
    run = add_running(store, acquire(store))
    assert run.concurrency_key is None
