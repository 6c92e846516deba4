"""Exactly once, for what a body writes to the database: it is killed at every step, or loses its run."""

import os
import signal
from collections.abc import Iterator

import psycopg
import pytest

from django_dispatch.models import Run
from tests.kit import retries
from tests.kit.fixtures import Kit
from tests.kit.runs import fresh, wait_until_final
from tests.kit.waiting import wait_for

LOCK = 4711
# What holds the body back: in the statement that writes its success, or in its commit.
STEPS = {
    "finish": "CREATE TRIGGER kit_wait BEFORE UPDATE ON django_dispatch_run FOR EACH ROW"
    " WHEN (NEW.status = 'SUCCESSFUL') EXECUTE FUNCTION kit_wait()",
    "commit": "CREATE CONSTRAINT TRIGGER kit_wait AFTER INSERT ON kit_effect DEFERRABLE INITIALLY DEFERRED"
    " FOR EACH ROW EXECUTE FUNCTION kit_wait()",
}
SET_UP = f"""
CREATE TABLE kit_effect (run_id bigint, attempt int);
CREATE FUNCTION kit_wait() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN PERFORM pg_advisory_xact_lock_shared({LOCK}); RETURN NEW; END $$
"""
TIDY_UP = "DROP FUNCTION IF EXISTS kit_wait CASCADE; DROP TABLE IF EXISTS kit_effect"
WAITS = f"SELECT count(*) > 0 FROM pg_locks WHERE locktype = 'advisory' AND objid = {LOCK} AND NOT granted"


@pytest.fixture
def served(kit: Kit, database_url: str) -> Iterator[Kit]:
    kit.sql.execute(TIDY_UP.encode())
    kit.sql.execute(SET_UP.encode())
    kit.dispatchers(processes=2)
    yield kit
    kit.dispatchers.close()
    with psycopg.connect(database_url, autocommit=True) as sql:
        sql.execute(TIDY_UP.encode())


def effects(kit: Kit, run: Run) -> list[int]:
    return [row[0] for row in kit.sql.execute("SELECT attempt FROM kit_effect WHERE run_id = %s", [run.pk])]


@pytest.mark.parametrize(("end", "counts"), [("", 1), ("raise", 2), ("die", 2), ("die after the commit", 1)], ids=str)
def test_what_a_body_wrote_stays_if_and_only_if_it_succeeded(served: Kit, end: str, counts: int) -> None:
    (run,) = wait_until_final(retries.has_effect.delay(end))
    assert (run.status, run.result, effects(served, run)) == ("SUCCESSFUL", f"attempt {counts}", [counts])
    assert served.ledger.starts(run) == counts
    assert (run.failures, run.interruptions) == (int(end == "raise"), int(end == "die"))


@pytest.mark.parametrize("step", STEPS)
def test_a_body_that_is_killed_while_it_finishes_has_done_all_or_nothing(
    served: Kit, database_url: str, step: str
) -> None:
    served.sql.execute(STEPS[step].encode())
    with psycopg.connect(database_url, autocommit=True) as holder:
        holder.execute("SELECT pg_advisory_lock(%s)", [LOCK])
        run = retries.has_effect.delay()
        wait_for(lambda: served.sql.execute(WAITS).fetchone() == (True,), what="the body in its last step")
        assert effects(served, run) == []
        assert fresh(run).status == "RUNNING"
        os.kill(served.ledger.rows(run)[0].pid, signal.SIGKILL)
        wait_for(lambda: fresh(run).interruptions == 1, what="the loss on record")
    (run,) = wait_until_final(run)
    assert (run.status, run.result, effects(served, run)) == ("SUCCESSFUL", "attempt 2", [2])


def test_a_body_whose_run_was_taken_away_leaves_nothing(served: Kit) -> None:
    run = retries.has_effect.delay("gate")
    served.gate.wait_until_reached("gate")
    served.sql.execute("UPDATE django_dispatch_run SET status = 'READY', lease_id = NULL WHERE id = %s", [run.pk])
    wait_for(lambda: fresh(run).epoch == 2, what="claimed again")
    (run,) = wait_until_final(run)
    served.gate.open("gate")
    served.dispatchers.all[0].wait_for_log("lease lost; its outcome is dropped")
    assert (run.status, run.result, effects(served, run)) == ("SUCCESSFUL", "attempt 2", [2])
    assert [row.attempt for row in served.ledger.rows(run)] == [1, 2]
