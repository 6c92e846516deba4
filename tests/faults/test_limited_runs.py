"""Limits and order under real dispatchers: places come free whatever becomes of who held them."""

import itertools
import logging
import os
import random
import signal
import time
from collections import defaultdict
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest

from django_dispatch import cancel
from django_dispatch.models import Run, Schedule
from tests.kit import limited
from tests.kit.dispatchers import Dispatcher
from tests.kit.fixtures import Kit
from tests.kit.ledger import Row, most_at_once
from tests.kit.runs import statuses, wait_for_status, wait_until_final
from tests.kit.waiting import POLL_SECONDS, wait_for

FAULT_SECONDS = float(os.environ.get("FAULT_SECONDS", "10"))
LEAST_KILLS = 6
FLEET = SPARES = 4
MOST_UNFINISHED = 20
PATIENCE_SECONDS = 120
SLACK_SECONDS = 1.0

logger = logging.getLogger(__name__)


def by_key(rows: list[Row]) -> dict[str, list[Row]]:
    found: defaultdict[str, list[Row]] = defaultdict(list)
    for row in rows:
        found[row.note].append(row)
    return found


@pytest.mark.parametrize("enqueue", ["in code", "in SQL"])
def test_the_next_one_starts_when_a_place_is_free(kit: Kit, enqueue: str) -> None:
    kit.dispatchers("a", processes=3)
    columns = "task, args, concurrency_key"
    values = "'tests.kit.limited.one', '[\"k\", \"{attempt}-first\"]', 'key:k'"
    if enqueue == "in code":
        runs = [limited.one.delay("k", "{attempt}-first"), limited.one.delay("k"), limited.one.delay("other")]
    else:
        ids = [kit.sql.execute(f"INSERT INTO django_dispatch_run ({columns}) VALUES ({values}) RETURNING id".encode())]
        runs = [Run.objects.get(pk=row.fetchone()[0]) for row in ids]
        runs += [limited.one.delay("k"), limited.one.delay("other")]
    kit.gate.wait_until_reached("1-first")
    wait_until_final(runs[2])
    assert statuses(runs) == ["RUNNING", "BLOCKED", "SUCCESSFUL"]
    kit.gate.open("1-first")
    wait_until_final(*runs)
    assert most_at_once(by_key(kit.ledger.rows())["k"]) == 1


def test_as_many_start_as_there_are_places(kit: Kit) -> None:
    kit.dispatchers("a", processes=2)
    kit.dispatchers("b", processes=2)
    runs = [limited.three.delay("k", "g", number) for number in range(4)]
    kit.gate.wait_until_reached("g", times=3)
    assert sorted(statuses(runs)) == ["BLOCKED", *["RUNNING"] * 3]
    kit.gate.open("g")
    wait_until_final(*runs)
    assert most_at_once(kit.ledger.rows()) == 3


class TestWhateverBecomesOfTheHolder:
    """No wakeup is needed, and no word of the holder's end."""

    @pytest.fixture
    def runs(self, kit: Kit) -> list[Run]:
        return [limited.one.delay("k", "held"), limited.one.delay("k")]

    @pytest.fixture
    def holder(self, kit: Kit, runs: list[Run]) -> Dispatcher:
        holder = kit.dispatchers("holder")
        kit.gate.wait_until_reached("held")
        return holder

    def test_it_is_killed_and_its_run_is_cancelled(self, kit: Kit, runs: list[Run], holder: Dispatcher) -> None:
        cancel(runs[0])
        holder.kill9()
        kit.dispatchers("b")
        wait_until_final(*runs)
        assert statuses(runs) == ["CANCELLED", "SUCCESSFUL"]
        assert most_at_once(kit.ledger.rows()) == 1

    def test_it_is_killed_and_its_run_keeps_the_place(self, kit: Kit, runs: list[Run], holder: Dispatcher) -> None:
        holder.kill9()
        kit.gate.open("held")
        kit.dispatchers("b")
        wait_until_final(*runs)
        first, again, second = kit.ledger.rows()
        assert [row.run_id for row in (first, again, second)] == [runs[0].pk, runs[0].pk, runs[1].pk]
        assert most_at_once(kit.ledger.rows()) == 1

    def test_somebody_ends_it_by_sql(self, kit: Kit, runs: list[Run], holder: Dispatcher) -> None:
        kit.sql.execute(
            "UPDATE django_dispatch_run SET status = 'FAILED', lease_id = NULL, finished_at = now() WHERE id = %s",
            [runs[0].pk],
        )
        wait_for_status(runs[1], "RUNNING", "READY")
        kit.gate.open("held")
        wait_until_final(runs[1])


def test_without_wakeups_limits_are_kept_and_nothing_is_stuck(kit: Kit) -> None:
    runs = [limited.three.delay(f"k{number % 2}", "", number) for number in range(20)]
    kit.dispatchers("a", processes=4, settings={"WAKEUPS": []})
    wait_until_final(*runs)
    assert all(most_at_once(rows) <= 3 for rows in by_key(kit.ledger.rows()).values())


def test_a_queues_limit_holds_over_all_tasks_and_keys(kit: Kit, settings: Any) -> None:
    settings.DISPATCH = {"QUEUE_LIMITS": {"mail": 2}}
    gates = {"gate": "g"}
    runs = [limited.one.apply_async((f"k{number}",), gates, queue="mail") for number in range(3)]
    runs += [limited.discard.apply_async((number,), gates, queue="mail") for number in range(3)]
    kit.dispatchers("a", processes=6, settings=settings.DISPATCH)
    kit.gate.wait_until_reached("g", times=2)
    kit.gate.open("g")
    wait_until_final(*runs)
    assert most_at_once(kit.ledger.rows()) == 2


def test_a_burst_lets_pass_what_can_and_then_ends(kit: Kit) -> None:
    runs = [limited.serial.delay("k", "", number) for number in range(10)]
    rated = limited.whole.delay_many([(number,) for number in range(7)])
    burst = kit.dispatchers("a", burst=True, is_awaited=False)
    assert burst.exit_code() == 0
    assert statuses(runs) == ["SUCCESSFUL"] * 10
    assert statuses(rated) == ["SUCCESSFUL"] * 5 + ["BLOCKED"] * 2


def test_serial_runs_keep_their_order_over_retries(kit: Kit) -> None:
    kit.dispatchers("a", processes=2)
    runs = [limited.serial.delay("k", "", number, 1 if number == 1 else 0) for number in range(5)]
    wait_until_final(*runs)
    assert [row.run_id for row in kit.ledger.rows()] == [
        run.pk for run in (runs[0], runs[1], runs[1], runs[2], runs[3], runs[4])
    ]


def test_a_rate_is_kept_and_used(kit: Kit) -> None:
    kit.dispatchers("a", processes=2)
    runs = limited.rated.delay_many([("k", number) for number in range(50)])
    wait_until_final(*runs)
    starts = [row.started_at for row in kit.ledger.rows()]
    # A full bucket, and what came since; a start may be late by what the machine makes of it.
    for (i, first), (j, last) in itertools.combinations(enumerate(starts), 2):
        assert j - i + 1 <= 20 + 20 * ((last - first).total_seconds() + 1.0)
    assert starts[-1] - starts[0] >= timedelta(seconds=1)


class Traffic:
    """Runs of every kind of limit, enqueued as fast as they go by, beside a schedule of each second."""

    def __init__(self) -> None:
        self.schedule = Schedule.objects.create(
            name="each second", task=limited.each.path, args=["cron"], cron="* * * * * *", catch_up="all"
        )
        self.runs: list[Run] = []
        self._numbers = itertools.count()

    def enqueue(self) -> None:
        number = next(self._numbers)
        self.runs += [
            limited.one.delay(f"one{number % 2}", "", number),
            limited.three.delay("three", "", number),
            limited.serial.delay(f"serial{number % 2}", "", number, number % 7 == 0),
            limited.queue_one.delay("queue one", "", number),
            *limited.rated.delay_many([("rated", number), ("rated", -number)]),
        ]

    def stop(self) -> list[datetime]:
        """Have no more, wait until all have ended, and return the occurrences."""
        Schedule.objects.update(enabled=False)
        scheduled = Run.objects.filter(schedule=self.schedule).order_by("scheduled_for")
        wait_until_final(*{run.pk: run for run in (*self.runs, *scheduled)}.values(), seconds=90)
        return [run.scheduled_for for run in scheduled if run.scheduled_for]


class Fleet:
    """Dispatchers of which one after the other is killed, and those that start meanwhile."""

    def __init__(self, kit: Kit) -> None:
        self._kit = kit
        self._chance = random.Random(7)
        self._names = itertools.count(1)
        self._ready: set[str] = set()
        self.members: list[Dispatcher] = []
        self.kills = 0
        for _ in range(FLEET + SPARES):
            self._start()

    def is_there(self) -> bool:
        """Whether so many are ready as there are to be."""
        return len(self._those_ready()) >= FLEET

    def kill_one(self) -> None:
        """Kill one of those that are ready, and start another."""
        victim = self._chance.choice(self._those_ready())
        victim.signal(signal.SIGKILL)
        self.members.remove(victim)
        self.kills += 1
        self._start()

    def _start(self) -> None:
        self.members.append(self._kit.dispatchers(f"n{next(self._names)}", processes=3, is_awaited=False))

    def _those_ready(self) -> list[Dispatcher]:
        # A log grows, and is read no more than it takes.
        self._ready |= {one.node for one in self.members if one.node not in self._ready and "Ready:" in one.log}
        return [one for one in self.members if one.node in self._ready]


def check_ledger(rows: dict[str, list[Row]]) -> None:
    """Nothing went beyond a limit, and order was kept where it counts."""
    limits = {"one0": 1, "one1": 1, "serial0": 1, "serial1": 1, "queue one": 1, "cron": 1, "three": 3}
    for key, limit in limits.items():
        assert most_at_once(rows[key]) <= limit, key
    for key in ("serial0", "serial1", "queue one"):
        started = [row.run_id for row in rows[key]]
        assert started == sorted(started), key


@pytest.mark.slow
def test_dispatchers_are_killed_one_after_the_other_and_every_limit_holds(kit: Kit) -> None:
    """Four dispatchers at least; each second one is killed while runs run. Others start ahead, so as to be there then.

    FAULT_SECONDS says for how long.
    """
    fleet = Fleet(kit)
    wait_for(fleet.is_there, 60, what="the first dispatchers")
    unfinished = Run.objects.filter(finished_at=None).exclude(task=limited.rated.path)
    traffic = Traffic()
    begin = kill_at = time.monotonic()
    while fleet.kills < LEAST_KILLS or time.monotonic() < begin + FAULT_SECONDS:
        assert time.monotonic() < begin + FAULT_SECONDS + PATIENCE_SECONDS, f"{fleet.kills} kills, and no more"
        if unfinished.count() <= MOST_UNFINISHED:
            traffic.enqueue()
        if time.monotonic() >= kill_at and fleet.is_there() and unfinished.filter(status="RUNNING").exists():
            fleet.kill_one()
            kill_at += 1
        time.sleep(POLL_SECONDS)
    slots = traffic.stop()
    check_ledger(by_key(kit.ledger.rows()))
    check_rate(kit)
    assert {later - earlier for earlier, later in pairwise(slots)} == {timedelta(seconds=1)}
    assert any(run.is_duplicate for run in traffic.runs)
    seconds = time.monotonic() - begin
    logger.info("%s kills, %s runs, %s occurrences, %.0f s", fleet.kills, len(traffic.runs), len(slots), seconds)
    for dispatcher in fleet.members:
        dispatcher.wait_until_ready()


def check_rate(kit: Kit) -> None:
    """Of each run the first admission counts: a bucket of 20, and 20 more a second."""
    admitted = kit.sql.execute(
        "SELECT min(started_at) FROM kit_ledger WHERE note = 'rated' GROUP BY run_id ORDER BY 1"
    ).fetchall()
    starts = [row[0].timestamp() for row in admitted]
    assert len(starts) > 20
    # A run that was admitted before may start at any time after, so starts lag behind a straight line, never lead it.
    for number, start in enumerate(starts):
        assert number + 1 <= 20 + 20 * (start - starts[0] + SLACK_SECONDS), number
