"""Sockets that are open and dead: nothing errors, nothing works. Each is found out in bounded time."""

import time

import pytest

from django_dispatch.models import Lease
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.relay import Relay
from tests.kit.runs import wait_until_final
from tests.kit.waiting import wait_for

PATIENCE_SECONDS = 2.0  # for a busy machine, beyond what is promised


def test_a_deaf_listening_connection_is_found_within_three_poll_intervals(kit: Kit, relay: Relay) -> None:
    a = kit.dispatchers(settings={"LISTEN_DSN": relay.url}, poll_interval=1.2, lease_ttl=6)
    (session,) = wait_for(lambda: kit.cut.sessions("listener"), what="the listening session")
    began = time.monotonic()
    relay.swallow()
    relay.forward()  # for new connections
    wait_for(lambda: set(kit.cut.sessions("listener")) - {session}, what="another listening session")
    assert time.monotonic() - began < 3 * 1.2 + PATIENCE_SECONDS
    assert "LISTEN brings nothing" in a.log


@pytest.mark.slow
def test_dead_connections_are_replaced_and_no_lease_is_lost(kit: Kit, relay: Relay) -> None:
    """One lost renewal alone is no lost lease: it is broken off while there is time for another one.

    Whatever else waits for an answer is broken off after two thirds of the lease.
    """
    a = kit.dispatchers(database_url=relay.url, processes=2, lease_ttl=9)
    runs = [tasks.gated.delay("work") for _ in range(2)]
    kit.gate.wait_until_reached("work", times=2)
    (session,) = wait_for(lambda: kit.cut.sessions("listener"), what="the listening session")
    lease = Lease.objects.get()

    def has_renewed() -> bool:
        return Lease.objects.get().renewed_at > lease.renewed_at

    relay.swallow()
    relay.forward()  # for new connections
    wait_for(has_renewed, what="a renewal after the one that was lost")
    # Every 3 s, with 4.2 s left then: half of that for the one that is lost, and never all the 3 s of an interval.
    assert (Lease.objects.get().renewed_at - lease.renewed_at).total_seconds() < 3 + 2.1 + 0.7
    kit.gate.open("work")
    for run in wait_until_final(*runs, tasks.note.delay()):
        assert (run.status, run.attempt, run.interruptions, kit.ledger.starts(run)) == ("SUCCESSFUL", 1, 0, 1)
    assert a.lease_id == lease.pk
    assert "is lost" not in a.log
    wait_for(lambda: set(kit.cut.sessions("listener")) - {session}, what="another listening session")


@pytest.mark.slow
def test_sigterm_ends_a_dispatcher_whose_bytes_are_swallowed(kit: Kit, relay: Relay) -> None:
    """Nothing that waits for the database holds up the end for longer than a lease, whatever was under way."""
    a = kit.dispatchers(database_url=relay.url, lease_ttl=3, shutdown_timeout=1, settings={"CANCEL_GRACE": 0.5})
    run = tasks.gated.delay("work-{attempt}")
    kit.gate.wait_until_reached("work-1")
    relay.swallow()
    began = time.monotonic()
    a.terminate()
    assert a.exit_code() == 1, "the run is left to be reclaimed"
    assert time.monotonic() - began < 1 + 0.5 + 15
    assert a.processes() == []
    kit.dispatchers("b")
    kit.gate.open("work-2")
    (run,) = wait_until_final(run)
    assert (run.status, run.attempt, kit.ledger.overlaps(run)) == ("SUCCESSFUL", 2, [])
