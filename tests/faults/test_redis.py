"""Redis is a doorbell: whatever becomes of it and of what is in it, no run is lost, doubled or started late.

Where the poll is far away, what is found was found by a wakeup; where it is near, the wakeup was the thing broken.
"""

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
from django.db import connection, transaction
from django.test import override_settings
from django.utils import timezone

from django_dispatch import cancel, run_again, run_now
from django_dispatch.control import ask
from django_dispatch.models import Run, Schedule
from django_dispatch.wakeups import arq, jobs
from django_dispatch.wakeups import redis as ringing
from django_dispatch.wakeups.arq import create_arq_pool, enqueue_wakeup
from django_dispatch.wakeups.base import Wakeup
from django_dispatch.wakeups.breaker import Breaker
from testproject.redis_server import RedisServer
from tests.kit import tasks
from tests.kit.dispatchers import Dispatcher
from tests.kit.fixtures import Kit
from tests.kit.runs import wait_until_final
from tests.kit.waiting import wait_for

FAR_AWAY = {"lease_ttl": 60, "poll_interval": 50}
FAILS, WORKS = "Wakeups by Redis fail", "Wakeups by Redis work again"


@pytest.fixture
def rung(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    """This process rings by Redis alone."""
    monkeypatch.setattr(ringing, "breaker", Breaker(pause_seconds=0.2))
    monkeypatch.setattr(ringing, "ANSWER_SECONDS", 5.0)  # who is slow here is the machine
    monkeypatch.setattr(arq, "CONNECT_SECONDS", 5.0)
    monkeypatch.setattr(arq, "CALL_SECONDS", 5.0)
    with override_settings(CACHES=redis.caches, DISPATCH={"METRICS_PORT": 0, "WAKEUPS": ["arq"]}):
        yield redis


def listener(
    kit: Kit, redis: RedisServer, node: str = "a", *, wakeups: tuple[str, ...] = ("arq",), **options: object
) -> Dispatcher:
    """Start a dispatcher and wait until it hears."""
    before = listening(redis)
    dispatcher = kit.dispatchers(
        node, settings={"WAKEUPS": list(wakeups)}, env={"REDIS_URL": redis.url}, **(FAR_AWAY | options)
    )
    wait_for(lambda: listening(redis) > before, what="one more that hears wakeups by Redis")
    return dispatcher


def ask_one(command: str) -> dict[str, Any]:
    """Return the one dispatcher's answer to a control command."""
    (answer,) = ask(command, timeout=20).answers
    return answer


def listening(redis: RedisServer) -> int:
    """Return how many dispatchers hear, and wait for a job to pass on."""
    ((_, subscribed),) = redis.client.pubsub_numsub(jobs.CHANNEL)
    return min(subscribed, sum(client["cmd"] == "bzpopmin" for client in redis.client.client_list()))


def wait_seconds(kit: Kit, run: Run) -> float:
    """Return how long after the enqueue its one body began."""
    (row,) = kit.ledger.rows(run)
    return (row.started_at - run.enqueued_at).total_seconds()


def test_runs_start_at_their_wakeups_by_redis(kit: Kit, rung: RedisServer) -> None:
    """Known queues and new ones, one and many, now and later, from code and from bodies; a cancel is heard too."""
    listener(kit, rung)
    first, *_ = runs = [
        tasks.note.delay(),
        tasks.note.apply_async(queue="nobody knew of it"),
        *tasks.note.delay_many([()] * 5),
        tasks.note.apply_async(countdown=0.5),
    ]
    assert {run.status for run in wait_until_final(*runs, seconds=25)} == {"SUCCESSFUL"}
    assert wait_seconds(kit, first) < 5
    stopped = tasks.gated.delay("never opened")
    kit.gate.wait_until_reached("never opened")
    cancel(stopped)
    (stopped,) = wait_until_final(stopped, seconds=25)
    assert stopped.status == "CANCELLED"


def test_whoever_takes_a_wakeup_passes_it_on(kit: Kit, rung: RedisServer) -> None:
    """Of two dispatchers that wait for jobs by turns, one serves another queue: nothing is lost on it."""
    listener(kit, rung)
    listener(kit, rung, "b", queues="another")
    for _ in range(6):
        (run,) = wait_until_final(tasks.note.delay(), seconds=25)
        assert run.status == "SUCCESSFUL"


def test_async_code_rings_for_a_run_by_its_id(kit: Kit, rung: RedisServer) -> None:
    """Two wakeups for a run are one job, until a dispatcher takes it."""

    async def ring(*ids: int) -> list[tuple[str, tuple[object, ...]]]:
        pool = await create_arq_pool()
        for pk in ids:
            await enqueue_wakeup(pool, pk)
        pool.job_deserializer = __import__("json").loads
        queued = [(job.job_id, tuple(job.args)) for job in await pool.queued_jobs()]
        await pool.aclose()
        return queued

    assert asyncio.run(ring(7, 7, 8)) == [("django_dispatch:run:7", ("7",)), ("django_dispatch:run:8", ("8",))]
    ttls = [rung.client.pttl(key) for key in (jobs.QUEUE, "arq:job:django_dispatch:run:7")]
    assert 0 < ttls[0] <= 60_000
    assert ttls[1] <= 1000
    listener(kit, rung)
    wait_for(lambda: not rung.client.exists(jobs.QUEUE), what="the wakeups for runs that do not exist, taken")
    insert = "INSERT INTO django_dispatch_run (task, queue) VALUES ('tests.kit.tasks.note', 'of go') RETURNING id"
    (pk,) = kit.sql.execute(insert).fetchone() or (0,)
    asyncio.run(ring(pk))
    (run,) = wait_until_final(Run.objects.get(pk=pk), seconds=25)
    assert run.status == "SUCCESSFUL"


def by_the_other_doors() -> list[Run]:
    """Have runs begin that nobody enqueues just then: again by hand, later, after a failure, and by a schedule."""
    ended = Run.objects.create(task=tasks.note.path, status="FAILED", finished_at=timezone.now(), source="app")
    return [
        run_again(ended),
        tasks.note.apply_async(countdown=0.5),
        tasks.raises.delay("open"),
        run_now(Schedule.objects.get(name="each second")),
    ]


@pytest.mark.slow
def test_whatever_makes_a_run_due_it_starts_at_once_and_without_redis_by_the_poll(kit: Kit, rung: RedisServer) -> None:
    each_second = Schedule.objects.create(name="each second", task=tasks.note.path, cron="* * * * * *")
    occurrences = Run.objects.filter(schedule=each_second, scheduled_for__isnull=False, status="SUCCESSFUL")
    kit.gate.open("open")
    a = listener(kit, rung)
    found = wait_until_final(*by_the_other_doors(), seconds=25)
    assert [(run.status, run.attempt) for run in found] == [("SUCCESSFUL", 1)] * 2 + [("FAILED", 2), ("SUCCESSFUL", 1)]
    wait_for(lambda: occurrences.count() >= 2, 25, what="occurrences, each in its second")
    a.kill9()

    b = listener(kit, rung, "b", lease_ttl=30, poll_interval=1)
    rung.stop()
    b.wait_for_log(FAILS)
    before = occurrences.count()
    found = wait_until_final(*by_the_other_doors(), seconds=25)
    assert [(run.status, run.attempt) for run in found] == [("SUCCESSFUL", 1)] * 2 + [("FAILED", 2), ("SUCCESSFUL", 1)]
    assert max(wait_seconds(kit, run) for run in found if run.attempt == 1) < 5
    wait_for(lambda: occurrences.count() >= before + 2, 25, what="occurrences without Redis")
    each_second.delete()


def test_redis_is_stopped_restarted_and_flushed_in_mid_flow(
    kit: Kit, rung: RedisServer, caplog: pytest.LogCaptureFixture
) -> None:
    a = listener(kit, rung)
    runs = [tasks.note.delay()]
    wait_until_final(*runs, seconds=25)
    rung.stop()
    a.wait_for_log(FAILS)
    missed = tasks.note.delay()
    runs.append(missed)
    assert kit.ledger.starts(missed) == 0
    rung.start()
    (missed,) = wait_until_final(missed, seconds=25)  # whoever connects again looks at the table
    a.wait_for_log(WORKS)
    wait_for(lambda: runs.append(tasks.note.delay()) or WORKS in caplog.text, what="this side to ring again")
    for _ in range(10):
        runs.append(tasks.note.delay())
        rung.flush()
        runs.append(tasks.note.delay())
    runs.append(tasks.note.delay())  # what a flush has swallowed is found with the next wakeup
    assert {run.status for run in wait_until_final(*runs, seconds=25)} == {"SUCCESSFUL"}
    assert {kit.ledger.starts(run) for run in runs} == {1}
    assert (a.log.count(FAILS), a.log.count(WORKS)) == (1, 1)


def test_without_redis_the_poll_finds_everything_in_time(kit: Kit, rung: RedisServer) -> None:
    """The poll is as near as if no wakeups were on."""
    a = listener(kit, rung, lease_ttl=30, poll_interval=1)
    rung.stop()
    a.wait_for_log(FAILS)
    runs = wait_until_final(*(tasks.note.delay() for _ in range(5)), seconds=25)
    assert {run.status for run in runs} == {"SUCCESSFUL"}
    assert max(wait_seconds(kit, run) for run in runs) < 4
    assert a.poll() is None


@pytest.mark.slow
def test_a_frozen_redis_holds_up_no_enqueue(
    kit: Kit, rung: RedisServer, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first one waits a moment for an answer; those after it do not even try. The dispatcher notices too."""
    a = listener(kit, rung, lease_ttl=30, poll_interval=1)
    tasks.note.delay()
    rung.freeze()
    monkeypatch.setattr(ringing, "breaker", Breaker(pause_seconds=3600))
    monkeypatch.setattr(ringing, "ANSWER_SECONDS", 0.1)
    with override_settings(CACHES=rung.caches):  # another client, by these rules
        runs, seconds = enqueue_and_measure(50)
    assert seconds[0] >= ringing.ANSWER_SECONDS
    assert seconds[0] < 2
    assert sum(seconds[1:]) < 49 * ringing.ANSWER_SECONDS
    assert caplog.text.count(FAILS) == 1
    assert {run.status for run in wait_until_final(*runs, seconds=30)} == {"SUCCESSFUL"}
    a.wait_for_log(FAILS, seconds=30)
    rung.thaw()
    a.wait_for_log(WORKS, seconds=30)


def enqueue_and_measure(number: int) -> tuple[list[Run], list[float]]:
    """Enqueue runs one by one; return them, and how many seconds each call took."""
    runs, seconds = [], []
    for _ in range(number):
        began_at = time.monotonic()
        runs.append(tasks.note.delay())
        seconds.append(time.monotonic() - began_at)
    return runs, seconds


def test_nothing_starts_before_the_commit(kit: Kit, rung: RedisServer) -> None:
    listener(kit, rung)
    done = "SELECT status FROM django_dispatch_run WHERE id = %s"
    with transaction.atomic():
        run = tasks.note.delay()
        undone = tasks.note.delay()
        insert = "INSERT INTO django_dispatch_run (task) VALUES ('tests.kit.tasks.note') RETURNING id"
        (pk,) = kit.sql.execute(insert).fetchone() or (0,)
        ringing.ring(Wakeup("ready", "default"))
        wait_for(lambda: kit.sql.execute(done, [pk]).fetchone() == ("SUCCESSFUL",), what="the run of another session")
        assert kit.ledger.starts(run) == 0
        Run.objects.filter(pk=undone.pk).delete()
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        (committed_at,) = cursor.fetchone()
    (run,) = wait_until_final(run, seconds=25)
    (row,) = kit.ledger.rows(run)
    assert run.status == "SUCCESSFUL"
    assert (row.started_at - committed_at).total_seconds() < 1


def test_wrong_data_where_wakeups_lie_is_ignored(kit: Kit, rung: RedisServer) -> None:
    a = listener(kit, rung)
    rung.client.zadd(jobs.QUEUE, {"nonsense": 1, "django_dispatch:": float("-inf"), b"\xff\xfe": 2, "x" * 100_000: 3})
    rung.client.zadd(jobs.QUEUE, {"django_dispatch:ready:no such queue": 9e18, "django_dispatch:run:no number": 0})
    rung.client.publish(jobs.CHANNEL, b"\x80\x04nonsense")
    for value in ("text", "again"):
        rung.client.set(jobs.QUEUE, value)
        wait_for(lambda: rung.client.type(jobs.QUEUE) != b"string", what="what is no queue to be taken away")
    rung.client.set(f"{jobs.JOB_KEY}{jobs.job_id(Wakeup('ready', 'default'))}", b"\x80\x04K\x01.")
    (run,) = wait_until_final(tasks.note.delay(), seconds=25)
    assert run.status == "SUCCESSFUL"
    assert FAILS not in a.log
    assert a.poll() is None


def test_with_both_kinds_of_wakeups_a_run_starts_once(kit: Kit, rung: RedisServer) -> None:
    """And stopping Redis changes nothing that PostgreSQL's wakeups do."""
    a = listener(kit, rung, wakeups=("pg_notify", "arq"))
    with override_settings(DISPATCH={"METRICS_PORT": 0, "WAKEUPS": ["arq", "pg_notify"]}):
        runs = wait_until_final(*(tasks.note.delay() for _ in range(20)), seconds=25)
        wait_for(lambda: ask_one("producers")["redis"]["is_connected"], what="a proof of the wakeups by Redis")
        heard = ask_one("producers")
        assert heard["redis"]["wakeups_received"] > 0
        assert heard["listener"]["wakeups_received"] > 0
        rung.stop()
        a.wait_for_log(FAILS)
        assert not ask_one("producers")["redis"]["is_connected"]
        assert ask_one("alive")["is_healthy"], "Redis is no reason for a restart"
        assert "django_dispatch_redis_connected" in ask_one("metrics")
        runs += wait_until_final(tasks.note.delay(), seconds=25)
    assert {run.status for run in runs} == {"SUCCESSFUL"}
    assert {kit.ledger.starts(run) for run in runs} == {1}
