"""Control while things are in trouble: no connections left, a busy database, closed streams, killed listeners."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from django_dispatch.control import ask
from django_dispatch.models import Run
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import fresh, wait_until_final
from tests.kit.waiting import wait_for

ROLE = "kit_limited"
SESSIONS = "SELECT application_name FROM pg_stat_activity WHERE usename = %s ORDER BY 1"
BLOCKED = (
    "SELECT query_start FROM pg_stat_activity WHERE application_name = 'django_dispatch store'"
    " AND wait_event_type = 'Lock' AND datname = current_database()"
)


@pytest.fixture
def limited_url(kit: Kit, database_url: str) -> Iterator[str]:
    """The database, for a role that may have few connections."""
    for statement in (
        f"DROP ROLE IF EXISTS {ROLE}",
        f"CREATE ROLE {ROLE} LOGIN PASSWORD 'limited' CONNECTION LIMIT 4",
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {ROLE}",
        f"GRANT ALL ON ALL SEQUENCES IN SCHEMA public TO {ROLE}",
    ):
        kit.sql.execute(statement)
    parts = urlsplit(database_url)
    yield parts._replace(netloc=f"{ROLE}:limited@{parts.netloc.rpartition('@')[2]}").geturl()
    kit.dispatchers.close()
    kit.sql.execute(f"DROP OWNED BY {ROLE}")
    kit.sql.execute(f"DROP ROLE {ROLE}")


def test_commands_are_answered_when_no_connection_is_left(kit: Kit, limited_url: str) -> None:
    kit.dispatchers("a", database_url=limited_url, lease_ttl=15)
    roles = ["claims", "keeper", "listener", "store"]
    wait_for(
        lambda: kit.sql.execute(SESSIONS, [ROLE]).fetchall() == [(f"django_dispatch {role}",) for role in roles],
        what="all four connections taken",
    )
    with pytest.raises(psycopg.OperationalError, match="too many connections"):
        psycopg.connect(limited_url)
    run = tasks.gated.delay("held")
    kit.gate.wait_until_reached("held")
    assert ask("alive", timeout=20).answers[0]["node_id"] == "a"
    assert f"run-{run.id}" in ask("running", timeout=20).answers[0]
    (answer,) = ask("cancel", {"run": run.id}, timeout=20)
    assert (answer[f"run-{run.id}"]["answer"], "error" in answer) == ("requested", False)
    assert wait_until_final(run)[0].status == "CANCELLED"


@pytest.mark.slow
def test_commands_are_answered_and_bodies_stopped_while_the_database_is_busy(kit: Kit, settings: Any) -> None:
    """The store waits for a lock all the time that questions are asked and answered; and so do runs that wait."""
    channels = settings.DISPATCH = {"NOTIFY_CHANNELS": {"jobs": "default"}}
    dispatcher = kit.dispatchers("a", lease_ttl=15, settings=channels)
    run = tasks.gated.delay("held")
    kit.gate.wait_until_reached("held")
    with kit.sql.transaction():
        kit.sql.execute("LOCK TABLE django_dispatch_run IN ACCESS EXCLUSIVE MODE")
        with psycopg.connect(kit.sql.info.dsn, password=kit.sql.info.password, autocommit=True) as eye:

            def blocked_since() -> Any:
                return eye.execute(BLOCKED).fetchone()

            for _ in range(5):  # an answer counts if one and the same statement was blocked before and after
                before = wait_for(blocked_since, what="the store blocked")
                (status,) = ask("status", timeout=20)
                if blocked_since() == before:
                    break
            else:
                pytest.fail("Answers come only when the store is free.")
            assert f"run-{run.id}" in status["running"]
            (answer,) = ask("cancel", {"run": run.id}, timeout=20)
            assert "The database has not answered yet" in answer["error"]
            wait_for(lambda: kit.ledger.rows(run)[0].ended_at, what="the body stopped")
            message = {"task": tasks.note.path, "uuid": "in trouble", "args": [1]}
            eye.execute("SELECT pg_notify('jobs', %s)", [json.dumps(message)])
            dispatcher.wait_for_log("messages cannot be recorded")
    assert wait_until_final(run)[0].status == "CANCELLED"
    wait_for(lambda: Run.objects.filter(uuid="in trouble").exists(), what="the message recorded")
    assert wait_until_final(Run.objects.get(uuid="in trouble"))[0].result == 1


def test_control_and_messages_go_on_after_the_listening_connection_is_cut(kit: Kit, settings: Any) -> None:
    channels = settings.DISPATCH = {"NOTIFY_CHANNELS": {"jobs": "default"}}
    kit.dispatchers("a", lease_ttl=15, settings=channels)
    assert len(ask("alive", timeout=20)) == 1
    (old,) = kit.cut.sessions("listener")
    for role in ("listener", "control", "store"):
        assert kit.cut(role) == 1
    wait_for(lambda: kit.cut.sessions("listener") not in ([], [old]), what="another listener")
    wait_for(lambda: len(ask("alive", timeout=1)) == 1, 30)
    kit.sql.execute("SELECT pg_notify('jobs', %s)", [json.dumps({"task": tasks.note.path, "uuid": "after"})])
    wait_for(lambda: Run.objects.filter(uuid="after", status="SUCCESSFUL").exists())


def test_busy_for_long_is_healthy(kit: Kit) -> None:
    """All executors are busy, so nothing is claimed; and yet the loops do their work."""
    kit.dispatchers("a", lease_ttl=6)
    run = tasks.gated.delay("busy")
    kit.gate.wait_until_reached("busy")
    tasks.note.delay("waits")
    (before,) = ask("main", timeout=20)
    wait_for(lambda: ask("main", timeout=20).answers[0]["uptime_seconds"] > before["uptime_seconds"] + 2)
    (answer,) = ask("main", timeout=20)
    assert answer["loops"]["claims"]["seconds_since_success"] < 2, "it looks, though it has no room"
    assert answer["late"] == []
    kit.gate.open("busy")
    wait_until_final(run)


def test_closed_streams_do_no_harm(kit: Kit) -> None:
    """Neither stdin, stdout nor stderr is there, so the first files that are opened would get their numbers."""
    dispatcher = kit.dispatchers("mute", is_mute=True, is_awaited=False, lease_ttl=15, async_concurrency=2)
    printed, run = tasks.awful.delay("print_nul"), tasks.anote.delay(1)
    printed, run = wait_until_final(printed, run, seconds=60)
    assert (printed.status, run.result) == ("SUCCESSFUL", 1)
    assert ask("alive", timeout=20).answers[0]["is_healthy"]
    stuck = tasks.gated.delay("stuck")
    kit.gate.wait_until_reached("stuck")
    (answer,) = ask("stacks", {"run": stuck.id}, timeout=20)
    assert "in gated" in answer[f"run-{stuck.id}"]["stack"]
    kit.gate.open("stuck")
    wait_until_final(stuck)
    dispatcher.terminate()
    assert dispatcher.exit_code() == 0
    assert fresh(stuck).attempt == 1
    assert dispatcher.log == ""
