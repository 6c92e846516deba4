"""A healthy lease stays healthy: at the shortest TTL, beside bodies that block, under a flood of wakeups.

One dispatcher lives through it all at once, for ten times its lease; each test looks at one side of what was seen.
"""

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest
from pytest_django.plugin import DjangoDbBlocker

from django_dispatch.models import Lease, Run
from tests.kit import tasks
from tests.kit.dispatchers import Dispatcher
from tests.kit.fixtures import Kit, open_kit
from tests.kit.runs import wait_until_final
from tests.kit.waiting import wait_for

TTL_SECONDS = 1.0  # the shortest that the settings allow
POLL_SECONDS = 0.5
WAKEUPS_PER_SECOND = 200
FLOOD_SECONDS = 5 * TTL_SECONDS
SAMPLE_SECONDS = 0.1

LEFT = """
    SELECT extract(epoch FROM expires_at - clock_timestamp())::float8, expires_at
    FROM django_dispatch_lease WHERE id = %s
"""
WAKE = "SELECT pg_notify('django_dispatch', 'ready:default')"

pytestmark = pytest.mark.slow


@dataclass
class Seen:
    """What was seen of a dispatcher with a long run, for ten times its lease."""

    kit: Kit
    a: Dispatcher
    long: Run
    blocking: Run
    due: list[Run]
    lease: Lease
    left: list[float] = field(default_factory=list)
    expiries: list[float] = field(default_factory=list)
    wakeups_per_second: float = 0.0


@pytest.fixture(scope="module")
def seen(
    tmp_path_factory: pytest.TempPathFactory, database_url: str, django_db_blocker: DjangoDbBlocker
) -> Iterator[Seen]:
    folder: Path = tmp_path_factory.mktemp("renewals")
    with open_kit(folder, database_url, django_db_blocker) as kit:
        options = {"lease_ttl": TTL_SECONDS, "poll_interval": POLL_SECONDS}
        a = kit.dispatchers("a", queues="default", processes=2, async_concurrency=2, **options)
        kit.dispatchers("b", queues="other", **options)  # idle, it sweeps twice in a lease's time
        long = tasks.gated.delay("long")
        kit.gate.wait_until_reached("long")
        blocking = tasks.block.delay(3 * TTL_SECONDS)
        wait_for(lambda: kit.ledger.starts(blocking), what="the body that blocks")
        due = [tasks.note.apply_async(countdown=0.5 + number / 2) for number in range(8)]
        found = Seen(kit, a, long, blocking, due, Lease.objects.get(node="a"))
        _flood(found)
        _sample(found, until=time.monotonic() + 5 * TTL_SECONDS)
        kit.gate.open("long")
        wait_until_final(long, blocking, *due)
        yield found


def _flood(seen: Seen) -> None:
    """Send wakeups for which there is no run, and look at the lease in between."""
    began = time.monotonic()
    sent = 0
    while (now := time.monotonic()) < began + FLOOD_SECONDS:
        seen.kit.sql.execute(WAKE)
        sent += 1
        if sent % int(WAKEUPS_PER_SECOND * SAMPLE_SECONDS) == 0:
            _look_at_lease(seen)
        time.sleep(max(0.0, began + sent / WAKEUPS_PER_SECOND - now))
    seen.wakeups_per_second = sent / (time.monotonic() - began)


def _sample(seen: Seen, *, until: float) -> None:
    while time.monotonic() < until:
        _look_at_lease(seen)
        time.sleep(SAMPLE_SECONDS)


def _look_at_lease(seen: Seen) -> None:
    row = seen.kit.sql.execute(LEFT, [seen.lease.pk]).fetchone()
    assert row, "the lease is there"
    seen.left.append(row[0])
    seen.expiries.append(row[1].timestamp())


def test_a_healthy_lease_is_never_half_gone(seen: Seen) -> None:
    assert len(seen.left) > 50
    assert min(seen.left) > TTL_SECONDS / 2


def test_a_body_that_blocks_the_event_loop_is_named_and_holds_up_no_renewal(seen: Seen) -> None:
    (row,) = seen.kit.ledger.rows(seen.blocking)
    assert row.ended_at
    began, ended = row.started_at.timestamp(), row.ended_at.timestamp()
    assert ended - began >= 3 * TTL_SECONDS
    during = {expiry for expiry in seen.expiries if began + TTL_SECONDS < expiry < ended + TTL_SECONDS}
    assert len(during) >= 5
    assert re.search(
        r"event loop of executor \d+ has been blocked for \S+ s, by one of: tests.kit.tasks.block", seen.a.log
    )


def test_nobody_is_reclaimed_for_its_age(seen: Seen) -> None:
    """Another dispatcher sweeps all the while, and finds what it should: a run whose lease never was."""
    orphan = Run.objects.create(task="tests.kit.tasks.note", status="RUNNING", lease_id=uuid4(), epoch=1, attempt=1)
    wait_until_final(orphan)
    for run in wait_until_final(seen.long, seen.blocking):
        assert (run.status, run.attempt, run.interruptions) == ("SUCCESSFUL", 1, 0)
        assert seen.kit.ledger.starts(run) == 1
    assert seen.a.lease_id == seen.lease.pk


def test_due_runs_start_on_time_in_a_flood(seen: Seen) -> None:
    """Housekeeping runs off its own timers."""
    assert seen.wakeups_per_second > WAKEUPS_PER_SECOND / 2, "the flood was one"
    for number, run in enumerate(seen.due):
        (row,) = seen.kit.ledger.rows(run)
        assert 0 <= (row.started_at - run.enqueued_at).total_seconds() - (0.5 + number / 2) < 1.2 * POLL_SECONDS + 1
