"""Turns of rows of plain SQL, and of transactions that do not see each other."""

from typing import Any

import pytest
from django.db import connection, transaction

from django_dispatch.store.base import Store
from django_dispatch.store.values import NewRun

from .tables import acquire, add_run, claim, stored
from .test_postgres_plans import FAIR, TURNS, Plans, check, database_without_vacuum


def test_rows_of_plain_sql_take_turns(store: Store) -> None:
    with connection.cursor() as cursor:
        cursor.execute(
            "INSERT INTO django_dispatch_run (task, fair_key)"
            " SELECT 'shop.add', 'a' FROM generate_series(1, 50) UNION ALL SELECT 'shop.add', 'b'"
        )
    assert [stored(run.id).fair_key for run in claim(store, acquire(store), limit=2)] == ["a", "b"]


def test_transactions_that_do_not_see_each_other_share_turns_and_do_not_wait(store: Store, other: Store) -> None:
    first = add_run(fair_key="a")
    with transaction.atomic():
        mine = add_run(fair_key="a")
        (theirs,) = other.receive([NewRun("shop.add", uuid="m", fair_key="a")])
    after = add_run(fair_key="a")
    turn = stored(first).turn
    assert turn is not None
    assert [stored(run_id).turn for run_id in (mine, theirs.id, after)] == [turn + 2, turn + 2, turn + 4]


def test_an_insert_that_names_a_turn_gets_its_own(store: Store) -> None:
    """Nobody gets ahead by a number of one's own."""
    first = add_run(fair_key="a")
    second = add_run(fair_key="b", turn=-1)
    assert [run.id for run in claim(store, acquire(store))] == [first, second]


@pytest.mark.slow
@pytest.mark.parametrize("rows", [0, 200])
def test_a_caller_whose_session_is_as_old_reads_one_row_for_a_turn(
    django_db_modify_db_settings: None, django_db_blocker: Any, rows: int
) -> None:
    """Under the server's defaults: what it remembers of the function is of a small table."""
    turn = "SELECT django_dispatch_turn('fair', 0::smallint, 'tenant 1', 1)"
    plans = Plans()
    with django_db_blocker.unblock(), database_without_vacuum() as session:
        session.execute("ALTER TABLE django_dispatch_run DISABLE TRIGGER USER")
        session.execute(f"{FAIR} LIMIT {rows}".encode())
        session.execute("ANALYZE")
        for _ in range(10):
            session.execute(turn.encode())
        session.execute(FAIR.encode())
        plans.listen(session)
        session.execute("SET auto_explain.log_nested_statements = on")
        session.execute(turn.encode())
    assert len(plans.told) > 1
    for plan in plans.told:
        check(plan, TURNS, most=1)
