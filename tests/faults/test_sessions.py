"""Database sessions that end under their users, one kind after the other; and no room for new ones."""

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from django_dispatch.models import Run
from testproject.postgres import TemporaryServer
from tests.kit import tasks
from tests.kit.cut import Cut
from tests.kit.fixtures import Kit
from tests.kit.runs import wait_until_final
from tests.kit.server import admin
from tests.kit.waiting import wait_for

from .test_children import HAS_POOL

needs_pool = pytest.mark.skipif(not HAS_POOL, reason="needs psycopg_pool")
OWN_ROLES = ("claims", "keeper", "store", "listener")
# A pool's idle sessions have no name until they are lent.
END_EXECUTORS = """
    SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity
    WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> pg_backend_pid()
      AND pid <> %s AND application_name NOT IN (
      'django_dispatch claims', 'django_dispatch keeper', 'django_dispatch store', 'django_dispatch listener')
"""
LIMITED = """
    CREATE ROLE limited LOGIN PASSWORD 'limited' CONNECTION LIMIT 8;
    GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO limited
"""
SESSIONS = "SELECT count(*) FROM pg_stat_activity WHERE usename = 'limited'"


def test_each_session_of_a_dispatcher_may_be_terminated(kit: Kit) -> None:
    """It connects again and goes on; what runs meanwhile has not even noticed."""
    a = kit.dispatchers(processes=2, lease_ttl=15)
    lease_id = a.lease_id
    held = tasks.gated.delay("work", "kept")
    kit.gate.wait_until_reached("work")
    for role in OWN_ROLES:
        before = wait_for(lambda role=role: kit.cut.sessions(role), what=f"a {role} session")
        kit.cut(role)
        wait_for(
            lambda role=role, old=set(before): set(kit.cut.sessions(role)) - old, 20, what=f"another {role} session"
        )
        (run,) = wait_until_final(tasks.note.delay())
        assert (run.status, run.attempt) == ("SUCCESSFUL", 1)
    kit.gate.open("work")
    (held,) = wait_until_final(held)
    assert (held.status, held.result, held.attempt, kit.ledger.starts(held)) == ("SUCCESSFUL", "kept", 1, 1)
    assert a.lease_id == lease_id


@pytest.mark.slow
@pytest.mark.parametrize(
    "database",
    [
        pytest.param({"CONN_MAX_AGE": None}, id="kept for ever"),
        pytest.param({"OPTIONS": {"pool": {"min_size": 2, "max_size": 4}}}, id="pool", marks=needs_pool),
    ],
)
def test_a_dead_session_of_an_executor_fails_no_later_run(kit: Kit, database: dict[str, Any]) -> None:
    """No health checks: an executor looks by itself. At most what is in the middle of using it fails."""
    kit.dispatchers(processes=2, async_concurrency=4, database={"CONN_HEALTH_CHECKS": False, **database})
    assert statuses_of(kit) == {"SUCCESSFUL"}

    assert end_executors(kit) >= 2
    assert statuses_of(kit) == {"SUCCESSFUL"}

    held = [tasks.query_twice.delay("work") for _ in range(2)] + [tasks.aquery_twice.delay("work")]
    kit.gate.wait_until_reached("work", times=3)
    assert end_executors(kit) >= 2
    kit.gate.open("work")
    wait_until_final(*held)
    assert statuses_of(kit) == {"SUCCESSFUL"}

    if "OPTIONS" not in database:
        # The documented formula: 4 of the dispatcher, one for each executor and alias; sync ones and the async one.
        query = """
            SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND application_name LIKE 'django_dispatch %'
        """
        (sessions,) = kit.sql.execute(query).fetchone() or (0,)
        assert 4 < sessions <= 4 + (2 + 1) * 1


def statuses_of(kit: Kit) -> set[str]:
    """Have 20 runs use the database, sync and async ones, and return how they ended."""
    runs = [task.delay() for _ in range(10) for task in (tasks.query, tasks.aquery)]
    return {run.status for run in wait_until_final(*runs, seconds=40)}


def end_executors(kit: Kit) -> int:
    """Terminate every session that is neither the dispatcher's nor the test's."""
    from django.db import connection

    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (ours,) = cursor.fetchone()
    (count,) = kit.sql.execute(END_EXECUTORS, [ours]).fetchone() or (0,)
    return int(count)


@pytest.mark.slow
def test_a_connection_limit_is_recovered_from_unaided(kit: Kit, server: TemporaryServer) -> None:
    """12 executors want more sessions than there may be: who gets none fails, and is tried again."""
    url = limited_url(server)
    with admin(server) as sql:
        a = kit.dispatchers(database_url=url, processes=12, lease_ttl=3)
        held = [tasks.query_twice.apply_async(("work",), max_attempts=30) for _ in range(12)]
        runs = [tasks.query.apply_async(max_attempts=30) for _ in range(50)]
        refused = Run.objects.filter(failures__gt=0)
        wait_for(lambda: refused.count() > 20, 30, what="runs that found no connection")
        kit.gate.open("work")
        seen = watch_sessions(sql, [*held, *runs])
        ended = wait_until_final(*held, *runs)
        assert {run.status for run in ended} == {"SUCCESSFUL"}
        assert max(seen) == 8
        errors = [error["message"] for run in ended for error in run.errors]
        assert errors
        assert all("too many connections" in message for message in errors)
        wait_for(lambda: Cut(sql).sessions("executor") == [], what="idle executors without a session")
    assert a.lease_id


@pytest.mark.slow
def test_executors_that_keep_every_session_give_way_to_the_dispatcher(kit: Kit, server: TemporaryServer) -> None:
    """Its lease cannot be renewed, so its executors end, and with them their sessions: it cannot block itself."""
    url = limited_url(server)
    with admin(server) as sql:
        a = kit.dispatchers(database_url=url, processes=6, lease_ttl=2, database={"CONN_MAX_AGE": None})
        lease_id = a.lease_id
        held = [tasks.query_twice.apply_async(("work",), max_attempts=30) for _ in range(6)]
        wait_for(lambda: len(Cut(sql).sessions("executor")) == 4, what="every session taken")
        kit.gate.open("work")
        sql.execute("ALTER ROLE limited CONNECTION LIMIT 7")  # as if somebody else took the keeper's
        Cut(sql)("keeper")
        a.wait_for_log(f"Lease {lease_id} is lost")
        wait_for(lambda: a.lease_id not in (None, lease_id), what="another lease")
        (run,) = wait_until_final(tasks.note.delay())
        assert run.status == "SUCCESSFUL"
        assert {run.status for run in wait_until_final(*held, seconds=40)} == {"SUCCESSFUL"}


def limited_url(server: TemporaryServer) -> str:
    """Return the address for a role that may have 8 sessions."""
    with admin(server) as sql:
        if not sql.execute("SELECT 1 FROM pg_roles WHERE rolname = 'limited'").fetchone():
            sql.execute(LIMITED)
        sql.execute("ALTER ROLE limited CONNECTION LIMIT 8")
    return urlsplit(server.url)._replace(netloc=f"limited:limited@127.0.0.1:{server.port}").geturl()


def watch_sessions(sql: psycopg.Connection[Any], runs: Sequence[Run]) -> list[int]:
    """Count the role's sessions until all runs have ended."""
    seen: list[int] = []
    unfinished = Run.objects.filter(pk__in=[run.pk for run in runs], finished_at=None)

    def is_over() -> bool:
        seen.append((sql.execute(SESSIONS).fetchone() or (0,))[0])
        return not unfinished.exists()

    wait_for(is_over, 120, what="every run ended")
    return seen
