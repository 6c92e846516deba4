"""The small parts of a dispatcher that decide something by themselves."""

import asyncio
import logging
import signal
from typing import Any
from uuid import uuid4

import pytest
from django.db import OperationalError

from django_dispatch.conf import DispatchSettings
from django_dispatch.dispatcher.backoff import Backoff
from django_dispatch.dispatcher.durations import Durations
from django_dispatch.dispatcher.executor import Executor
from django_dispatch.dispatcher.housekeeping import Housekeeping
from django_dispatch.dispatcher.pool import Pool
from django_dispatch.dispatcher.queues import Queues
from django_dispatch.dispatcher.room import Room, room_in
from django_dispatch.dispatcher.stats import Stats
from django_dispatch.dispatcher.store_thread import StoreThread
from django_dispatch.dispatcher.trouble import Trouble
from django_dispatch.executors.fence import NEVER, Board, now_ns
from django_dispatch.finish import TaskFacts
from django_dispatch.messages import Kind
from django_dispatch.store.postgres import open_store
from django_dispatch.store.values import ClaimedRun

# durations: who may be sent ahead


def test_nobody_is_sent_ahead_before_anything_is_known() -> None:
    durations = Durations()
    assert (durations.ahead(100), durations.is_tiny("new")) == (0, False)


def test_who_is_short_is_known_by_its_task() -> None:
    durations = Durations()
    for _ in range(50):
        durations.learn("short", 0.005)
        durations.learn("long", 1.0)
    assert [durations.is_short(task) for task in ("short", "long", "new")] == [True, False, False]


def test_tiny_runs_are_sent_ahead_and_long_ones_end_that_at_once() -> None:
    durations = Durations()
    for _ in range(50):
        durations.learn("tiny", 0.0001)
    assert durations.is_tiny("tiny")
    assert not durations.is_tiny("another")
    assert durations.ahead(1000) == 200
    assert durations.ahead(7) == 7
    durations.learn("tiny", 1.0)
    assert not durations.is_tiny("tiny")
    assert durations.ahead(1000) == 0
    for _ in range(50):
        durations.learn("tiny", 0.0001)
    assert durations.is_tiny("tiny")


def test_the_work_sent_ahead_is_bounded_by_time() -> None:
    durations = Durations()
    durations.learn("task", 0.001)
    assert durations.ahead(1000) == 20
    assert durations.ahead(1000, capacity=8) == 160


# back-off


def test_pauses_double_up_to_a_limit_and_start_again_after_a_success() -> None:
    backoff = Backoff(first_seconds=1, longest_seconds=5)
    for ceiling in (1, 2, 4, 5, 5):
        assert ceiling / 2 <= backoff.next_seconds() <= ceiling
    backoff.reset()
    assert backoff.next_seconds() <= 1


def test_a_fleet_does_not_come_back_as_one() -> None:
    assert len({Backoff().next_seconds() for _ in range(20)}) > 10


# queues


def test_every_queue_has_its_turn_to_be_first() -> None:
    queues = Queues(("a", "b", "c"))
    firsts = [queues.names() for _ in range(3)]
    assert {names[0] for names in firsts} == {"a", "b", "c"}
    assert all(sorted(names) == ["a", "b", "c"] for names in firsts)


def test_served_queues_are_those_that_were_named_or_all_that_come_up() -> None:
    named = Queues(("a",))
    assert (named.add(["b"]), named.add(["a", "b"]), named.names()) == (False, True, ["a"])
    every = Queues(None)
    assert (every.names(), every.add(["b"]), every.add(["b"]), every.names()) == ([], True, True, ["b"])
    assert every.add([]) is False


# the pool

SETTINGS = DispatchSettings(node="test", processes=2, async_concurrency=0, claim_limit=1)
POOL: dict[str, Any] = {
    "stats": Stats(),
    **dict.fromkeys(("on_outcome", "on_progress", "on_room", "is_writing"), lambda *_: None),
}


class Births:
    """A zygote that only counts whom it was to fork."""

    def __init__(self) -> None:
        self.count = 0
        self.two = asyncio.Event()

    def spawn(self, executor: int, *, kind: Kind, slot: int, descriptors: tuple[int, int, int]) -> None:
        self.count += 1
        if self.count == 2:
            self.two.set()

    def signal(self, executor: int, number: signal.Signals) -> None: ...
    def kill(self, executor: int, cause: str) -> None: ...


def test_nobody_is_born_while_the_deadline_is_past() -> None:
    """The zygote would kill the newborn at once, and again and again; later they come by themselves."""

    async def main() -> None:
        board, zygote = Board.create(slots=4), Births()
        pool = Pool(SETTINGS, board, **POOL)
        board.raise_fence(bytes(16), now_ns() - 1)
        pool.fill(zygote)
        assert zygote.count == 0
        board.raise_fence(bytes(16), NEVER)
        async with asyncio.timeout(10):
            await zygote.two.wait()
        for executor in pool.executors.values():
            asyncio.get_running_loop().remove_reader(executor.stream)
            executor.close()

    asyncio.run(main())


def test_what_is_not_delivered_yet_takes_room_in_its_own_lane_alone() -> None:
    async def main() -> list[Room]:
        settings = DispatchSettings(node="test", processes=4, async_concurrency=9, claim_limit=100)
        pool = Pool(settings, Board.create(slots=5), **POOL)
        pool.facts = {"short": TaskFacts(Kind.SYNC), "waits": TaskFacts(Kind.ASYNC)}
        loop = asyncio.get_running_loop()
        for slot, (kind, capacity) in enumerate([*[(Kind.SYNC, 1)] * 4, (Kind.ASYNC, 9)]):
            pool.executors[slot] = Executor(slot, kind, slot, capacity, 0.0, loop, Births(), is_ready=True)
        rooms = [pool.room(), pool.room([undelivered("waits")] * 3), pool.room([undelivered("short")] * 3)]
        for executor in pool.executors.values():
            executor.forget_their_stream()
            executor.close()
        return rooms

    assert [room.limit for room in asyncio.run(main())] == [4, 4, 1]


def test_what_is_asked_for_may_all_be_of_one_lane() -> None:
    rooms = {Kind.SYNC: 30, Kind.ASYNC: 20}
    assert [room_in(rooms, 12, {}, lambda kind: 1, asked_for).limit for asked_for in (0, 12, 20, 25)] == [12, 8, 0, 0]


def test_an_event_loop_is_sent_ahead_what_its_many_bodies_take_in_the_same_time() -> None:
    async def main() -> tuple[int, int]:
        settings = DispatchSettings(node="test", processes=0, async_concurrency=9, claim_limit=1000)
        pool = Pool(settings, Board.create(slots=1), **POOL)
        pool.facts = {"tiny": TaskFacts(Kind.ASYNC)}
        pool.durations.learn("tiny", 0.002)
        loop = asyncio.get_running_loop()
        executor = pool.executors[0] = Executor(0, Kind.ASYNC, 0, 9, 0.0, loop, Births(), is_ready=True)
        room = pool.room().limit
        pool.take([undelivered("tiny")._replace(id=n) for n in range(1000)], uuid4(), loop.time())
        executor.forget_their_stream()
        executor.close()
        return room, len(executor.flights)

    assert asyncio.run(main()) == (9 + 9 * 10, 9 + 9 * 10)


def test_no_short_run_is_put_behind_a_body_that_may_be_long() -> None:
    async def main() -> tuple[list[list[str]], int]:
        settings = DispatchSettings(node="test", processes=2, async_concurrency=0, claim_limit=100)
        pool = Pool(settings, Board.create(slots=2), **POOL)
        pool.facts = dict.fromkeys(("short", "unknown"), TaskFacts(Kind.SYNC))
        pool.durations.learn("short", 0.005)
        loop = asyncio.get_running_loop()
        for slot in range(2):
            pool.executors[slot] = Executor(slot, Kind.SYNC, slot, 1, 0.0, loop, Births(), is_ready=True)
        runs = [undelivered(task)._replace(id=n) for n, task in enumerate(["unknown", *["short"] * 4])]
        pool.take(runs, uuid4(), loop.time())
        room = pool.room().limit
        found = [[flight.run.task for flight in executor.flights.values()] for executor in pool.executors.values()]
        for executor in pool.executors.values():
            executor.forget_their_stream()
            executor.close()
        return found, room

    assert asyncio.run(main()) == ([["unknown"], ["short"] * 4], 1)


def undelivered(task: str) -> ClaimedRun:
    return ClaimedRun(1, 1, task, "default", 0, 1, 0, 0, None, None, "", "[]", "{}")


# housekeeping's timers


def a_housekeeping(stats: Stats) -> Housekeeping:
    return Housekeeping(
        StoreThread(open_store("default", "test", statement_timeout_seconds=1), deadline_seconds=1),
        ttl_seconds=1,
        poll_pause=lambda: 1,
        max_interruptions=3,
        retention={},
        queue_limits={},
        own_lease=lambda: None,
        is_listening=lambda: True,
        on_ready=lambda _: None,
        trouble=Trouble(),
        stats=stats,
    )


def repeat(step: Any, until: asyncio.Event) -> Stats:
    """Repeat a step until the event, on a loop of its own."""

    async def main() -> Stats:
        stats = Stats()
        repeating = asyncio.create_task(a_housekeeping(stats).repeat("sweep", 0.001, step))
        async with asyncio.timeout(10):
            await until.wait()
        repeating.cancel()
        return stats

    return asyncio.run(main())


@pytest.mark.parametrize(
    ("error", "begin", "end"),
    [
        (
            OperationalError("server closed"),
            "Trouble with the database (sweep): server closed; trying again.",
            "The trouble with the database is over",
        ),
        (ZeroDivisionError("a bug"), "Housekeeping step sweep fails: a bug", "Housekeeping step sweep works again."),
    ],
)
def test_a_step_that_raises_is_logged_once_and_repeated(
    error: Exception, begin: str, end: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A step that fails is repeated with back-off, and when it last succeeded is known."""
    caplog.set_level(logging.INFO, "django_dispatch")
    times: list[float] = []
    done = asyncio.Event()

    async def step() -> None:
        times.append(asyncio.get_running_loop().time())
        if len(times) in (2, 3):
            raise error
        if len(times) == 5:
            done.set()

    stats = repeat(step, done)
    first, second = [record.getMessage() for record in caplog.records]
    assert first == begin
    assert second.startswith(end)
    assert times[2] - times[1] >= 0.04, "with back-off"
    assert stats.loops["sweep"].last_success_at is not None


HOUR = 3600.0


@pytest.mark.parametrize(
    ("seconds", "longest", "is_called"),
    [(0.0, HOUR, True), (-5.0, HOUR, True), (0.01, HOUR, True), (None, 0.01, True), (None, HOUR, False)],
    ids=str,
)
@pytest.mark.parametrize("pause", [HOUR, 0.05], ids="every {} s".format)
def test_a_step_that_rests_is_called_when_the_agenda_says_so(
    pause: float, seconds: float | None, longest: float, is_called: bool
) -> None:
    """If it says that there is nothing to do, the step is as good as done; without further word it looks by itself."""
    calls: list[None] = []

    async def main() -> Stats:
        stats, again, later = Stats(), asyncio.Event(), asyncio.Event()
        housekeeping = a_housekeeping(stats)

        async def step() -> float:
            calls.append(None)
            if len(calls) == 2:
                again.set()
            return pause

        repeating = asyncio.create_task(housekeeping.repeat("sweep", HOUR, step))
        await asyncio.sleep(0)  # the step has begun, and rests if it can
        first = stats.loops["sweep"].last_success_at
        housekeeping.put_off("sweep", seconds, longest=longest)
        assert (stats.loops["sweep"].last_success_at != first) is (seconds is None or seconds > 0)
        if is_called:
            async with asyncio.timeout(10):
                await again.wait()
        else:
            asyncio.get_running_loop().call_later(0.1, later.set)  # timers are called in their order
            await later.wait()
        repeating.cancel()
        return stats

    asyncio.run(main())
    assert (len(calls) == 2) is is_called


class Calls:
    """How often a step was called; ``again`` is set by the second time."""

    def __init__(self) -> None:
        self._number = 0
        self.again = asyncio.Event()

    def note(self) -> None:
        self._number += 1
        if self._number == 2:
            self.again.set()


def test_a_step_that_fails_is_not_put_off() -> None:
    """What is to do may be what it could not do."""

    async def main() -> None:
        calls = Calls()
        housekeeping = a_housekeeping(Stats())

        async def step() -> None:
            calls.note()
            raise ZeroDivisionError

        repeating = asyncio.create_task(housekeeping.repeat("sweep", HOUR, step))
        await asyncio.sleep(0)  # the step has begun, and rests if it can
        housekeeping.put_off("sweep", None, longest=HOUR)
        async with asyncio.timeout(10):
            await calls.again.wait()
        repeating.cancel()

    asyncio.run(main())


def test_a_step_that_is_under_way_is_called_again_if_the_agenda_has_something_for_it() -> None:
    """It may have looked before."""

    async def main() -> None:
        calls, may_end = Calls(), asyncio.Event()
        housekeeping = a_housekeeping(Stats())

        async def step() -> None:
            calls.note()
            await may_end.wait()

        repeating = asyncio.create_task(housekeeping.repeat("sweep", HOUR, step))
        await asyncio.sleep(0)  # the step has begun, and rests if it can
        housekeeping.put_off("sweep", 5.0, longest=10.0)
        may_end.set()
        async with asyncio.timeout(10):
            await calls.again.wait()
        repeating.cancel()

    asyncio.run(main())


def test_a_step_may_say_when_it_wants_to_be_called_next() -> None:
    calls: list[None] = []
    done = asyncio.Event()

    async def step() -> float:
        calls.append(None)
        if len(calls) == 3:
            done.set()
        return 0.0

    repeat(step, done)
    assert len(calls) >= 3
