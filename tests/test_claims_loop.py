"""The loop of claims by itself: how often it looks, and what it compares after trouble."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any
from unittest.mock import Mock
from uuid import UUID, uuid4

import pytest

from django_dispatch.conf import DispatchSettings
from django_dispatch.dispatcher.claims import Claims, Hooks
from django_dispatch.dispatcher.pace import VAIN_LOOKS, VAIN_LOOKS_PER_SECOND
from django_dispatch.dispatcher.pool import Pool
from django_dispatch.dispatcher.room import Room
from django_dispatch.dispatcher.stats import Stats
from django_dispatch.dispatcher.store_thread import StoreThread
from django_dispatch.executors.fence import Board
from django_dispatch.store.postgres import open_exchanger, open_store
from django_dispatch.store.values import ClaimedRun, Exchange, Settlement

from .claims import HeldByTest, new_claims

SETTINGS = DispatchSettings(node="test", processes=2, async_concurrency=0, claim_limit=1)
HEARS: dict[str, Any] = dict.fromkeys(("on_outcome", "on_progress", "on_room", "is_writing"), lambda *_: None)


class Roomy(Pool):
    """There is always room for a run."""

    def room(self, undelivered: Sequence[ClaimedRun] = (), asked_for: int = 0) -> Room:
        return Room(1)


@asynccontextmanager
async def at_work(claims: Claims) -> AsyncIterator[None]:
    """Have the loop run under a lease of its own; what is done meanwhile must not take for ever."""
    running = asyncio.create_task(claims.run())
    claims.begin(uuid4())
    try:
        async with asyncio.timeout(30):
            yield
    finally:
        running.cancel()
        await asyncio.wait([running])


def test_a_flood_of_wakeups_is_no_flood_of_claims(database_url: str) -> None:
    """Who is woken, finds nothing and is woken again has so many looks at once, and then so many a second."""
    looks = VAIN_LOOKS + 50

    async def main() -> float:
        store = StoreThread(open_store("default", "test", statement_timeout_seconds=5), deadline_seconds=5)
        exchanger = open_exchanger("default", "test", statement_timeout_seconds=5, deadline_seconds=5)
        loop, ended, count = asyncio.get_running_loop(), asyncio.Event(), itertools.count(1)

        def look_again() -> None:
            if next(count) == looks:
                ended.set()
            claims.look()

        pool = Roomy(SETTINGS, Board.create(slots=1), stats=Stats(), **HEARS)
        claims = new_claims([exchanger], store, pool, hooks=Hooks(quiet=look_again))
        claims.is_claiming = True
        began = loop.time()
        async with at_work(claims):
            await ended.wait()
        await exchanger.close()
        await store.close()
        return loop.time() - began

    assert asyncio.run(main()) > 48 / VAIN_LOOKS_PER_SECOND


def test_a_claims_loop_that_has_nothing_to_do_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_dispatch.dispatcher.claims.IDLE_SECONDS", 0.001)

    async def main() -> None:
        well = asyncio.Event()
        claims = new_claims([Mock()], Mock(), Mock(), stats=Mock(spec=Stats, succeed=lambda _: well.set()))
        running = asyncio.create_task(claims.run())
        async with asyncio.timeout(10):
            await well.wait()
        running.cancel()

    asyncio.run(main())


def test_a_claims_loop_that_waits_for_an_answer_does_not_say_that_it_is_well(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("django_dispatch.dispatcher.claims.IDLE_SECONDS", 0.001)

    async def main() -> list[str]:
        asked, said = asyncio.Event(), list[str]()

        class Silent:
            async def exchange(self, lease_id: UUID, settlements: Sequence[Settlement], **_: Any) -> Exchange:
                said.clear()
                asked.set()
                return await asyncio.get_running_loop().create_future()

        stats = Stats()
        monkeypatch.setattr(Stats, "succeed", lambda _, loop, *__: said.append(loop))
        pool = Roomy(SETTINGS, Board.create(slots=1), stats=Stats(), **HEARS)
        claims = new_claims([Silent()], Mock(), pool, stats=stats)
        claims.is_claiming = True
        async with at_work(claims):
            await asked.wait()
            ticked = asyncio.Event()
            asyncio.get_running_loop().call_later(0.01, ticked.set)  # after some ticks, which are timers too
            await ticked.wait()
        return said

    assert asyncio.run(main()) == []


# after trouble


class Database(HeldByTest):
    """One that is told what is released, too."""

    def __init__(self) -> None:
        super().__init__()
        self.released: asyncio.Queue[tuple[UUID, int]] = asyncio.Queue()

    async def exchange(self, lease_id: UUID, settlements: Sequence[Settlement], **_: Any) -> Exchange:
        for settlement in settlements:
            self.released.put_nowait((lease_id, settlement.run_id))
        return Exchange([], [], [])


def compare(scene: Callable[[Claims, Database], Awaitable[None]]) -> None:
    """Play a scene that begins when the loop, under a lease of its own, has asked what it holds."""

    async def main() -> None:
        database = Database()
        pool = Pool(SETTINGS, Board.create(slots=1), stats=Stats(), **HEARS)
        claims = new_claims([database], database, pool)
        claims.reconcile_soon()
        async with at_work(claims):
            await scene(claims, database)

    asyncio.run(main())


def test_what_was_held_under_a_lease_that_is_lost_by_now_is_not_released() -> None:
    """Its bodies may have run: they are for a sweep, which counts an interruption."""

    async def scene(claims: Claims, database: Database) -> None:
        answer = await database.asked.get()
        claims.lose()
        lease_id = uuid4()
        claims.begin(lease_id)
        answer.set_result([(1, 1)])
        claims.reconcile_soon()
        (await database.asked.get()).set_result([(2, 1)])
        assert await database.released.get() == (lease_id, 2)

    compare(scene)


def test_who_asks_for_a_comparison_during_one_gets_another_one() -> None:
    """What is held may have changed since the database was asked."""

    async def scene(claims: Claims, database: Database) -> None:
        answer = await database.asked.get()
        claims.reconcile_soon()
        answer.set_result([])
        (await database.asked.get()).set_result([(1, 1)])
        assert await database.released.get() == (claims.lease_id, 1)

    compare(scene)


def test_who_compares_is_not_idle() -> None:
    async def scene(claims: Claims, database: Database) -> None:
        claims.is_claiming = False
        answer = await database.asked.get()
        assert (claims.is_settled(), claims.is_idle()) == (False, False)
        answer.set_result([])

    compare(scene)


# claims that have not looked at everything


class Line:
    """Its claims find nothing, and leave these rests."""

    def __init__(self, *rests: float | None) -> None:
        self.rests = list(rests)

    async def exchange(self, lease_id: UUID, settlements: Sequence[Settlement], **_: Any) -> Exchange:
        return Exchange([], [], [], rest_seconds=self.rests.pop(0))


def test_what_a_claim_left_out_is_looked_at_when_it_is_time_and_until_then_nothing_is_over() -> None:
    async def main() -> list[float | None]:
        line, quiet = Line(0.0, None), asyncio.Event()
        left: list[float | None] = []

        def note() -> None:
            left.extend(line.rests)
            quiet.set()

        pool = Roomy(SETTINGS, Board.create(slots=1), stats=Stats(), **HEARS)
        claims = new_claims([line], Mock(), pool, hooks=Hooks(quiet=note))
        claims.is_claiming = True
        async with at_work(claims):
            await quiet.wait()
        return left

    assert asyncio.run(main()) == []


@pytest.mark.parametrize("rest_seconds", [None, 60.0], ids=["nothing", "something"])
def test_who_has_left_something_out_is_not_idle(rest_seconds: float | None) -> None:
    """A burst that has just let a run pass at a limit must not end before that was looked at."""

    async def main() -> bool:
        looked = asyncio.Event()
        pool = Roomy(SETTINGS, Board.create(slots=1), stats=Stats(), **HEARS)
        claims = new_claims([Line(rest_seconds)], Mock(), pool, hooks=Hooks(looked=lambda _: looked.set()))
        claims.is_claiming = True
        async with at_work(claims):
            await looked.wait()
            return claims.is_idle()

    assert asyncio.run(main()) == (rest_seconds is None)
