"""Sockets that are open and dead: nothing errors, nothing works. Each is found out in bounded time."""

import re
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
    a.wait_for_log("The listening connection was lost (LISTEN brings nothing")
    assert time.monotonic() - began < 3 * 1.2 + PATIENCE_SECONDS
    wait_for(lambda: set(kit.cut.sessions("listener")) - {session}, what="another listening session")


@pytest.mark.slow
def test_dead_connections_are_replaced_and_no_lease_is_lost(kit: Kit, relay: Relay) -> None:
    """One lost renewal alone is no lost lease: it is broken off while there is time for another one.

    Whatever else waits for an answer is broken off after two thirds of the lease.
    """
    a = kit.dispatchers(database_url=relay.url, processes=2, lease_ttl=6)
    runs = [tasks.gated.delay("work") for _ in range(2)]
    kit.gate.wait_until_reached("work", times=2)
    lease = Lease.objects.get()

    relay.swallow()
    relay.forward()  # for new connections
    a.wait_for_log("The lease could not be renewed")
    lost_at = Lease.objects.get().renewed_at
    wait_for(lambda: Lease.objects.get().renewed_at > lost_at, what="another renewal")
    kit.gate.open("work")
    for run in wait_until_final(*runs, tasks.note.delay()):
        assert (run.status, run.attempt, run.interruptions, kit.ledger.starts(run)) == ("SUCCESSFUL", 1, 0, 1)
    assert a.lease_id == lease.pk
    assert "is lost" not in a.log
    left = re.search(r"could not be renewed \(([\d.]+) s left\)", a.log)
    assert left
    assert float(left[1]) > 1, "half of the 2.8 s that there were"
    a.wait_for_log("The listening connection was lost")


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
