"""One trouble with the database, however many parts of a dispatcher it fails."""

import asyncio
import logging
from collections.abc import Callable

import psycopg
import pytest
from django.db import OperationalError, ProgrammingError

from django_dispatch.dispatcher import backoff, sessions
from django_dispatch.dispatcher.trouble import FIRST_SILENCE_SECONDS, Trouble, text_of
from django_dispatch.store import session

GONE = OperationalError("connection refused\nmore of it")


@pytest.mark.parametrize("cause", [psycopg.errors.UndefinedTable(), psycopg.errors.UndefinedColumn()])
def test_tables_that_are_not_as_they_should_be_want_to_be_migrated(cause: Exception) -> None:
    error = ProgrammingError("it does not exist")
    error.__cause__ = cause
    assert text_of(error) == "it does not exist; has manage.py migrate been run on this database?"


class Clock:
    """Time as the test says it."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    """Return what was logged since this was last asked."""

    def since() -> list[str]:
        found = [record.getMessage() for record in caplog.records]
        caplog.clear()
        return found

    caplog.set_level(logging.DEBUG, "django_dispatch")
    return since


def test_it_has_a_line_when_it_begins_and_one_when_every_part_works_again(lines: Callable[[], list[str]]) -> None:
    async def main() -> None:
        clock = Clock()
        trouble = Trouble(clock=clock)
        for part in ("claims", "lease", "listener", "claims"):
            trouble.failed(part, GONE)
        assert lines() == ["Trouble with the database (claims): connection refused; trying again."]
        clock.now += 2.5
        for part in ("claims", "lease", "poll"):
            trouble.succeeded(part)
        assert lines() == []
        trouble.succeeded("listener")
        assert lines() == ["The trouble with the database is over, after 2.5 s."]

    asyncio.run(main())


def test_reminders_are_ever_rarer_and_give_the_newest_cause(lines: Callable[[], list[str]]) -> None:
    async def main() -> None:
        clock = Clock()
        trouble = Trouble(clock=clock)
        spoken = []
        for second in range(300):
            clock.now = 100.0 + second
            trouble.failed("claims", OperationalError(f"cause {second}"))
            if said := lines():
                spoken.append((second, *said))
        assert [second for second, *_ in spoken] == [0, 5, 15, 35, 75, 135, 195, 255]
        assert spoken[1][1] == "Trouble with the database for 5 s (claims): cause 5; trying again."

    asyncio.run(main())


def test_one_part_that_fails_for_ever_hides_no_other_trouble(lines: Callable[[], list[str]]) -> None:
    async def main() -> None:
        clock = Clock()
        trouble = Trouble(clock=clock)
        for _ in range(1000):
            trouble.failed("listener", OperationalError("LISTEN brings nothing"))
            clock.now += 1
        clock.now += FIRST_SILENCE_SECONDS
        lines()
        trouble.failed("lease", GONE)
        assert [line.partition(" s (")[2] for line in lines()] == ["lease): connection refused; trying again."]

    asyncio.run(main())


def test_a_trouble_that_comes_and_goes_is_no_flood(lines: Callable[[], list[str]]) -> None:
    async def main() -> None:
        clock = Clock()
        trouble = Trouble(clock=clock)
        for _ in range(1000):
            trouble.failed("claims", GONE)
            clock.now += 0.05
            trouble.succeeded("claims")
            clock.now += 0.05
        assert 2 <= len(lines()) <= 2 * 100 / 5

    asyncio.run(main())


def test_who_gets_through_has_the_others_try_at_once() -> None:
    async def main() -> None:
        trouble = Trouble()
        called = asyncio.Event()
        trouble.on_relief(called.set)
        trouble.failed("claims", GONE)
        trouble.failed("lease", GONE)
        pause = asyncio.create_task(trouble.pause(3600))
        trouble.succeeded("poll")
        await asyncio.sleep(0)
        assert not called.is_set(), "it never failed, so it says nothing of those that did"
        await asyncio.to_thread(trouble.succeeded, "lease")
        async with asyncio.timeout(10):
            await pause
        assert called.is_set()
        async with asyncio.timeout(10):
            await trouble.pause(0.01)

    asyncio.run(main())


def test_a_database_that_is_back_is_noticed_within_ten_seconds() -> None:
    """By design: whatever is under way has a deadline, and then there is one pause."""
    under_way = max(session.CONNECT_SECONDS, sessions.LONGEST_CALL_SECONDS)
    assert under_way + backoff.LONGEST_PAUSE_SECONDS < 10
    assert sessions.LONGEST_STATEMENT_SECONDS < sessions.LONGEST_CALL_SECONDS
