"""The database is out of reach for one dispatcher alone: its bodies are dead before anybody else may start the runs."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import psycopg
import pytest
from django.core.management import call_command
from django.db import connection
from pytest_django.plugin import DjangoDbBlocker

from django_dispatch.models import Lease, Run
from testproject import postgres
from tests.kit import tasks
from tests.kit.dispatchers import Dispatcher
from tests.kit.fixtures import Kit, open_kit
from tests.kit.network import Network
from tests.kit.relay import Relay
from tests.kit.runs import wait_until_final
from tests.kit.waiting import wait_for

LEFT_OF_LEASE = (
    "SELECT extract(epoch FROM expires_at - clock_timestamp())::float8 FROM django_dispatch_lease WHERE id = %s"
)


def left_seconds(kit: Kit, lease: Lease) -> float:
    """Return what is left of a lease, by the database."""
    (seconds,) = kit.sql.execute(LEFT_OF_LEASE, [lease.pk]).fetchone() or (0.0,)
    return float(seconds)


def wait_for_a_late_renewal(kit: Kit, lease: Lease, ttl_seconds: float) -> None:
    """Wait until a renewal is under way, and has not come through."""
    wait_for(lambda: left_seconds(kit, lease) < 0.6 * ttl_seconds, what="a renewal that is late")


def assert_bodies_end_before_expiry(kit: Kit, a: Dispatcher, lease: Lease, runs: list[Run]) -> None:
    """Wait until a dispatcher that was cut off has no executor; none of its bodies outlived the lease."""
    executors = [psutil.Process(pid) for pid in a.executor_pids]
    expires_at = lease.expires_at

    def are_dead() -> bool:
        nonlocal expires_at  # renewals may have arrived whose answers did not; later the row goes
        left = Lease.objects.filter(pk=lease.pk).values_list("expires_at", flat=True).first()
        expires_at = left or expires_at
        return not any(process.is_running() for process in executors)

    wait_for(are_dead, what="every executor dead")
    for run in runs:
        assert kit.ledger.rows(run)[0].last_seen_at < expires_at


def assert_repeated_and_gone_on(kit: Kit, a: Dispatcher, lease: Lease, runs: list[Run]) -> None:
    """After the healing: each run counts by its second attempt, and the first dispatcher works under a new lease."""
    wait_for(lambda: a.lease_id not in (None, lease.pk), what="a new lease")
    (again,) = wait_until_final(tasks.note.apply_async(queue="a"))
    assert again.status == "SUCCESSFUL"
    kit.gate.open("work-2")
    for run in wait_until_final(*runs):
        assert (run.status, run.attempt, run.interruptions, run.failures) == ("SUCCESSFUL", 2, 1, 0)
        assert kit.ledger.overlaps(run) == []
        assert kit.ledger.starts(run) == 2
        assert f"Run {run.pk} {run.task} SUCCESSFUL" not in a.log


@pytest.mark.slow
@pytest.mark.parametrize("swallowed", [(), ("requests",), ("answers",)], ids=["both ways", "requests", "answers"])
def test_a_dispatcher_whose_bytes_are_swallowed_fences_itself(
    kit: Kit, relay: Relay, swallowed: tuple[str, ...]
) -> None:
    """Self-fencing: with the database out of reach for one of two, the ledger shows no overlap, and no outcome late."""
    options = {"lease_ttl": 2, "async_concurrency": 2, "processes": 2}
    a = kit.dispatchers("a", queues="default,a", database_url=relay.url, **options)
    runs = [task.delay("work-{attempt}") for task in (tasks.gated, tasks.agated)]
    late = tasks.gated.delay("early-{attempt}", "by attempt {attempt}")
    kit.gate.open("early-2")
    kit.gate.wait_until_reached("work-1", times=2)
    kit.gate.wait_until_reached("early-1")
    kit.dispatchers("b", queues="default", **options)
    lease = Lease.objects.get(node="a")

    relay.swallow(*swallowed)
    kit.gate.open("early-1")  # its outcome cannot be written any more
    assert_bodies_end_before_expiry(kit, a, lease, [*runs, late])
    kit.gate.wait_until_reached("work-2", times=2)
    (late,) = wait_until_final(late)
    relay.cut()
    relay.forward()
    a.wait_for_log(f"Lease {lease.pk} is lost")
    assert_repeated_and_gone_on(kit, a, lease, [*runs, late])
    assert late.result == "by attempt 2"


def test_a_partition_that_heals_in_time_interrupts_nothing(kit: Kit, relay: Relay) -> None:
    """Bodies go on while the lease is safe; an outcome waits for the network, and is written once."""
    a = kit.dispatchers(database_url=relay.url, lease_ttl=6, processes=2)
    runs = [tasks.gated.delay(gate) for gate in ("meanwhile", "after")]
    kit.gate.wait_until_reached("meanwhile", "after")
    lease = Lease.objects.get()
    relay.hold()
    kit.gate.open("meanwhile")
    wait_for(lambda: kit.ledger.rows(runs[0])[0].ended_at, what="a body that ended meanwhile")
    wait_for_a_late_renewal(kit, lease, 6)
    relay.forward()
    wait_for(lambda: left_seconds(kit, lease) > 4, what="a renewal")
    kit.gate.open("after")
    for run in wait_until_final(*runs):
        assert (run.status, run.attempt, run.interruptions) == ("SUCCESSFUL", 1, 0)
        assert kit.ledger.starts(run) == 1
        assert a.log.count(f"Run {run.pk} {run.task} SUCCESSFUL") == 1
    assert a.lease_id == lease.pk


# two hosts


@contextmanager
def default_database(url: str) -> Iterator[None]:
    """Let Django's default connection lead elsewhere, for now."""
    connection.close()
    old = dict(connection.settings_dict)
    connection.settings_dict.update(postgres.django_database(url))
    try:
        call_command("migrate", verbosity=0)
        yield
    finally:
        connection.close()
        connection.settings_dict.clear()
        connection.settings_dict.update(old)


@contextmanager
def server_for(network: Network) -> Iterator[tuple[str, str]]:
    """A server that the hosts of a network reach; its address for the hosts, and that by the file system, never cut."""
    with postgres.TemporaryServer() as server:
        with psycopg.connect(server.url, autocommit=True) as superuser:
            superuser.execute(f"ALTER SYSTEM SET listen_addresses = '127.0.0.1,{network.address}'")
        with (server.data / "pg_hba.conf").open("a") as rules:
            rules.write(f"host all all {network.addresses} scram-sha-256\n")
        server.restart()
        with default_database(server.url):
            parts = urlsplit(server.url)
            account, _, _ = parts.netloc.rpartition("@")
            netloc = f"{account}@{network.address}:{parts.port}"
            local = parts._replace(netloc=f"{account}@", query=f"host=/tmp&port={parts.port}")
            yield parts._replace(netloc=netloc).geturl(), local.geturl()


@pytest.mark.slow
def test_a_host_that_is_cut_off_fences_itself(
    network: Network, django_db_setup: None, tmp_path: Path, django_db_blocker: DjangoDbBlocker
) -> None:
    """Two hosts, and the link of one goes down: for a moment, which interrupts nothing, and for longer than its lease.

    The server ends the sessions of the host that it does not hear any more, so no lock outlives its body.
    """
    with (
        django_db_blocker.unblock(),
        server_for(network) as (url, local_url),
        open_kit(tmp_path, local_url, django_db_blocker) as kit,
    ):
        first, second = network.host("a"), network.host("b")
        # Long enough for a renewal that the kernel sends again after the healing.
        options = {"lease_ttl": 7, "async_concurrency": 2, "processes": 2, "database_url": url}
        a = kit.dispatchers("a", queues="default,a", host=first, **options)
        runs = [task.delay("work-{attempt}") for task in (tasks.gated, tasks.agated, tasks.hold_a_lock)]
        kit.gate.wait_until_reached("work-1", times=3)
        kit.dispatchers("b", queues="default", host=second, **options)
        lease = Lease.objects.get(node="a")

        network.cut(first)
        wait_for_a_late_renewal(kit, lease, 7)
        network.heal(first)
        wait_for(lambda: left_seconds(kit, lease) > 4.6, what="a renewal")
        assert [kit.ledger.starts(run) for run in runs] == [1, 1, 1]

        network.cut(first)
        assert_bodies_end_before_expiry(kit, a, lease, runs)
        kit.gate.wait_until_reached("work-2", times=3)
        network.heal(first)
        assert_repeated_and_gone_on(kit, a, lease, runs)
