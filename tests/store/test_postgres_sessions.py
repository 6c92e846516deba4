"""The hot path's session has PostgreSQL parse and plan its statement once, not each time."""

import asyncio
from typing import Any

import pytest

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
def test_the_other_verbs_parse_theirs_once() -> None:
    session = Session(TERMS)
    for _ in range(3):
        session.execute(STATEMENT, {"one": 1})
    prepared = session.execute(PREPARED).fetchall()
    session.close()
    assert prepared == [("SELECT 1 WHERE $1 = 1", 0)]  # planned each time, by the size of the tables
