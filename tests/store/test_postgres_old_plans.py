"""A plan that was made for a small table serves a large one: sessions live long, and plan each statement once."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import psycopg
import pytest

from django_dispatch.store import session
from django_dispatch.store.exchange import AsyncExchanger
from django_dispatch.store.postgres import PostgresStore
from django_dispatch.store.session import AsyncSession, Terms
from django_dispatch.store.values import Exchange, Settlement

from .test_postgres_plans import (
    ALIAS,
    BLOCKED,
    BOUNDED,
    CLAIM,
    FAIR,
    FEW,
    FOR_NOBODY,
    KEY,
    LEASES,
    LIVE,
    RUNNING,
    TELL_PLANS,
    VERBS,
    ExplainedSession,
    Plans,
    check,
    database_without_vacuum,
    finished,
    kept,
    outcomes,
    ready,
    scheduled,
)

pytestmark = pytest.mark.slow

FEW_ROWS = 200
MANY_ROWS = 20_000
OTHER_OUTCOME = [Settlement(0, 1, "SUCCESSFUL")]
# What there is when the statements are planned.
SMALL: dict[str, list[str]] = {
    "an empty table": [LEASES],
    "an empty table, analyzed": [LEASES, "ANALYZE"],
    "few rows": [LEASES, ready(5)],
    "some rows": [LEASES, ready(FEW_ROWS)],
    "some rows, analyzed": [LEASES, ready(FEW_ROWS), "ANALYZE"],
    "a small table": [LEASES, RUNNING, ready(FEW_ROWS), scheduled(FEW_ROWS), finished(FEW_ROWS)],
    "a small table, analyzed": [LEASES, RUNNING, ready(FEW_ROWS), scheduled(FEW_ROWS), finished(FEW_ROWS), "ANALYZE"],
    "a small table, analyzed when empty": [LEASES, "ANALYZE", RUNNING, ready(FEW_ROWS)],
}


class ExplainedAsyncSession(AsyncSession):
    """The session of the hot path, with ears for the plans."""

    def __init__(self, plans: Plans) -> None:
        super().__init__(Terms(ALIAS, "test", statement_timeout_seconds=60.0), deadline_seconds=60.0)
        self.plans = plans

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        connection = await super()._connect()
        await connection.execute("LOAD 'auto_explain'")
        for setting in TELL_PLANS:
            await connection.execute(setting.encode())
        connection.add_notice_handler(self.plans.hear)
        return connection


class OldSessions:
    """Sessions that had run every statement before the rows came, all heard by ``plans``."""

    def __init__(self) -> None:
        self.plans = Plans()
        self.store = PostgresStore(ExplainedSession(self.plans, {}))
        self._exchanger = AsyncExchanger(ExplainedAsyncSession(self.plans))
        self._loop = asyncio.Runner()

    def exchange(self, settlements: Sequence[Settlement], **wanted: Any) -> Exchange:
        """Exchange on the hot path."""
        return self._loop.run(self._exchanger.exchange(LIVE, settlements, **wanted))

    def close(self) -> None:
        self.store.close()
        self._loop.run(self._exchanger.close())
        self._loop.close()


@pytest.fixture(scope="module", params=SMALL)
def old_sessions(
    request: pytest.FixtureRequest, django_db_modify_db_settings: None, django_db_blocker: Any
) -> Iterator[OldSessions]:
    small = SMALL[request.param]
    with django_db_blocker.unblock(), database_without_vacuum() as connection:
        for statement in small:
            connection.execute(statement.encode())
        sessions = OldSessions()
        for _, call, _ in VERBS.values():
            in_a_transaction_that_is_rolled_back(sessions.store, call)
        for _ in range(2):
            assert sessions.exchange(OTHER_OUTCOME, queues=["bulk"], limit=0).refused == [0]
        later = [
            BLOCKED,
            FAIR,
            ready(MANY_ROWS),
            scheduled(MANY_ROWS),
            finished(MANY_ROWS),
            kept(MANY_ROWS),
            FOR_NOBODY,
        ]
        for statement in later if RUNNING in small else [RUNNING, *later]:
            connection.execute(statement.encode())
        yield sessions
        sessions.close()


def in_a_transaction_that_is_rolled_back(store: PostgresStore, call: Callable[[PostgresStore], object]) -> object:
    """Call; psycopg is not told of the rollback, for it would forget what it has prepared."""
    connection = store.session._connection or store.session._connect()
    connection.pgconn.exec_(b"BEGIN")
    try:
        return call(store)
    finally:
        connection.pgconn.exec_(b"ROLLBACK")


@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_reads_few_rows_of_a_table_that_was_small_when_its_session_began(
    old_sessions: OldSessions, django_db_blocker: Any, verb: str
) -> None:
    indexes, call, expected = VERBS[verb]
    store, plans = old_sessions.store, old_sessions.plans
    plans.told.clear()
    with django_db_blocker.unblock():
        assert in_a_transaction_that_is_rolled_back(store, call) == expected
    assert plans.told
    for plan in plans.told:
        check(plan, indexes, most=BOUNDED.get(verb, FEW))


def test_the_hot_path_finds_each_run_by_its_key_also_by_the_plan_that_was_made_for_a_small_table(
    old_sessions: OldSessions, django_db_blocker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "KEEP_PLAN_SECONDS", float("inf"))
    plans = old_sessions.plans
    plans.told.clear()
    with django_db_blocker.unblock():
        old_sessions.exchange(outcomes(), queues=["bulk"], limit=100)
    *_, plan = plans.told  # the first statement asked where the table ends
    check(plan, {CLAIM, KEY})


def test_the_hot_path_makes_its_plans_again_while_runs_go_by(
    old_sessions: OldSessions, django_db_blocker: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "KEEP_PLAN_SECONDS", 0.0)
    plans = old_sessions.plans
    plans.told.clear()
    with django_db_blocker.unblock():
        exchange = old_sessions.exchange(outcomes(), queues=["bulk"], limit=100)
    assert (len(exchange.claimed), exchange.refused) == (100, [])
    (plan,) = plans.told
    check(plan, {CLAIM, KEY})
