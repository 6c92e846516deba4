"""The hot path's session has PostgreSQL parse and plan its statement once, not each time."""

import asyncio
from typing import Any

import pytest
from django.db import OperationalError, connection

from django_dispatch.store.session import AsyncSession, Session, Terms

TERMS = Terms("default", "test", 20.0)
GATE = 4711
STATEMENT = "SELECT 1 WHERE %(one)s = 1"
PREPARED = "SELECT statement, generic_plans FROM pg_prepared_statements WHERE statement LIKE 'SELECT 1 WHERE%%'"


async def executed(times: int) -> list[tuple[Any, ...]]:
    session = AsyncSession(TERMS, deadline_seconds=20.0)
    for _ in range(times):
        await session.execute(STATEMENT, {"one": 1})
    prepared = await session.execute(PREPARED, {})
    await session.close()
    return prepared


@pytest.mark.django_db(transaction=True)
def test_the_hot_path_parses_and_plans_its_statement_once() -> None:
    assert asyncio.run(executed(3)) == [("SELECT 1 WHERE $1 = 1", 3)]


class Clock(asyncio.SelectorEventLoop):
    """A loop whose clock the test moves on."""

    _later = 0.0

    def time(self) -> float:
        return super().time() + self._later

    async def move(self, seconds: float) -> None:
        """Move it on, and let everything happen that is due by then."""
        self._later += seconds
        passed = asyncio.Event()
        self.call_later(0, passed.set)  # later than all of that
        await passed.wait()


@pytest.mark.django_db(transaction=True)
@pytest.mark.parametrize(
    ("idle_seconds", "pauses", "is_broken"),
    [(600.0, [500.0], False), (600.0, [500.0, 600.0], True), (1100.0, [500.0], False), (1100.0, [1100.0], True)],
)
def test_each_statement_of_the_hot_path_has_its_own_time(
    idle_seconds: float, pauses: list[float], is_broken: bool
) -> None:
    async def main() -> list[tuple[Any, ...]]:
        session = AsyncSession(TERMS, deadline_seconds=1000.0)
        await session.execute(STATEMENT, {"one": 1})
        await clock.move(idle_seconds)
        waiting = asyncio.create_task(session.execute("SELECT pg_advisory_xact_lock_shared(%(gate)s)", {"gate": GATE}))
        for seconds in (0.0, *pauses):
            await clock.move(seconds)
        gate.execute("SELECT pg_advisory_unlock(%s)", [GATE])
        try:
            return await waiting
        finally:
            await session.close()

    clock = Clock()
    with connection.cursor() as gate, asyncio.Runner(loop_factory=lambda: clock) as runner:
        gate.execute("SELECT pg_advisory_lock(%s)", [GATE])
        if is_broken:
            with pytest.raises(OperationalError, match="no answer in time"):
                runner.run(main())
        else:
            assert len(runner.run(main())) == 1


@pytest.mark.django_db(transaction=True)
def test_a_session_that_has_nothing_to_do_keeps_its_connection() -> None:
    async def main() -> set[tuple[Any, ...]]:
        session = AsyncSession(TERMS, deadline_seconds=1000.0)
        pids = set()
        for _ in range(3):
            pids.update(await session.execute("SELECT pg_backend_pid()", {}))
            await clock.move(1100.0)
        await session.close()
        return pids

    clock = Clock()
    with asyncio.Runner(loop_factory=lambda: clock) as runner:
        assert len(runner.run(main())) == 1


@pytest.mark.django_db(transaction=True)
def test_the_other_verbs_parse_theirs_once() -> None:
    session = Session(TERMS)
    for _ in range(3):
        session.execute(STATEMENT, {"one": 1})
    prepared = session.execute(PREPARED).fetchall()
    session.close()
    assert prepared == [("SELECT 1 WHERE $1 = 1", 0)]  # planned each time, by the size of the tables
