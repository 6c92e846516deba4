"""Behind a real PgBouncer: no session keeps anything, LISTEN hears nothing, and all is as it should be nevertheless.

The test's own questions, and the ledger, take the direct way.
"""

import json
from typing import Any
from urllib.parse import urlsplit

import pytest

from django_dispatch import cancel
from django_dispatch.control import ask
from django_dispatch.exceptions import ControlError
from django_dispatch.models import Run, Schedule
from tests.kit import limited, tasks
from tests.kit.fixtures import Kit
from tests.kit.ledger import most_at_once
from tests.kit.pooler import Pooler
from tests.kit.runs import wait_for_status, wait_until_final
from tests.kit.scrape import free_port, get, scrape
from tests.kit.server import runs_on
from tests.kit.waiting import wait_for

MANY = 500
TOLD = "The database 'default' is reached through a pooler"
DECLARED = {"DISABLE_SERVER_SIDE_CURSORS": True}
# What executors set where nothing tells them of a pooler: it has PostgreSQL see sooner that a client is gone.
OF_EXECUTORS = {
    "client_connection_check_interval",
    "tcp_keepalives_idle",
    "tcp_keepalives_interval",
    "tcp_user_timeout",
}
# PgBouncer gives these to each client as that had them.
OF_CLIENTS = {"application_name", "client_encoding", "DateStyle", "standard_conforming_strings", "TimeZone"}
LEFT = "SELECT name FROM pg_settings WHERE source = 'session'"
PREPARED = "SELECT name FROM pg_prepared_statements"
LISTENING = "SELECT pg_listening_channels()"
# The poll is too far away to help.
FAR_AWAY = {"lease_ttl": 60, "poll_interval": 50}


def lived(kit: Kit, pooler: Pooler, database: dict[str, Any]) -> None:
    """Have runs of all kinds live their lives, among dispatchers that are killed and a pooler that is."""
    how: dict[str, Any] = {"database_url": pooler.url, "database": database, "settings": {"WAKEUPS": []}}
    with runs_on(pooler.url):
        held = tasks.gated.delay("held")
        runs = [
            *tasks.quick.delay_many([()] * MANY),
            *(limited.one.delay("k", "", number) for number in range(4)),
            *(limited.serial.delay("s", "", number) for number in range(3)),
            tasks.note.apply_async(countdown=1),
            tasks.query.delay(),
            tasks.anote.delay(),
        ]
        stopped = tasks.gated.delay("never")
    each_second = Schedule.objects.create(name="each second", task="tests.kit.tasks.quick", cron="* * * * * *")
    a = kit.dispatchers("a", processes=2, async_concurrency=2, is_awaited=False, **how)
    kit.gate.wait_until_reached("held")
    a.kill9()
    b = kit.dispatchers("b", processes=3, async_concurrency=2, **how)
    kit.gate.wait_until_reached("held", times=2)
    kit.gate.wait_until_reached("never")
    pooler.restart()
    kit.gate.open("held")
    assert cancel(stopped)
    runs += [held, tasks.query.delay(), *tasks.quick.delay_many([()] * MANY)]
    found = wait_until_final(*runs, seconds=90)
    assert {run.status for run in found} == {"SUCCESSFUL"}
    assert wait_until_final(stopped)[0].status == "CANCELLED"
    assert most_at_once(row for row in kit.ledger.rows() if row.note == "k") == 1
    for run in found:
        assert kit.ledger.starts(run) <= 1 + run.interruptions  # a body that the kill met was begun again, no other
        assert not kit.ledger.overlaps(run)
    wait_for(lambda: Run.objects.filter(schedule=each_second, status="SUCCESSFUL").count() >= 2, 30)
    each_second.delete()
    b.terminate()
    assert b.exit_code() == 0
    for words in ('prepared statement "', "does not exist"):
        assert words not in a.log + b.log


@pytest.mark.slow
def test_no_session_keeps_anything_where_the_settings_tell_of_the_pooler(kit: Kit, pooler: Pooler) -> None:
    lived(kit, pooler, DECLARED)
    assert {name for (name,) in pooler.every_session(LEFT)} <= OF_CLIENTS
    assert pooler.every_session(PREPARED) == []
    assert not any(TOLD in dispatcher.log for dispatcher in kit.dispatchers.all)


@pytest.mark.slow
def test_no_session_keeps_anything_where_nothing_tells_of_the_pooler(kit: Kit, pooler: Pooler) -> None:
    """Nothing, that is, which changes what becomes of others' statements."""
    lived(kit, pooler, {"CONN_MAX_AGE": None})
    assert {name for (name,) in pooler.every_session(LEFT)} <= OF_CLIENTS | OF_EXECUTORS
    assert pooler.every_session(PREPARED) == []
    assert [dispatcher.log.count(TOLD) for dispatcher in kit.dispatchers.all] == [1, 1]


def test_a_burst_through_a_pooler_ends_and_prepares_nothing(kit: Kit, pooler: Pooler) -> None:
    """Whatever the project's own connections do, which these bodies do not use."""
    with runs_on(pooler.url):
        runs = [limited.serial.delay("k", "", number) for number in range(3)]
        runs += tasks.quick.delay_many([()] * 20)
    database = DECLARED | {"OPTIONS": {"prepare_threshold": 0}}
    a = kit.dispatchers(burst=True, is_awaited=False, database_url=pooler.url, database=database)
    assert a.exit_code() == 0
    assert {run.status for run in wait_until_final(*runs)} == {"SUCCESSFUL"}
    assert pooler.every_session(PREPARED) == []


@pytest.mark.slow
def test_a_listener_that_a_pooler_makes_deaf_is_found_out(kit: Kit, pooler: Pooler) -> None:
    """It says so once, polls as if it did not listen, is shown in the metrics, and is no reason for a restart."""
    port = free_port()
    a = kit.dispatchers(
        database_url=pooler.url,
        poll_interval=2,
        lease_ttl=15,
        settings={"METRICS_PORT": port, "METRICS_HOST": "127.0.0.1"},
    )
    assert scrape(port).value("django_dispatch_listener_proved") == 0
    first = Run.objects.create(task="tests.kit.tasks.note")
    (first,) = wait_until_final(first)
    a.wait_for_log("LISTEN would hear nothing through a pooler")
    assert pooler.every_session(LISTENING) == []
    # However long it is quiet: that nothing is heard says nothing. Rows of the app's make no wakeup by themselves.
    runs = [first]
    for _ in range(3):
        runs += wait_until_final(Run.objects.create(task="tests.kit.tasks.note"))
    waits = [(kit.ledger.rows(run)[0].started_at - run.enqueued_at).total_seconds() for run in runs]
    assert max(waits) < 3 * 2
    seen = scrape(port)
    assert seen.value("django_dispatch_listener_proved") == seen.value("django_dispatch_listener_connected") == 0
    assert get(port, "/healthz")[0] == get(port, "/readyz")[0] == 200
    assert a.log.count("LISTEN would hear nothing") == 1
    assert "Trouble" not in a.log


@pytest.mark.parametrize(
    ("pooler", "listen"),
    [("transaction", "connection string"), ("transaction", "alias"), ("session", None)],
    indirect=["pooler"],
)
def test_who_listens_elsewhere_or_to_sessions_that_are_kept_hears(
    kit: Kit, pooler: Pooler, listen: str | None, database_url: str, settings: Any
) -> None:
    addresses = {"connection string": database_url, "alias": "other"}
    own = {} if listen is None else {"LISTEN_DSN": addresses[listen]}
    direct = json.dumps({"PORT": str(urlsplit(database_url).port)})
    kit.dispatchers(
        database_url=pooler.url,
        database={} if listen is None else DECLARED,
        settings=own,
        env={"KIT_OTHER_ALIAS": direct},
        **FAR_AWAY,
    )
    settings.DISPATCH = own | ({"LISTEN_DSN": database_url} if listen == "alias" else {})
    (answer,) = wait_for(lambda: ask("producers", timeout=2).answers)
    wait_for(lambda: ask("producers").answers[0]["listener"]["is_proved"], what="a listener that is proved")
    assert answer["listener"]["is_connected"]
    (run,) = wait_until_final(tasks.note.delay(), seconds=10)
    assert run.status == "SUCCESSFUL"


def test_who_asks_through_a_pooler_is_told_why_no_answer_comes(kit: Kit, pooler: Pooler) -> None:
    kit.dispatchers()
    with runs_on(pooler.url), pytest.raises(ControlError, match="LISTEN_DSN"):
        ask("alive", timeout=3600)
    assert pooler.every_session(LISTENING) == []


def test_who_asks_where_nobody_listens_is_told_at_once(kit: Kit, settings: Any) -> None:
    settings.DISPATCH = {"WAKEUPS": []}
    with pytest.raises(ControlError, match=r"No dispatcher would hear .* 'alive': DISPATCH\['WAKEUPS'\]"):
        ask("alive", timeout=3600)


def test_without_wakeups_a_running_body_is_stopped_within_a_poll(kit: Kit) -> None:
    kit.dispatchers(no_listen=True, poll_interval=0.5)
    run = tasks.gated.delay("never")
    kit.gate.wait_until_reached("never")
    cancel(run)
    (run,) = wait_until_final(run, seconds=10)
    assert run.status == "CANCELLED"
    (row,) = kit.ledger.rows(run)
    assert run.cancel_requested_at is not None
    assert (row.last_seen_at - run.cancel_requested_at).total_seconds() < 3
    wait_for_status(run, "CANCELLED")
