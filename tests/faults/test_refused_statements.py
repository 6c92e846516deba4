"""Statements that the database refuses, for this or that reason of the day: none ends a dispatcher, or loses a run."""

from collections.abc import Callable, Iterator

import psycopg
import pytest

from django_dispatch.models import Lease
from testproject.postgres import TemporaryServer
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import wait_until_final
from tests.kit.server import admin
from tests.kit.waiting import wait_for

STATES = {
    "57014": "statement canceled",
    "40P01": "deadlock",
    "40001": "serialization failure",
    "55P03": "lock timeout",
    "53100": "disk full",
    "53200": "out of shared memory",
    "53300": "too many connections",
    "57P01": "admin shutdown",
    "57P03": "cannot connect now",
    "25006": "read-only transaction",
    "58030": "input/output error",
    "XX000": "internal error",
}
PLACES = ("claim", "finish", "renew")

# Sequences count what was refused: they are not rolled back with it.
REFUSING = """
    CREATE SEQUENCE kit_refused_claim;
    CREATE SEQUENCE kit_refused_finish;
    CREATE SEQUENCE kit_refused_renew;
    CREATE TABLE kit_refusal (state text);
    CREATE FUNCTION kit_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE
      place text = CASE WHEN TG_TABLE_NAME = 'django_dispatch_lease' THEN 'renew'
                        WHEN to_jsonb(NEW)->>'status' = 'RUNNING' THEN 'claim' ELSE 'finish' END;
      refusal kit_refusal;
    BEGIN
      SELECT * INTO refusal FROM kit_refusal;
      IF FOUND AND nextval('kit_refused_' || place) <= 2 THEN
        RAISE EXCEPTION 'refused on purpose' USING ERRCODE = refusal.state;
      END IF;
      RETURN NEW;
    END $$;
    CREATE TRIGGER kit_refuse BEFORE UPDATE ON django_dispatch_run FOR EACH ROW EXECUTE FUNCTION kit_refuse();
    CREATE TRIGGER kit_refuse BEFORE UPDATE ON django_dispatch_lease FOR EACH ROW EXECUTE FUNCTION kit_refuse();
"""

Refuse = Callable[[str], None]


@pytest.fixture
def refuse(kit: Kit) -> Iterator[Refuse]:
    """``refuse(state)`` has the next two claims, finishes and renewals each raise that SQLSTATE."""
    kit.sql.execute(REFUSING)

    def order(state: str) -> None:
        for place in PLACES:
            kit.sql.execute(f"ALTER SEQUENCE kit_refused_{place} RESTART")
        kit.sql.execute("DELETE FROM kit_refusal")
        kit.sql.execute("INSERT INTO kit_refusal VALUES (%s)", [state])

    yield order
    kit.dispatchers.close()
    kit.sql.execute("DROP FUNCTION kit_refuse CASCADE; DROP TABLE kit_refusal")
    for place in PLACES:
        kit.sql.execute(f"DROP SEQUENCE kit_refused_{place}")


@pytest.mark.slow
def test_a_refused_claim_finish_or_renewal_is_repeated(kit: Kit, refuse: Refuse) -> None:
    a = kit.dispatchers(lease_ttl=15, settings={"RENEW_INTERVAL": 0.2})
    lease_id = a.lease_id
    for state, name in STATES.items():
        refuse(state)
        (run,) = wait_until_final(tasks.note.delay(name))
        assert (run.status, run.result, run.attempt, kit.ledger.starts(run)) == ("SUCCESSFUL", name, 1, 1)
        for place in PLACES:
            tried = f"SELECT last_value > 2 FROM kit_refused_{place}"
            wait_for(lambda query=tried: kit.sql.execute(query).fetchone() == (True,), what=f"a {place} after {name}")
    assert a.lease_id == lease_id
    a.terminate()
    assert a.exit_code() == 0


def test_a_statement_that_an_administrator_cancels_is_repeated(kit: Kit, database_url: str) -> None:
    """Claims and renewals wait for a lock on the lease, and are canceled there."""
    a = kit.dispatchers(lease_ttl=15, settings={"RENEW_INTERVAL": 2})
    lease = Lease.objects.get()
    blocked = (
        "SELECT pid FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
        " AND datname = current_database()"
    )
    with psycopg.connect(database_url) as locker:
        locker.execute("SELECT FROM django_dispatch_lease FOR UPDATE")
        run = tasks.note.delay()
        for role in ("claims", "keeper"):
            question = [f"django_dispatch {role}"]
            (pid,) = wait_for(lambda question=question: kit.sql.execute(blocked, question).fetchone(), what=role)
            assert kit.sql.execute("SELECT pg_cancel_backend(%s)", [pid]).fetchone() == (True,)
            wait_for(lambda role=role, pid=pid: pid not in kit.cut.sessions(role), what="a session that was left")
    (run,) = wait_until_final(run)
    assert (run.status, run.attempt, kit.ledger.starts(run)) == ("SUCCESSFUL", 1, 1)
    wait_for(lambda: Lease.objects.get().renewed_at > lease.renewed_at, what="another renewal")
    assert a.lease_id == lease.pk
    a.wait_for_log("The trouble with the database is over")


@pytest.mark.slow
def test_an_isolation_level_of_the_projects_does_not_reach_the_dispatcher(kit: Kit, server: TemporaryServer) -> None:
    """Neither OPTIONS nor a default of the database's: dispatchers that claim side by side never fail to serialize."""
    with admin(server) as sql:
        sql.execute("ALTER DATABASE shop SET default_transaction_isolation = 'serializable'")
        family = [
            kit.dispatchers(
                node, database_url=server.url, processes=2, database={"OPTIONS": {"isolation_level": level}}
            )
            for node, level in (
                ("a", psycopg.IsolationLevel.SERIALIZABLE),
                ("b", psycopg.IsolationLevel.REPEATABLE_READ),
            )
        ]
        runs = tasks.quick.delay_many([()] * 1500)
        assert {run.status for run in wait_until_final(*runs, seconds=60)} == {"SUCCESSFUL"}
    for dispatcher in family:
        assert "could not serialize" not in dispatcher.log
        assert "Trouble" not in dispatcher.log
