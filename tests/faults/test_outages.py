"""The database goes away and comes back: bodies go on while their lease is safe, and nothing is lost or done twice.

The runs are on a server of the test's own. The ledger is on the suite's, so bodies can tell of themselves meanwhile.
"""

import os
import time
from datetime import timedelta
from typing import Any

import psutil
import pytest
from django.db import connection

from django_dispatch.models import Lease
from testproject.postgres import TemporaryServer
from tests.kit import tasks
from tests.kit.cut import Cut
from tests.kit.dispatchers import Dispatcher
from tests.kit.fixtures import Kit
from tests.kit.relay import Relay
from tests.kit.runs import fresh, wait_until_final
from tests.kit.scrape import free_port, scrape
from tests.kit.server import Standby, admin, migrated_server, now_of, reconnected, runs_on
from tests.kit.waiting import wait_for

BEGINS = "Trouble with the database ("
IS_OVER = "The trouble with the database is over"
RECOVERY = timedelta(seconds=10)
DOWN_SECONDS = int(os.environ.get("OUTAGE_SECONDS", "20"))  # more than the longest pause between two attempts
LISTENERS = "SELECT query FROM pg_stat_activity WHERE application_name = 'django_dispatch listener' AND state = 'idle'"


@pytest.mark.slow
def test_bodies_outlive_a_restart_and_their_outcomes_are_written_once(kit: Kit, server: TemporaryServer) -> None:
    """However the server ends. The poll is far away: what is enqueued afterwards is heard of by LISTEN, at once."""
    a = kit.dispatchers(database_url=server.url, async_concurrency=1, lease_ttl=60, poll_interval=50)
    lease_id = a.lease_id
    for way in ("fast", "immediate", "kill -9"):
        runs = [task.delay(f"work {way}", way) for task in (tasks.gated, tasks.agated)]
        kit.gate.wait_until_reached(f"work {way}", times=2)
        server.kill() if way == "kill -9" else server.stop(way)
        kit.gate.open(f"work {way}")
        wait_for(lambda runs=runs: all(kit.ledger.rows(run)[0].ended_at for run in runs), what="bodies that end")
        back_at = now_of(kit.sql)
        server.start()
        runs = reconnected(lambda runs=runs: wait_until_final(*runs))
        for run in runs:
            assert (run.status, run.result, run.attempt, kit.ledger.starts(run)) == ("SUCCESSFUL", way, 1, 1)
            assert run.finished_at is not None
            assert run.finished_at - back_at < RECOVERY
        with admin(server) as sql:
            wait_for(lambda sql=sql: sql.execute(LISTENERS).fetchall() == [('LISTEN "django_dispatch_control"',)])
        for task in (tasks.note, tasks.anote):
            (run,) = wait_until_final(task.apply_async(queue=way))
            (row,) = kit.ledger.rows(run)
            assert row.started_at - run.enqueued_at < timedelta(seconds=2)
    assert a.lease_id == lease_id


@pytest.mark.slow
def test_connections_that_died_in_silence_are_given_up_within_seconds(kit: Kit, relay: Relay) -> None:
    """As after a failover that closed nothing: old connections bring no answer and no error, new ones work."""
    a = kit.dispatchers(database_url=relay.url, lease_ttl=30)
    lease_id = a.lease_id
    run = tasks.gated.delay("work", "kept")
    kit.gate.wait_until_reached("work")
    relay.swallow()
    relay.forward()
    back_at = now_of(kit.sql)
    kit.gate.open("work")
    (run,) = wait_until_final(run)
    assert (run.status, run.result, kit.ledger.starts(run)) == ("SUCCESSFUL", "kept", 1)
    assert run.finished_at is not None
    assert run.finished_at - back_at < RECOVERY
    (run,) = wait_until_final(tasks.note.delay())
    assert run.status == "SUCCESSFUL"
    a.wait_for_log("no answer in time; the connection is given up")
    a.wait_for_log(IS_OVER)
    assert a.lease_id == lease_id


@pytest.mark.slow
def test_a_long_outage_costs_neither_cpu_nor_logs_and_ends_within_seconds(kit: Kit, server: TemporaryServer) -> None:
    a = kit.dispatchers(database_url=server.url, processes=2, async_concurrency=1, lease_ttl=3)
    run = tasks.gated.delay("work-{attempt}", "by attempt {attempt}")
    kit.gate.wait_until_reached("work-1")
    with admin(server, "postgres") as sql:
        sql.execute("ALTER DATABASE shop ALLOW_CONNECTIONS false")
        renewed_at = Lease.objects.get().renewed_at
        connection.close()
        sql.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = 'shop'")
        lines = a.log.count("\n")
        a.wait_for_log("is lost: its deadline passed without a renewal")
        began, cpu = time.monotonic(), cpu_seconds(a)
        wait_for(lambda: time.monotonic() - began > DOWN_SECONDS, DOWN_SECONDS * 2)
        seconds = time.monotonic() - began
        assert cpu_seconds(a) - cpu < 0.05 * seconds
        assert a.log.count("\n") - lines < seconds / 2
        assert (a.log.count(BEGINS), a.log.count(IS_OVER)) == (1, 0)
        back_at = now_of(kit.sql)
        sql.execute("ALTER DATABASE shop ALLOW_CONNECTIONS true")
    kit.gate.wait_until_reached("work-2")
    kit.gate.open("work-2")
    (run,) = wait_until_final(run)
    assert (run.status, run.result, run.interruptions) == ("SUCCESSFUL", "by attempt 2", 1)
    first, second = kit.ledger.rows(run)
    assert second.started_at - back_at < RECOVERY
    # Not touched until its lease was unsafe, 0.6 of 3 seconds before it expired; there may have been one more renewal.
    assert timedelta(seconds=2) < first.last_seen_at - renewed_at < timedelta(seconds=4)
    a.wait_for_log(IS_OVER)


def cpu_seconds(dispatcher: Dispatcher) -> float:
    """Return what the whole family has used; what has ended since counts no more."""
    total = 0.0
    for process in dispatcher.processes():
        try:
            total += sum(process.cpu_times()[:2])
        except psutil.NoSuchProcess:
            continue
    return total


@pytest.mark.slow
def test_a_server_that_is_read_only_is_left_for_a_writable_one(kit: Kit, server: TemporaryServer) -> None:
    """A session that was opened read-only stays so: only new connections find the server that takes writes."""
    a = kit.dispatchers(database_url=server.url, lease_ttl=30)
    run = tasks.gated.delay("work", "kept")
    kit.gate.wait_until_reached("work")
    with admin(server) as sql:
        cut = Cut(sql)
        sql.execute("ALTER DATABASE shop SET default_transaction_read_only = on")
        for role in ("claims", "keeper", "store", "listener"):
            cut(role)
        a.wait_for_log("in a read-only transaction")
        kit.gate.open("work")
        wait_for(lambda: kit.ledger.rows(run)[0].ended_at, what="a body that ends")
        assert fresh(run).status == "RUNNING"
        sql.execute("SET default_transaction_read_only = off")
        back_at = now_of(kit.sql)
        sql.execute("ALTER DATABASE shop RESET default_transaction_read_only")
    (run,) = wait_until_final(run)
    assert (run.status, run.result, kit.ledger.starts(run)) == ("SUCCESSFUL", "kept", 1)
    assert run.finished_at is not None
    assert run.finished_at - back_at < RECOVERY
    a.wait_for_log(IS_OVER)
    (run,) = reconnected(lambda: wait_until_final(tasks.note.delay()))
    assert run.status == "SUCCESSFUL"


@pytest.mark.slow
def test_a_failover_is_followed_to_the_host_that_takes_writes(kit: Kit, pg_bin: Any, django_db_blocker: Any) -> None:
    """With several hosts and target_session_attrs, as for any other program; the standby is up all the time."""
    with (
        migrated_server(pg_bin, django_db_blocker) as primary,
        Standby(primary, bin_dir=pg_bin) as standby,
        runs_on(primary.url),
    ):
        ports = f"{standby.port},{primary.port}"
        database = {"HOST": "127.0.0.1,127.0.0.1", "PORT": ports, "OPTIONS": {"target_session_attrs": "read-write"}}
        a = kit.dispatchers(database_url=primary.url, database=database, lease_ttl=30)
        run = tasks.gated.delay("work", "kept")
        kit.gate.wait_until_reached("work")
        with admin(primary) as sql:
            replayed = "SELECT replay_lsn >= pg_current_wal_flush_lsn() FROM pg_stat_replication"
            wait_for(lambda: sql.execute(replayed).fetchone() == (True,), what="a standby that has it all")
        primary.kill()
        a.wait_for_log(BEGINS)
        kit.gate.open("work")
        wait_for(lambda: kit.ledger.rows(run)[0].ended_at, what="a body that ends")
        back_at = now_of(kit.sql)
        standby.promote()
        with runs_on(standby.url):
            (run,) = wait_until_final(run)
            assert (run.status, run.result, kit.ledger.starts(run)) == ("SUCCESSFUL", "kept", 1)
            assert run.finished_at is not None
            assert run.finished_at - back_at < RECOVERY
            (run,) = wait_until_final(tasks.note.delay())
            assert run.status == "SUCCESSFUL"
            kit.dispatchers.close()


@pytest.mark.slow
def test_sigterm_ends_a_dispatcher_in_time_whatever_the_database_does(kit: Kit, server: TemporaryServer) -> None:
    """Down, silent, or read-only. Its exit code says that something was left."""
    relays = {way: Relay(server.url) for way in ("refuse", "swallow")}
    options = {"lease_ttl": 120, "shutdown_timeout": 1, "settings": {"CANCEL_GRACE": 0.5}}
    family = {}
    for way in ("refuse", "swallow", "read-only"):
        url = relays[way].url if way in relays else server.url
        family[way] = kit.dispatchers(way, database_url=url, queues=way, **options)
        tasks.gated.apply_async(("work",), queue=way)
    kit.gate.wait_until_reached("work", times=3)
    for way, relay in relays.items():
        getattr(relay, way)()
    with admin(server) as sql:
        sql.execute("ALTER DATABASE shop SET default_transaction_read_only = on")
        for role in ("claims", "keeper", "store", "listener"):
            Cut(sql)(role)
        try:
            for way in ("refuse", "read-only"):
                family[way].wait_for_log(BEGINS)
            began = time.monotonic()
            for dispatcher in family.values():
                dispatcher.terminate()
            assert {dispatcher.exit_code() for dispatcher in family.values()} == {1}
            # The patience, the grace, and twenty seconds: a call under way, ten for last writes, a few to leave.
            assert time.monotonic() - began < 1 + 0.5 + 20 + 5
            assert all(not dispatcher.processes() for dispatcher in family.values())
        finally:
            sql.execute("SET default_transaction_read_only = off")
            sql.execute("ALTER DATABASE shop RESET default_transaction_read_only")
            for relay in relays.values():
                relay.close()


@pytest.mark.slow
def test_the_exit_code_tells_of_runs_that_a_lost_lease_has_left(kit: Kit, relay: Relay) -> None:
    """They are left until the database is back; given back by the same dispatcher, they are left no more."""
    port = free_port()
    a = kit.dispatchers("a", queues="a", database_url=relay.url, lease_ttl=2, metrics_port=port)
    b = kit.dispatchers("b", queues="b", database_url=relay.url, lease_ttl=2)
    for node in ("a", "b"):
        tasks.gated.apply_async(("work",), queue=node)
    kit.gate.wait_until_reached("work", times=2)
    relay.refuse()
    for dispatcher in (a, b):
        dispatcher.wait_for_log("is lost: its deadline passed without a renewal")
    wait_for(lambda: scrape(port).value("django_dispatch_executors") == 0, what="every body known to be dead")
    assert scrape(port).value("django_dispatch_leases_lost_total") == 1  # and by a turn later, what follows from it
    a.terminate()
    assert a.exit_code() == 1
    assert "some runs are left to be reclaimed" in a.log
    relay.forward()
    wait_for(lambda: b.lease_id and len(kit.ledger.rows()) == 3, what="the run of b started again")
    kit.gate.open("work")
    b.terminate()
    assert b.exit_code() == 0
