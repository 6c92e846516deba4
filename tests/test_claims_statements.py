"""The statements of the claims loop, answered by the test: when a second one is sent, and what both must not do."""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import Mock
from uuid import UUID, uuid4

import pytest
from django.db import DataError, OperationalError

from django_dispatch.dispatcher.claims import LEAST_BESIDE, Hooks
from django_dispatch.dispatcher.executor import Flight
from django_dispatch.dispatcher.room import Room
from django_dispatch.finish import TaskFacts
from django_dispatch.messages import Kind, Outcome, Verdict
from django_dispatch.store.values import ClaimedRun, Exchange

from .claims import HeldByTest, new_claims

PATIENCE_SECONDS = 10.0
ROOM = 10
MOST = 6  # of a claim
REST = ROOM - MOST


def run_of(run_id: int) -> ClaimedRun:
    return ClaimedRun(run_id, 1, "shop.add", "default", 0, 1, 0, 0, None, None, "", "[]", "{}")


@dataclass(eq=False)
class Statement:
    """One that is under way until the test answers it."""

    session: str
    written: list[int]
    limit: int
    result: asyncio.Future[Exchange]

    @property
    def what(self) -> tuple[str, list[int], int]:
        return self.session, self.written, self.limit

    def answer(self, *claimed: int) -> None:
        self.result.set_result(Exchange([run_of(run_id) for run_id in claimed], [], []))

    def fail(self, error: Exception | None = None) -> None:
        self.result.set_exception(error or OperationalError("cut"))


@dataclass(eq=False)
class Session:
    """An exchanger that is answered by the test."""

    name: str
    sent: asyncio.Queue[Statement]
    closed: asyncio.Event = field(default_factory=asyncio.Event)

    async def exchange(self, lease_id: UUID, settlements: Iterable[Any], **wanted: Any) -> Exchange:
        result: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()
        self.sent.put_nowait(Statement(self.name, [each.run_id for each in settlements], wanted["limit"], result))
        return await result

    async def close(self) -> None:
        self.closed.set()


class Hands:
    """A pool with room for so many runs, and ``MOST`` at once, which starts none of them."""

    facts: dict[str, TaskFacts] = {}
    executors: dict[int, Any] = {}

    def __init__(self) -> None:
        self.room_in_all = ROOM
        self.took: list[tuple[list[int], float]] = []

    def room(self, undelivered: Sequence[ClaimedRun], asked_for: int) -> Room:
        return Room(max(0, min(self.room_in_all - len(undelivered) - asked_for, MOST)))

    def take(self, runs: Sequence[ClaimedRun], lease_id: UUID, asked_at: float) -> None:
        self.took.append(([run.id for run in runs], asked_at))

    def knows(self, token: tuple[int, int]) -> bool:
        return False


class Scene:
    """A loop that has just sent its first statement."""

    def __init__(self, *, max_runs: int | None = None) -> None:
        self.sent: asyncio.Queue[Statement] = asyncio.Queue()
        self.second = Session("second", self.sent)
        self.store, self.hands, self.quiet = HeldByTest(), Hands(), asyncio.Event()
        sessions = [Session("first", self.sent), self.second]
        hooks = Hooks(quiet=self.quiet.set)
        self.claims = new_claims(sessions, self.store, self.hands, max_runs=max_runs, hooks=hooks)
        self._ids = itertools.count(1000)

    def end(self, number: int) -> list[int]:
        """So many bodies return."""
        assert self.claims.lease_id is not None
        ids = [next(self._ids) for _ in range(number)]
        for run_id in ids:
            flight = Flight(run_of(run_id), (run_id, 1), TaskFacts(Kind.SYNC), self.claims.lease_id.bytes, Mock(), 0.0)
            self.claims.on_outcome(flight, Outcome(run_id, 1, Verdict.RETURNED), None)
        return ids

    async def nothing_is_sent(self) -> bool:
        """Whether nothing is, when everybody has had a turn, and another one."""
        for _ in range(10):
            await asyncio.sleep(0)
        return self.sent.empty() and self.store.asked.empty()


def play(scene: Callable[[Scene, Statement], Awaitable[None]], *, max_runs: int | None = None) -> None:
    async def main() -> None:
        it = Scene(max_runs=max_runs)
        it.claims.is_claiming = True
        running = asyncio.create_task(it.claims.run())
        it.claims.begin(uuid4())
        try:
            async with asyncio.timeout(PATIENCE_SECONDS):
                await scene(it, await it.sent.get())
        finally:
            running.cancel()
            await asyncio.wait([running])

    asyncio.run(main())


def test_outcomes_that_are_worth_a_statement_do_not_wait_for_the_one_under_way() -> None:
    async def scene(it: Scene, first: Statement) -> None:
        few = it.end(LEAST_BESIDE - 1)
        assert await it.nothing_is_sent()
        one_more = it.end(1)
        assert (await it.sent.get()).what == ("second", few + one_more, REST)
        assert first.what == ("first", [], MOST)

    play(scene)


def test_fewer_outcomes_wait_for_the_end_of_whichever_is_under_way() -> None:
    async def scene(it: Scene, first: Statement) -> None:
        it.end(LEAST_BESIDE)
        second = await it.sent.get()
        few = it.end(3)
        first.answer()
        assert await it.nothing_is_sent()
        second.answer()
        assert (await it.sent.get()).what == ("first", few, MOST)

    play(scene)


def test_nobody_helps_where_nothing_is_under_way() -> None:
    async def scene(it: Scene, first: Statement) -> None:
        first.answer()
        many = it.end(LEAST_BESIDE)
        assert (await it.sent.get()).what == ("first", many, MOST)

    play(scene)


def test_both_together_ask_for_no_more_than_there_is_room_for() -> None:
    async def scene(it: Scene, first: Statement) -> None:
        it.end(LEAST_BESIDE)
        assert (first.limit, (await it.sent.get()).limit) == (MOST, REST)

    play(scene)


def test_both_together_claim_no_more_than_a_dispatcher_is_to_run_at_all() -> None:
    async def scene(it: Scene, first: Statement) -> None:
        it.end(LEAST_BESIDE)
        second = await it.sent.get()
        assert (first.limit, second.limit) == (MOST, 1)
        first.answer(*range(MOST))
        second.answer(MOST)
        it.end(1)
        assert (await it.sent.get()).limit == 0

    play(scene, max_runs=MOST + 1)


def test_what_two_answers_bring_at_once_reaches_the_pool_as_it_was_asked_for() -> None:
    async def scene(it: Scene, first: Statement) -> None:
        it.end(LEAST_BESIDE)
        second = await it.sent.get()
        first.answer(*range(MOST))
        second.answer(*range(MOST, ROOM))
        await it.sent.get()
        (runs, asked_at), (more, asked_later) = it.hands.took
        assert (runs, more) == ([*range(MOST)], [*range(MOST, ROOM)])
        assert asked_at < asked_later

    play(scene)


def test_what_is_held_is_compared_when_neither_is_under_way_and_meanwhile_nothing_is_sent() -> None:
    """The runs of a statement are known to nobody until it is answered: they would be released."""

    async def scene(it: Scene, first: Statement) -> None:
        it.end(LEAST_BESIDE)
        second = await it.sent.get()
        it.claims.reconcile_soon()
        later = it.end(LEAST_BESIDE)
        first.answer()
        assert await it.nothing_is_sent()
        second.answer()
        held = await it.store.asked.get()
        later += it.end(LEAST_BESIDE)
        assert await it.nothing_is_sent()
        held.set_result([(later[0], 1)])
        assert (await it.sent.get()).what == ("first", later, MOST)

    play(scene)


def test_what_the_second_session_could_not_send_is_sent_by_the_first_and_that_one_rests() -> None:
    async def scene(it: Scene, first: Statement) -> None:
        many = it.end(LEAST_BESIDE)
        (await it.sent.get()).fail()
        first.answer()
        it.store.let()
        again = await it.sent.get()
        assert again.what == ("first", many, MOST)
        again.answer(*range(MOST))
        assert (await it.sent.get()).session == "first"
        it.end(LEAST_BESIDE)
        assert await it.nothing_is_sent()

    play(scene)


def test_what_a_lost_lease_had_under_way_comes_to_nothing() -> None:
    async def scene(it: Scene, first: Statement) -> None:
        it.end(LEAST_BESIDE)
        second = await it.sent.get()
        it.claims.lose()
        it.claims.begin(uuid4())
        first.answer(1)
        second.fail()
        it.store.let()
        assert (await it.sent.get()).what == ("first", [], MOST)
        assert it.hands.took == []

    play(scene)


@pytest.mark.parametrize("room", [ROOM, MOST])
def test_it_is_not_quiet_before_both_have_found_nothing(room: int) -> None:
    """The second may have had no room to look: then there is one look more."""

    async def scene(it: Scene, first: Statement) -> None:
        it.hands.room_in_all = room
        it.end(LEAST_BESIDE)
        second = await it.sent.get()
        first.answer()
        assert await it.nothing_is_sent()
        assert not it.quiet.is_set()
        second.answer()
        (await it.sent.get()).answer()
        await it.quiet.wait()
        assert await it.nothing_is_sent()

    play(scene)


def test_the_second_session_is_closed_when_it_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_dispatch.dispatcher.claims.IDLE_SECONDS", 0.001)

    async def scene(it: Scene, first: Statement) -> None:
        await it.second.closed.wait()

    play(scene)


@pytest.mark.parametrize("number", [1, 2])
def test_what_was_wanted_beside_an_outcome_that_cannot_be_stored_is_looked_at_after_it(number: int) -> None:
    async def scene(it: Scene, first: Statement) -> None:
        first.answer(1)
        ended = it.end(number)
        both = await it.sent.get()
        assert both.what == ("first", ended, MOST)
        both.fail(DataError("too much"))
        for run_id in ended:
            alone = await it.sent.get()
            assert alone.what == ("first", [run_id], 0)
            alone.answer()
        assert (await it.sent.get()).what == ("first", [], MOST)
        assert not it.quiet.is_set()

    play(scene)
