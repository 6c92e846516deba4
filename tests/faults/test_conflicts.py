"""Real deadlocks and serialization failures: a dispatcher's statements against transactions of the project's."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import psycopg
import pytest

from tests.kit import limited, tasks
from tests.kit.dispatchers import Dispatcher
from tests.kit.fixtures import Kit
from tests.kit.runs import wait_until_final
from tests.kit.waiting import wait_for

# What a project may well have: a trigger that writes something else. First it waits for a lock of the test's, which
# no lock_timeout ends.
COUNTING = """
    CREATE TABLE kit_counter (n int);
    INSERT INTO kit_counter VALUES (0);
    CREATE FUNCTION kit_count() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      PERFORM set_config('lock_timeout', '0', true), set_config('deadlock_timeout', '10ms', true);
      PERFORM pg_advisory_xact_lock(42);
      UPDATE kit_counter SET n = n + 1;
      RETURN NULL;
    END $$;
"""
TRIGGER = "CREATE TRIGGER kit_count AFTER UPDATE ON {} FOR EACH ROW EXECUTE FUNCTION kit_count()"
TRIGGERS = {
    "claim": TRIGGER.format("django_dispatch_run").replace("ROW", "ROW WHEN (NEW.status = 'RUNNING')"),
    "finish": TRIGGER.format("django_dispatch_run").replace("ROW", "ROW WHEN (NEW.status = 'SUCCESSFUL')"),
    "renew": TRIGGER.format("django_dispatch_lease"),
}
WAITS = (
    "SELECT pid FROM pg_stat_activity WHERE datname = current_database() AND application_name = %s"
    " AND wait_event_type = 'Lock'"
)


@pytest.fixture
def counting(kit: Kit) -> Iterator[None]:
    """The project's counter, and the function that counts; a trigger is up to the test."""
    kit.sql.execute(COUNTING)
    kit.sql.execute("SELECT pg_advisory_lock(42)")
    yield
    kit.sql.execute("SELECT pg_advisory_unlock_all()")
    kit.dispatchers.close()
    kit.sql.execute("DROP FUNCTION kit_count CASCADE; DROP TABLE kit_counter")


@contextmanager
def application(url: str) -> Iterator[psycopg.Connection[Any]]:
    """Give a transaction of the project's, which is no deadlock's victim."""
    with psycopg.connect(url, application_name="application") as application:
        application.execute("SET deadlock_timeout = '1h'")
        yield application


def wait_until_waiting(sql: psycopg.Connection[Any], name: str) -> None:
    wait_for(lambda: sql.execute(WAITS, [name]).fetchone(), what=f"{name} waiting for a lock")


def assert_one_trouble(dispatcher: Dispatcher, part: str, error: str) -> None:
    """It is told of in one line when it begins and in one when it is over."""
    dispatcher.wait_for_log("The trouble with the database is over")
    (line,) = (
        line for line in dispatcher.log.splitlines() if "rouble with the database" in line and "over" not in line
    )
    assert f"Trouble with the database ({part}): {error}" in line
    assert dispatcher.log.count("The trouble with the database is over") == 1


@pytest.mark.parametrize("verb", ["claim", "finish", "renew"])
def test_a_deadlock_with_the_project_costs_nothing(kit: Kit, database_url: str, counting: None, verb: str) -> None:
    """A trigger of its own has the dispatcher lock row and counter, while a transaction locks counter and row."""
    kit.sql.execute(TRIGGERS[verb])
    part, role = ("lease", "keeper") if verb == "renew" else ("claims", "claims")
    a = kit.dispatchers(lease_ttl=60, settings={"RENEW_INTERVAL": 3} if verb == "renew" else None)
    lease_id = a.lease_id
    run = tasks.note.delay("kept")
    with ThreadPoolExecutor() as threads, application(database_url) as transaction:
        transaction.execute("SELECT FROM kit_counter FOR UPDATE")
        wait_until_waiting(kit.sql, f"django_dispatch {role}")  # with the row
        table = "lease" if verb == "renew" else "run"
        has_row = threads.submit(transaction.execute, f"SELECT FROM django_dispatch_{table} FOR UPDATE")
        wait_until_waiting(kit.sql, "application")
        kit.sql.execute("SELECT pg_advisory_unlock(42)")
        has_row.result(timeout=15)
        transaction.commit()
        (run,) = wait_until_final(run)
    assert (run.status, run.result, run.attempt, run.epoch, run.interruptions) == ("SUCCESSFUL", "kept", 1, 1, 0)
    assert kit.ledger.starts(run) == 1
    assert_one_trouble(a, part, "deadlock detected; trying again.")
    assert a.lease_id == lease_id
    if verb != "renew":
        assert kit.sql.execute("SELECT n FROM kit_counter").fetchone() == (1,)


def test_outcomes_deadlock_with_no_order_of_the_projects(kit: Kit, database_url: str, counting: None) -> None:
    """A transaction holds the second of two runs and waits for the first, which is being finished: both get through."""
    kit.sql.execute(TRIGGERS["finish"])
    a = kit.dispatchers(processes=2, lease_ttl=60)
    first, second = (tasks.gated.delay("work", name) for name in ("first", "second"))
    kit.gate.wait_until_reached("work", times=2)
    lock = "SELECT FROM django_dispatch_run WHERE id = %s FOR UPDATE"
    with ThreadPoolExecutor() as threads, application(database_url) as transaction:
        transaction.execute(lock, [second.pk])
        kit.gate.open("work")
        wait_until_waiting(kit.sql, "django_dispatch claims")  # with the first run
        wait_for(lambda: all(row.ended_at for row in kit.ledger.rows(second)), what="the second body ended")
        has_both = threads.submit(transaction.execute, lock, [first.pk])
        wait_until_waiting(kit.sql, "application")
        kit.sql.execute("SELECT pg_advisory_unlock(42)")
        has_both.result(timeout=15)
        assert wait_until_final(first)[0].result == "first"
        a.wait_for_log(f"Run {second.pk} (tests.kit.tasks.gated): a transaction holds its row; its outcome waits.")
        transaction.commit()
        (second,) = wait_until_final(second)
    assert (second.status, second.result, second.attempt, kit.ledger.starts(second)) == ("SUCCESSFUL", "second", 1, 1)
    assert "rouble" not in a.log


def test_behind_a_pooler_no_default_of_the_roles_makes_a_statement_fail_to_serialize(
    kit: Kit, database_url: str
) -> None:
    """A session has no settings of its own there, so that each transaction names its level."""
    default = {"OPTIONS": {"options": r"-c default_transaction_isolation=repeatable\ read"}}
    a = kit.dispatchers(lease_ttl=60, database={"DISABLE_SERVER_SIDE_CURSORS": True, **default})
    lease_id = a.lease_id
    ends = tasks.gated.delay("work", "kept")
    kit.gate.wait_until_reached("work")
    waits = tasks.note.delay("claimed")
    with application(database_url) as transaction:
        transaction.execute("SELECT FROM django_dispatch_lease FOR UPDATE")  # claims wait for who may delete it
        transaction.execute("UPDATE django_dispatch_lease SET version = version")
        kit.gate.open("work")
        wait_until_waiting(kit.sql, "django_dispatch claims")  # to finish the one, and claim the other
    for run in wait_until_final(ends, waits):
        assert (run.status, run.attempt, run.epoch, run.interruptions) == ("SUCCESSFUL", 1, 1, 0)
        assert kit.ledger.starts(run) == 1
    limits = [limited.one.delay("k", "", number) for number in range(3)]
    assert {run.status for run in wait_until_final(*limits)} == {"SUCCESSFUL"}
    assert "rouble" not in a.log
    assert a.lease_id == lease_id
