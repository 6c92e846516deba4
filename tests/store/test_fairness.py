"""Runs of fair keys take turns: whoever floods a queue keeps nobody else waiting for long, whichever door they use."""

import json
from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from django_dispatch.models import Run
from django_dispatch.store.base import Store
from django_dispatch.store.values import NewRun, Settlement
from django_dispatch.store.vendors import callers

from .tables import acquire, add_run, add_runs, claim, expire, finish, stored

FLOOD = 100
ONE_TASK = {"concurrency_key": "task:x", "concurrency_limit": 1}
SERIAL = {"concurrency_key": "serial:x", "concurrency_limit": 1, "on_duplicate": "serial"}


def flood(*keys: str | None, count: int = FLOOD, **columns: Any) -> list[int]:
    """Enqueue so many runs of each key, of one key after the other."""
    news = [NewRun("shop.add", fair_key=key, **columns) for key in keys for _ in range(count)]
    return [recorded.id for recorded in callers("default").enqueue_many("default", news)]


def keys_of(runs: Sequence[int]) -> list[str | None]:
    found = dict(Run.objects.values_list("pk", "fair_key"))
    return [found[run_id] for run_id in runs]


def claimed(store: Store, limit: int) -> list[str | None]:
    """Claim one after the other, and return whose they were."""
    lease_id = acquire(store)
    return keys_of([run.id for _ in range(limit) for run in claim(store, lease_id, limit=1)])


def promote(store: Store, **columns: Any) -> None:
    """Have runs that wait for their time be due, in the order of their ids."""
    for run_id in Run.objects.filter(status="SCHEDULED", **columns).order_by("pk").values_list("pk", flat=True):
        Run.objects.filter(pk=run_id).update(run_after=Now() - timedelta(seconds=100) + timedelta(milliseconds=run_id))
    store.promote(limit=10_000)


class TestShares:
    def test_a_run_beside_a_flood_is_next_but_one(self, store: Store) -> None:
        flood("a")
        alone = add_run(fair_key="b")
        assert claimed(store, 4) == ["a", "b", "a", "a"]
        assert stored(alone).status == "RUNNING"

    def test_whoever_comes_in_the_middle_of_a_flood_does_not_wait_for_its_end(self, store: Store) -> None:
        flood("a")
        assert claimed(store, 50) == ["a"] * 50
        add_run(fair_key="b")
        assert "b" in claimed(store, 2)
        add_runs(2, fair_key="b")
        add_run(fair_key="c")
        assert Counter(claimed(store, 6)) == {"a": 3, "b": 2, "c": 1}

    def test_those_who_flood_have_equal_shares_at_any_time(self, store: Store) -> None:
        keys = ["a", "b", "c", "d"]
        flood(*keys, count=40)
        seen: Counter[str | None] = Counter(dict.fromkeys(keys, 0))
        for place, key in enumerate(claimed(store, 160), 1):
            seen[key] += 1
            assert all(abs(count - place / 4) < 1 for count in seen.values()), (place, seen)

    def test_those_who_come_back_for_one_run_each_do_not_keep_a_flood_waiting(self, store: Store) -> None:
        """They have the next one enqueued when the last one ends; there is one of them in each line at any time."""
        flood("a", count=50)
        for key in "bcd":
            add_run(fair_key=key)
        lease_id, order = acquire(store), []
        for _ in range(40):
            (run,) = claim(store, lease_id, limit=1)
            (key,) = keys_of([run.id])
            order.append(key)
            finish(store, lease_id, Settlement(run.id, run.epoch, "SUCCESSFUL"))
            if key != "a":
                add_run(fair_key=key)
        assert Counter(order) == dict.fromkeys("abcd", 10)

    def test_many_keys_of_one_run_each_come_in_their_order(self, store: Store) -> None:
        runs = [add_run(fair_key=f"tenant-{number}") for number in range(20)]
        lease_id = acquire(store)
        found = [run.id for run in claim(store, lease_id)]
        assert set(found[:2]) == set(runs[:2])
        assert sorted(found) == runs

    def test_the_runs_of_one_key_start_in_their_order(self, store: Store) -> None:
        runs = [add_run(fair_key=key) for key in "abbacabcc" * 5]
        found = [run.id for run in claim(store, acquire(store))]
        for key in "abc":
            assert [run for run in found if keys_of([run]) == [key]] == [run for run in runs if keys_of([run]) == [key]]

    def test_priority_wins(self, store: Store) -> None:
        flood("a", count=10, priority=5)
        flood("a", count=10)
        add_run(fair_key="b")
        add_run(fair_key="a", priority=9)
        assert claimed(store, 13) == [*["a"] * 12, "b"]

    def test_each_queue_is_for_itself(self, store: Store) -> None:
        flood("x", queue="other", count=1)
        first = flood("b", count=5)
        flood("a", queue="other")
        flood("a", count=1)
        assert claimed(store, 3) == ["b", "a", "b"]
        assert stored(first[0]).turn == 2 * first[0]

    def test_each_priority_is_for_itself(self, store: Store) -> None:
        flood("x", priority=-5, count=20)
        flood("b", count=40)
        assert claimed(store, 20) == ["b"] * 20
        flood("a", priority=5)
        flood("a", "c", count=20)
        order = claimed(store, FLOOD + 30)[FLOOD:]
        assert all(abs(order.count(key) - 10) <= 1 for key in "abc")

    def test_runs_without_a_key_stay_in_the_order_of_their_ids(self, store: Store) -> None:
        before = add_runs(3)
        keyed = flood("a", "b", count=3)
        after = add_runs(3)
        late = add_run(fair_key="c")
        found = [run.id for run in claim(store, acquire(store))]
        assert found[:3] == before
        assert found[-3:] == after
        assert set(found[3:-3]) == {*keyed, late}
        assert {stored(run_id).turn for run_id in before + after} == {None}

    def test_a_flood_in_many_chunks_is_one_line(self, store: Store) -> None:
        flood("a", count=2500)
        assert Run.objects.values("turn").distinct().count() == 2500
        add_run(fair_key="b")
        assert claimed(store, 2) == ["a", "b"]


class TestDoors:
    def test_one_by_one(self, store: Store) -> None:
        recorded = [callers("default").enqueue("default", NewRun("shop.add", fair_key=key)) for key in "aaab"]
        assert [one.turn for one in recorded] == [stored(one.id).turn for one in recorded]
        assert claimed(store, 2) == ["a", "b"]

    def test_a_message(self, store: Store) -> None:
        store.receive([NewRun("shop.add", uuid=f"m{number}", fair_key="ab"[number // 5]) for number in range(6)])
        assert claimed(store, 3) == ["a", "b", "a"]

    def test_a_copy(self, store: Store) -> None:
        old = add_run(fair_key="b", status="SUCCESSFUL")
        flood("a")
        new = callers("default").rerun("default", old)
        assert new is not None
        assert (new.fair_key, new.turn) == ("b", stored(new.pk).turn)
        assert claimed(store, 2) == ["a", "b"]

    @pytest.mark.parametrize("status", ["SCHEDULED", "SUCCESSFUL"])
    def test_what_does_not_wait_in_line_has_no_turn(self, store: Store, status: str) -> None:
        assert stored(add_run(fair_key="a", status=status)).turn is None


class TestComingBack:
    def test_runs_that_are_due_take_turns(self, store: Store) -> None:
        flood("a", delay_seconds=3600.0, count=50)
        flood("b", delay_seconds=3600.0, count=50)
        promote(store)
        order = claimed(store, 100)
        assert abs(Counter(order[:20])["a"] - 10) <= 1
        assert [run.pk for run in Run.objects.filter(fair_key="a").order_by("turn")] == [
            run.pk for run in Run.objects.filter(fair_key="a").order_by("pk")
        ]

    def test_retries_of_a_flood_keep_nobody_waiting(self, store: Store) -> None:
        """However many fail: they come behind the other runs of their key."""
        flood("a", count=100)
        lease_id = acquire(store)
        failed = claim(store, lease_id, limit=50)
        flood("b", count=50)
        settlements = [Settlement(run.id, run.epoch, "SCHEDULED", delay_seconds=3600.0) for run in failed]
        assert finish(store, lease_id, *settlements) == []
        promote(store)
        order = claimed(store, 100)
        assert abs(Counter(order[:40])["b"] - 20) <= 1
        assert order[100:] == []

    def test_a_run_that_is_given_back_before_its_start_keeps_its_turn(self, store: Store) -> None:
        flood("a", "b", count=5)
        lease_id = acquire(store)
        taken = claim(store, lease_id, limit=4)
        finish(store, lease_id, *[Settlement(run.id, run.epoch, "READY", was_started=False) for run in taken])
        assert [run.id for run in claim(store, acquire(store), limit=4)] == [run.id for run in taken]

    @pytest.mark.parametrize("how", ["lost", "interrupted"])
    def test_a_run_that_comes_back_after_long_takes_nobody_back_in_time(self, store: Store, how: str) -> None:
        """Else a flood that comes while it waits would count from its turn, and be before all who wait."""
        old = add_run(fair_key="old")
        lease_id = acquire(store)
        (run,) = claim(store, lease_id)
        flood("x", count=200)
        other = acquire(store)
        assert len(claim(store, other, limit=200)) == 200
        flood("a", count=20)
        if how == "lost":
            expire(lease_id, seconds=100)
            store.reclaim(grace_seconds=2, max_interruptions=5)
        else:
            finish(store, lease_id, Settlement(old, run.epoch, "READY", was_interrupted=True))
        assert stored(old).status == "READY"
        flood("b", count=20)
        order = claimed(store, 20)
        assert "old" in order[:3]
        assert abs(Counter(order)["a"] - Counter(order)["b"]) <= 2

    def test_a_run_that_is_brought_forward_takes_turns_there_too(self, store: Store) -> None:
        flood("a", count=10, priority=-5)
        Run.objects.update(enqueued_at=Now() - timedelta(hours=1))
        flood("b", count=10)
        assert store.age(age_seconds=60.0, limit=10) == 10
        assert set(Run.objects.values_list("priority", flat=True)) == {0}
        order = claimed(store, 20)
        assert abs(Counter(order[:10])["b"] - 5) <= 1


class TestLimits:
    def admit_and_claim(self, store: Store, lease_id: Any, key: str, queue_limits: str = "{}") -> int:
        """Return the run that passes the limit, and end it."""
        store.admit([key], most=100, queue_limits=queue_limits)
        (run,) = claim(store, lease_id)
        finish(store, lease_id, Settlement(run.id, run.epoch, "SUCCESSFUL"))
        return run.id

    def test_keys_take_turns_at_a_limit(self, store: Store) -> None:
        flood("a", "b", count=5, **ONE_TASK)
        lease_id = acquire(store)
        assert keys_of([self.admit_and_claim(store, lease_id, "task:x") for _ in range(6)]) == list("ababab")

    def test_keys_take_turns_at_the_limit_of_a_queue(self, store: Store) -> None:
        flood("a", "b", count=5, is_limited=True)
        turns = dict(Run.objects.values_list("pk", "turn"))
        limits = json.dumps({"default": {"concurrency": 1}})
        lease_id = acquire(store)
        order = [self.admit_and_claim(store, lease_id, "queue:default", limits) for _ in range(6)]
        assert keys_of(order) == list("ababab")
        assert turns.items() >= {run_id: stored(run_id).turn for run_id in order}.items(), "the same before and after"

    def test_a_run_that_holds_a_place_does_not_wait_behind_its_own_flood(self, store: Store) -> None:
        flood("a")
        (limited,) = flood("a", count=1, **ONE_TASK)
        store.admit(["task:x"], most=100, queue_limits="{}")
        assert limited in [run.id for run in claim(store, acquire(store), limit=3)]

    def test_one_that_waited_long_at_a_limit_takes_nobody_back_in_time(self, store: Store) -> None:
        flood("old", count=1, **ONE_TASK)
        flood("x", count=200)
        claim(store, acquire(store), limit=200)
        flood("a", count=20)
        store.admit(["task:x"], most=100, queue_limits="{}")
        flood("b", count=20)
        order = claimed(store, 20)
        assert "old" in order[:3]
        assert abs(Counter(order)["a"] - Counter(order)["b"]) <= 2

    def test_where_order_counts_it_is_that_of_the_ids(self, store: Store) -> None:
        runs = flood("a", "b", count=3, **SERIAL)
        lease_id = acquire(store)
        assert [self.admit_and_claim(store, lease_id, "serial:x") for _ in range(6)] == runs

    def test_where_order_counts_it_is_so_for_runs_that_were_due_later(self, store: Store) -> None:
        runs = flood("a", "b", count=3, delay_seconds=3600.0, **SERIAL)
        promote(store)
        lease_id = acquire(store)
        assert [self.admit_and_claim(store, lease_id, "serial:x") for _ in range(6)] == runs

    def test_a_retry_that_kept_its_place_does_not_wait_behind_its_own_flood(self, store: Store) -> None:
        flood("a")
        (run_id,) = flood("a", count=1, **SERIAL)
        store.admit(["serial:x"], most=100, queue_limits="{}")
        lease_id = acquire(store)
        (run,) = (run for run in claim(store, lease_id, limit=3) if run.id == run_id)
        finish(store, lease_id, Settlement(run.id, run.epoch, "SCHEDULED", delay_seconds=3600.0))
        promote(store)
        assert run_id in [run.id for run in claim(store, acquire(store), limit=3)]
