"""The hot path's session has PostgreSQL parse and plan its statement once, not each time."""

import asyncio
from typing import Any

import pytest
from django.db import OperationalError, connection

from django_dispatch.store.session import AsyncSession, Session, Terms

TERMS = Terms("default", "test", 20.0)
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


@pytest.mark.django_db(transaction=True)
def test_each_statement_of_the_hot_path_has_its_own_time() -> None:
    async def execute(*seconds: float) -> None:
        session = AsyncSession(TERMS, deadline_seconds=1.0)
        try:
            for each in seconds:
                await session.execute("SELECT pg_sleep(%(seconds)s)", {"seconds": each})
        finally:
            await session.close()

    asyncio.run(execute(0.4, 0.4, 0.4))
    try:
        with pytest.raises(OperationalError, match="no answer in time"):
            asyncio.run(execute(0.0, 15.0))
    finally:
        with connection.cursor() as cursor:  # the database has not noticed yet
            cursor.execute(
                "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE query LIKE 'SELECT pg_sleep($1)'"
            )


@pytest.mark.django_db(transaction=True)
def test_the_other_verbs_parse_theirs_once() -> None:
    session = Session(TERMS)
    for _ in range(3):
        session.execute(STATEMENT, {"one": 1})
    prepared = session.execute(PREPARED).fetchall()
    session.close()
    assert prepared == [("SELECT 1 WHERE $1 = 1", 0)]  # planned each time, by the size of the tables
