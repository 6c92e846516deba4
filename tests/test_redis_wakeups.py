"""Wakeups by Redis from the side that sends: when, through which doors, for how long at most, and by which address."""

import asyncio
import logging
import ssl
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.db import connections, transaction
from django.test import override_settings

from django_dispatch import cancel, checks, run_again
from django_dispatch.models import Run
from django_dispatch.wakeups import arq, jobs
from django_dispatch.wakeups import redis as ringing
from django_dispatch.wakeups.arq import create_arq_pool, enqueue_wakeup, open_client
from django_dispatch.wakeups.base import Wakeup
from django_dispatch.wakeups.breaker import Breaker
from testproject.redis_server import RedisServer
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.waiting import wait_for

DISPATCH = {"METRICS_PORT": 0, "WAKEUPS": ["arq"]}
NOWHERE = "redis://127.0.0.1:1/0"


def cache(location: Any, **options: Any) -> dict[str, Any]:
    return {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": location, "OPTIONS": options}}


@pytest.fixture(autouse=True)
def breaker(monkeypatch: pytest.MonkeyPatch) -> Breaker:
    """What this process knows of Redis is nothing yet."""
    breaker = Breaker()
    monkeypatch.setattr(ringing, "breaker", breaker)
    return breaker


@pytest.fixture
def rung(redis: RedisServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[RedisServer]:
    monkeypatch.setattr(ringing, "ANSWER_SECONDS", 5.0)  # who is slow here is the machine
    monkeypatch.setattr(arq, "CONNECT_SECONDS", 5.0)
    monkeypatch.setattr(arq, "CALL_SECONDS", 5.0)
    with override_settings(CACHES=redis.caches, DISPATCH=DISPATCH):
        yield redis


def waiting(redis: RedisServer) -> set[str]:
    """Return the wakeups that wait, and forget them."""
    found = {member.decode().removeprefix(jobs.JOB_ID) for member in redis.client.zrange(jobs.QUEUE, 0, -1)}
    redis.flush()
    return found


# when


def by_async_door() -> None:
    async_to_sync(tasks.note.adelay)()


def again() -> None:
    run_again(Run.objects.get(queue="ended"))


DOORS: dict[str, tuple[Callable[[], object], set[str]]] = {
    "delay": (tasks.note.delay, {"ready:default"}),
    "adelay": (by_async_door, {"ready:default"}),
    "later": (lambda: tasks.note.apply_async(countdown=3600), {"scheduled:default"}),
    "options": (lambda: tasks.note.apply_async(queue="mail"), {"ready:mail"}),
    "many": (lambda: tasks.note.delay_many([(), ()]), {"ready:default"}),
    "unique": (lambda: tasks.note.apply_async(idempotency_key="once"), {"ready:default"}),
    "run again": (again, {"ready:ended"}),
}


@pytest.mark.parametrize("door", DOORS)
def test_every_door_rings_after_the_commit_and_never_without_one(kit: Kit, rung: RedisServer, door: str) -> None:
    kit.sql.execute(
        "INSERT INTO django_dispatch_run (task, queue, status, finished_at, source)"
        " VALUES ('tests.kit.tasks.note', 'ended', 'FAILED', now(), 'app')"
    )
    enqueue, wakeups = DOORS[door]
    with transaction.atomic():
        enqueue()
        transaction.set_rollback(True)
    assert Run.objects.count() == 1
    with transaction.atomic(), transaction.atomic():
        enqueue()
        transaction.set_rollback(True)
    assert Run.objects.count() == 1
    assert rung.client.dbsize() == 0
    with transaction.atomic():
        enqueue()
        assert rung.client.dbsize() == 0
    assert waiting(rung) == wakeups
    kit.sql.execute("UPDATE django_dispatch_run SET status = 'FAILED', finished_at = now(), run_after = NULL")
    if door not in ("unique", "run again"):
        enqueue()
        assert waiting(rung) == wakeups


def test_a_cancel_rings(kit: Kit, rung: RedisServer) -> None:
    run = tasks.note.delay()
    lease = "c4b8f0bc-7a0b-4f0e-8f65-111111111111"
    kit.sql.execute("UPDATE django_dispatch_run SET status = 'RUNNING', lease_id = %s", [lease])
    waiting(rung)
    cancel(run)
    assert waiting(rung) == {f"cancel:{lease}"}


def test_the_commit_that_counts_is_that_of_the_queues_own_database(kit: Kit, rung: RedisServer) -> None:
    connections.settings["other"] = connections.settings["default"]
    try:
        with override_settings(DISPATCH=DISPATCH | {"DATABASE": "other"}):
            with transaction.atomic(using="other"):
                with transaction.atomic():
                    tasks.note.delay()
                assert rung.client.dbsize() == 0
            assert waiting(rung) == {"ready:default"}
            with transaction.atomic():
                tasks.note.delay()
                assert waiting(rung) == {"ready:default"}, "no transaction of the queue's database is open"
                transaction.set_rollback(True)
            with transaction.atomic(using="other"):
                tasks.note.delay()
                transaction.set_rollback(True, using="other")
            assert rung.client.dbsize() == 0
        assert Run.objects.count() == 2
    finally:
        connections["other"].close()
        del connections["other"]
        del connections.settings["other"]


def test_a_queue_waits_once_however_many_runs_it_gets(kit: Kit, rung: RedisServer) -> None:
    for _ in range(30):
        tasks.note.delay()
    assert rung.client.zcard(jobs.QUEUE) == 1
    assert 0 < rung.client.pttl(jobs.QUEUE) <= 60_000
    assert rung.client.dbsize() <= 2


# for how long at most


@pytest.mark.parametrize("location", [NOWHERE, "redis://127.0.0.1:0/0", "nonsense://x"])
def test_without_redis_an_enqueue_succeeds_and_one_line_says_so(
    kit: Kit, caplog: pytest.LogCaptureFixture, location: str
) -> None:
    with override_settings(CACHES=cache(location), DISPATCH=DISPATCH):
        runs = [tasks.note.delay() for _ in range(5)]
        with transaction.atomic():
            runs.append(tasks.note.delay())
        assert async_to_sync(create_arq_pool)() is None
    assert Run.objects.filter(pk__in=[run.pk for run in runs]).count() == 6
    assert caplog.text.count("Wakeups by Redis fail: ") == 1


def test_timeouts_of_the_project_are_not_waited_for(redis: RedisServer) -> None:
    slow = {"SOCKET_TIMEOUT": 60, "SOCKET_CONNECT_TIMEOUT": 60}
    kwargs = {"max_connections": 1, "timeout": 60, "retry_on_timeout": True}
    options = {**slow, "CONNECTION_POOL_CLASS": "redis.BlockingConnectionPool", "CONNECTION_POOL_KWARGS": kwargs}
    redis.freeze()
    with override_settings(CACHES=cache(redis.url, **options), DISPATCH=DISPATCH):
        began_at = time.monotonic()
        ringing.ring(Wakeup("ready", "default"))
        assert ringing.ANSWER_SECONDS <= time.monotonic() - began_at < 30
        assert asyncio.run(create_arq_pool()) is None
    redis.thaw()


def test_calls_on_a_pool_whose_redis_has_gone_never_raise(rung: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        await enqueue_wakeup(None, 1)
        pool = await create_arq_pool()
        await enqueue_wakeup(pool, 1)
        await enqueue_wakeup(pool, 1)
        assert waiting(rung) == {"run:1"}
        rung.stop()
        for _ in range(5):
            await enqueue_wakeup(pool, 2)
        await pool.aclose()

    asyncio.run(main())
    assert caplog.text.count("Wakeups by Redis fail: ") == 1


def test_after_a_failure_one_at_a_time_tries_again(caplog: pytest.LogCaptureFixture) -> None:
    now = [100.0]
    breaker = Breaker(pause_seconds=3, clock=lambda: now[0])
    assert breaker.may_try()
    with caplog.at_level(logging.WARNING, "django_dispatch.wakeups"):
        breaker.failed(OSError("gone."))
        breaker.failed(TimeoutError())
        assert not breaker.may_try()
        now[0] += 3
        assert [breaker.may_try(), breaker.may_try()] == [True, False]
        breaker.succeeded()
        breaker.succeeded()
    assert breaker.may_try()
    assert [record.getMessage() for record in caplog.records] == [
        "Wakeups by Redis fail: gone. Runs are found without them.",
        "Wakeups by Redis work again, after 3.0 s.",
    ]


def test_wakeups_by_redis_need_no_event_loop(rung: RedisServer) -> None:
    async def inside() -> None:
        ringing.ring(Wakeup("ready", "inside a loop"))

    asyncio.run(inside())
    ringing.ring(Wakeup("ready", "outside"))
    assert waiting(rung) == {"ready:inside a loop", "ready:outside"}


# by which address


def proves_both_ways(caches: dict[str, Any], redis: RedisServer) -> None:
    """Ring by either kind of client."""

    async def ring() -> None:
        pool = await create_arq_pool()
        assert pool is not None
        await enqueue_wakeup(pool, 5)
        await pool.aclose()

    with pytest.MonkeyPatch.context() as patch, override_settings(CACHES=caches, DISPATCH=DISPATCH):
        patch.setattr(ringing, "ANSWER_SECONDS", 5.0)
        patch.setattr(arq, "CONNECT_SECONDS", 5.0)
        patch.setattr(arq, "CALL_SECONDS", 5.0)
        ringing.ring(Wakeup("ready", "default"))
        asyncio.run(ring())
    assert waiting(redis) == {"ready:default", "run:5"}


@pytest.mark.parametrize("place", ["url", "option"])
def test_a_password_as_django_redis_takes_it(tmp_path: Path, redis_program: str, place: str) -> None:
    with RedisServer(tmp_path, password="open sesame") as redis:
        bare = f"redis://127.0.0.1:{redis.port}/0"
        url = bare if place == "option" else bare.replace("//", "//:open%20sesame@")
        proves_both_ways(cache(url, **({"PASSWORD": "open sesame"} if place == "option" else {})), redis)


def test_a_unix_socket(tmp_path: Path, redis_program: str) -> None:
    with RedisServer(tmp_path, "--unixsocket", str(tmp_path / "s")) as redis:
        proves_both_ways(cache(f"unix://{tmp_path}/s?db=0"), redis)


def test_sentinels(tmp_path: Path, redis_program: str, redis: RedisServer) -> None:
    """The server is the one that they name."""
    config = tmp_path / "sentinel.conf"
    config.write_text(f"sentinel monitor shop 127.0.0.1 {redis.port} 1\n")
    sentinel = RedisServer(tmp_path)
    process = subprocess.Popen(
        [redis_program, str(config), "--sentinel", "--port", str(sentinel.port), "--bind", "127.0.0.1"],
        stdout=subprocess.DEVNULL,
    )
    try:
        wait_for(sentinel.answers, what="an answer of the sentinel")
        caches = cache(
            "redis://shop/0",
            CONNECTION_FACTORY="django_redis.pool.SentinelConnectionFactory",
            SENTINELS=[("127.0.0.1", sentinel.port)],
        )
        proves_both_ways(caches, redis)
    finally:
        process.kill()
        process.wait()


def test_tls_as_django_redis_takes_it() -> None:
    """Both kinds of client are told the same; no handshake is made here."""
    kwargs = {"ssl_cert_reqs": "required", "ssl_ca_certs": "/etc/ca.pem", "ssl_min_version": ssl.TLSVersion.TLSv1_3}
    caches = cache("rediss://user:secret@redis.example:6380/3", CONNECTION_POOL_KWARGS=kwargs)
    with override_settings(CACHES=caches, DISPATCH=DISPATCH):
        one, other = ringing.connection_pool("default"), open_client("default").connection_pool
    for pool in (one, other):
        assert "SSLConnection" in pool.connection_class.__name__
        given = pool.connection_kwargs
        assert (given["host"], given["port"], given["db"]) == ("redis.example", 6380, 3)
        assert (given["username"], given["password"]) == ("user", "secret")
        assert {key: given[key] for key in kwargs} == kwargs


# the checks


def ids() -> list[str | None]:
    return [
        message.id
        for message in checks.check_settings()
        if message.id in ("django_dispatch.E006", "django_dispatch.E007")
    ]


@pytest.mark.parametrize("package", ["django_redis", "arq"])
def test_e006_the_extra_is_missing(settings: Any, monkeypatch: pytest.MonkeyPatch, package: str) -> None:
    settings.CACHES, settings.DISPATCH = cache(NOWHERE), DISPATCH
    assert ids() == []
    monkeypatch.setitem(sys.modules, package, None)
    (message,) = [message for message in checks.check_settings() if message.id == "django_dispatch.E006"]
    assert package in message.msg
    assert 'pip install "django-dispatch[redis]"' in str(message.hint)
    settings.DISPATCH = {"WAKEUPS": ["pg_notify"]}
    assert ids() == []


@pytest.mark.parametrize(
    ("alias", "backend"), [("nowhere", ""), ("default", "django.core.cache.backends.locmem.LocMemCache")]
)
def test_e007_no_cache_of_django_redis(settings: Any, alias: str, backend: str) -> None:
    settings.CACHES = {"default": {"BACKEND": backend}} if backend else cache(NOWHERE)
    settings.DISPATCH = DISPATCH | {"REDIS": alias}
    assert ids() == ["django_dispatch.E007"]
    settings.CACHES |= {alias: cache(NOWHERE)["default"]}
    assert ids() == []
