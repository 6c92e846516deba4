"""Limits and order under real dispatchers: places come free whatever becomes of who held them."""

import itertools
import logging
import os
import random
import time
from collections import defaultdict
from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from django.db import transaction

from django_dispatch import cancel, control
from django_dispatch.models import Run, Schedule
from tests.kit import limited
from tests.kit.dispatchers import Dispatcher
from tests.kit.fixtures import Kit
from tests.kit.ledger import Row, most_at_once
from tests.kit.runs import statuses, wait_for_status, wait_until_final
from tests.kit.waiting import POLL_SECONDS

FAULT_SECONDS = int(os.environ.get("FAULT_SECONDS", "6"))
FLEET = 4
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
            *self._twice(lambda: limited.queue_one.delay("queue one", "", number)),
            *limited.rated.delay_many([("rated", number), ("rated", -number)]),
        ]

    def _twice(self, enqueue: Callable[[], Run]) -> list[Run]:
        """In one transaction: nothing is claimed in between, so the second one finds a duplicate that waits."""
        with transaction.atomic():
            return [enqueue(), enqueue()]

    def stop(self) -> list[datetime]:
        """Have no more, wait until all have ended, and return the occurrences."""
        Schedule.objects.update(enabled=False)
        scheduled = Run.objects.filter(schedule=self.schedule).order_by("scheduled_for")
        wait_until_final(*{run.pk: run for run in (*self.runs, *scheduled)}.values(), seconds=90)
        return [run.scheduled_for for run in scheduled if run.scheduled_for]


class Fleet:
    """Four dispatchers that take runs, and others that wait, paused, for one of them to be killed."""

    def __init__(self, kit: Kit, spares: int) -> None:
        self._chance = random.Random(7)
        self._kit = kit
        self._names = itertools.count(1)
        self.members = self._start(FLEET)
        self.spares: list[Dispatcher] = []
        while len(self.spares) < spares:
            self.spares += self._start(min(FLEET, spares - len(self.spares)))
        for spare in self.spares:
            assert len(control.ask("pause", node=spare.node, timeout=PATIENCE_SECONDS)) == 1

    def _start(self, number: int) -> list[Dispatcher]:
        """Start some at a time: the machine has something to do with each."""
        found = [
            self._kit.dispatchers(f"n{next(self._names)}", processes=3, poll_interval=2, is_awaited=False)
            for _ in range(number)
        ]
        for dispatcher in found:
            dispatcher.wait_until_ready(3, seconds=PATIENCE_SECONDS)
        return found

    def kill_one(self) -> None:
        """Kill one, and have a spare one take its place."""
        victim = self._chance.choice(self.members)
        victim.kill9()
        self.members.remove(victim)
        spare = self.spares.pop()
        control.send("resume", node=spare.node)
        self.members.append(spare)


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
    """Of four dispatchers one is killed each second, while runs run, FAULT_SECONDS times."""
    fleet = Fleet(kit, spares=FAULT_SECONDS)
    unfinished = Run.objects.filter(finished_at=None).exclude(task=limited.rated.path)
    running = Run.objects.filter(status="RUNNING")
    traffic = Traffic()
    begin = kill_at = time.monotonic()
    while fleet.spares:
        assert time.monotonic() < begin + FAULT_SECONDS + PATIENCE_SECONDS, f"{len(fleet.spares)} are not needed"
        if unfinished.count() <= MOST_UNFINISHED:
            traffic.enqueue()
        if time.monotonic() >= kill_at and running.exists():
            fleet.kill_one()
            kill_at += 1
        time.sleep(POLL_SECONDS)
    seconds = time.monotonic() - begin
    slots = traffic.stop()
    check_ledger(by_key(kit.ledger.rows()))
    check_rate(kit)
    assert {later - earlier for earlier, later in pairwise(slots)} == {timedelta(seconds=1)}
    assert any(run.is_duplicate for run in traffic.runs)
    assert all(member.poll() is None for member in fleet.members)
    logger.info("%s kills in %.0f s, %s runs, %s slots", FAULT_SECONDS, seconds, len(traffic.runs), len(slots))


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
