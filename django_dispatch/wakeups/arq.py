"""Wakeups as arq jobs on an event loop: two calls for async code that rings itself, and the dispatcher's listener.

This is the one module that imports arq, and only when it is used. A wakeup carries no work: whatever becomes of Redis
and of what is in it costs latency, at most one poll, and nothing else.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from typing import Any
from uuid import uuid4

from django_dispatch import conf

from . import jobs, redis
from .base import Wakeup

CONNECT_SECONDS = 1.0
CALL_SECONDS = 0.2
TAKE_SECONDS = 5.0
ANSWER_SECONDS = 3.0  # the listener is in no hurry
# What a connection is made of, as both kinds of client name it. Parsers, retries and the like belong to one kind.
CONNECTION_KEYS = {
    *("host", "port", "path", "db", "username", "password", "credential_provider", "client_name"),
    *("socket_keepalive", "socket_keepalive_options", "ssl_keyfile", "ssl_certfile", "ssl_cert_reqs"),
    *("ssl_ca_certs", "ssl_ca_data", "ssl_check_hostname", "ssl_min_version", "ssl_ciphers"),
}
WRONG_TYPE = "WRONGTYPE"


async def create_arq_pool(alias: str | None = None) -> Any:
    """Return an arq pool to the Redis of an alias of ``CACHES``, by default ``DISPATCH["REDIS"]``; None if it is away.

    That Redis is away is normal and logged once. Takes at most a second. Close it with ``aclose()``.
    """
    pool = None
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            pool = open_client(alias or conf.current().redis)
            await pool.ping()
    except Exception as error:
        redis.breaker.failed(error)
        if pool is not None:
            await _close(pool)
        return None
    redis.breaker.succeeded()
    return pool


async def enqueue_wakeup(pool: Any, run_id: object) -> None:
    """Have dispatchers look for a run that was enqueued and committed; one wakeup waits, however often this is called.

    ``pool`` is any arq pool, or None: then nothing is done. Never raises, and takes at most 0.2 s.
    """
    if pool is None or not redis.breaker.may_try():
        return
    wakeup = Wakeup("run", str(run_id))
    try:
        async with asyncio.timeout(CALL_SECONDS):
            await pool.enqueue_job(
                jobs.FUNCTION,
                wakeup.value,
                _job_id=jobs.job_id(wakeup),
                _queue_name=jobs.QUEUE,
                _expires=jobs.JOB_SECONDS,
            )
            await pool.pexpire(jobs.QUEUE, round(jobs.QUEUE_SECONDS * 1000))
    except Exception as error:
        redis.breaker.failed(error)
    else:
        redis.breaker.succeeded()


def open_client(alias: str) -> Any:
    """Return an arq pool to where django-redis would go for this alias; nothing is connected yet."""
    from arq.connections import ArqRedis
    from redis import asyncio as aredis
    from redis.connection import SSLConnection, UnixDomainSocketConnection
    from redis.sentinel import SentinelConnectionPool

    known = redis.connection_pool(alias)
    kwargs = _common(known.connection_kwargs) | {"socket_connect_timeout": CONNECT_SECONDS}
    client: Any
    if isinstance(known, SentinelConnectionPool):
        manager = known.sentinel_manager
        sentinels = [
            tuple(one.connection_pool.connection_kwargs[key] for key in ("host", "port")) for one in manager.sentinels
        ]
        of_sentinels = _common(manager.sentinel_kwargs) | {"socket_connect_timeout": CONNECT_SECONDS}
        is_ssl = issubclass(known.connection_class, SSLConnection)
        make_sentinel: Any = aredis.Sentinel
        sentinel = make_sentinel(sentinels, sentinel_kwargs=of_sentinels, ssl=is_ssl, **kwargs)
        client = sentinel.master_for(known.service_name, redis_class=ArqRedis)
    else:
        kind: Any = aredis.Connection
        if issubclass(known.connection_class, SSLConnection):
            kind = aredis.SSLConnection
        elif issubclass(known.connection_class, UnixDomainSocketConnection):
            kind = aredis.UnixDomainSocketConnection
        client = ArqRedis(aredis.ConnectionPool(connection_class=kind, **kwargs))
    client.default_queue_name, client.job_serializer = jobs.QUEUE, jobs.serialize
    return client


def _common(kwargs: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in kwargs.items() if key in CONNECTION_KEYS}


class ArqListener:
    """Takes jobs and passes them on to all; calls ``on_wakeup`` for each that it or another has taken.

    ``on_connected`` follows each connection: then look at the table. ``on_refused`` is told of what is no wakeup. When
    nothing was heard for ``proof_seconds``, a job is put for ourselves, and must come within as many; ``on_echo`` hears
    after how many seconds it did. After a failure ``on_failed`` returns when to try again.
    """

    def __init__(
        self,
        open_client: Callable[[], Any],
        *,
        on_wakeup: Callable[[Wakeup], None],
        on_connected: Callable[[], None],
        on_refused: Callable[[], None],
        on_failed: Callable[[Exception], Awaitable[None]],
        on_proved: Callable[[], None],
        on_echo: Callable[[float], None],
        proof_seconds: float,
    ) -> None:
        self._open_client = open_client
        self._on_wakeup = on_wakeup
        self._on_connected = on_connected
        self._on_refused = on_refused
        self._on_failed = on_failed
        self._on_proved = on_proved
        self._on_echo = on_echo
        self._proof_seconds = proof_seconds
        self._mark = uuid4().hex
        self._sent_at: float | None = None
        self._heard = asyncio.Event()
        self._client: Any = None
        self.is_connected = False

    async def run(self) -> None:
        """Listen for ever; connect again after every failure."""
        while True:
            try:
                await self._listen()
            except Exception as error:
                self.is_connected = False
                await self._on_failed(error)

    async def ring(self, wakeup: Wakeup) -> None:
        """Wake all dispatchers, if Redis is there."""
        if self.is_connected:
            with contextlib.suppress(Exception):
                await self._put(wakeup)

    async def _listen(self) -> None:
        client = self._client = self._open_client()
        try:
            async with client.pubsub(ignore_subscribe_messages=True) as pubsub:
                async with asyncio.timeout(ANSWER_SECONDS):
                    await pubsub.subscribe(jobs.CHANNEL)
                async with asyncio.TaskGroup() as parts:
                    parts.create_task(self._hear(pubsub), name="hear")
                    parts.create_task(self._take(client), name="take")
                    parts.create_task(self._prove(), name="prove")
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        finally:
            await _close(client)

    async def _hear(self, pubsub: Any) -> None:
        async for message in pubsub.listen():
            taker, wakeup = jobs.read(message["data"].decode(errors="replace"))
            if wakeup is None:
                self._on_refused()
                continue
            self._heard.set()
            if wakeup.kind != "test":
                if taker != self._mark:  # else it was heard when it was taken
                    self._on_wakeup(wakeup)
            elif wakeup.value == self._mark and self._sent_at is not None:
                self._on_echo(time.monotonic() - self._sent_at)
                self._sent_at = None

    async def _take(self, client: Any) -> None:
        while True:
            try:
                async with asyncio.timeout(TAKE_SECONDS + ANSWER_SECONDS):
                    found = await client.bzpopmin(jobs.QUEUE, timeout=TAKE_SECONDS)
            except Exception as error:
                await self._mend(error)
                continue
            if found is None:
                continue
            wakeup = jobs.wakeup_of(found[1].decode(errors="replace"))
            if wakeup is None:
                self._on_refused()
                continue
            if wakeup.kind != "test":  # a proof must make the whole way
                self._on_wakeup(wakeup)
            async with asyncio.timeout(ANSWER_SECONDS), client.pipeline(transaction=True) as pipe:
                jobs.pass_on(pipe, wakeup, self._mark)
                await pipe.execute()

    async def _prove(self) -> None:
        """Put a job for ourselves whenever nothing was heard for a while; fail when it does not come."""
        while True:
            self._heard.clear()
            self._sent_at = time.monotonic()
            await self._put(Wakeup("test", self._mark))
            try:
                async with asyncio.timeout(self._proof_seconds):
                    await self._heard.wait()
            except TimeoutError:
                raise TimeoutError(
                    f"a wakeup sent to ourselves did not come within {self._proof_seconds:g} s"
                ) from None
            while self._heard.is_set():
                self._on_proved()
                if not self.is_connected:
                    self.is_connected = True
                    self._on_connected()
                self._heard.clear()
                await asyncio.sleep(self._proof_seconds)

    async def _put(self, wakeup: Wakeup) -> None:
        async with asyncio.timeout(ANSWER_SECONDS), self._client.pipeline(transaction=True) as pipe:
            jobs.put(pipe, wakeup)
            try:
                await pipe.execute()
            except Exception as error:
                await self._mend(error)

    async def _mend(self, error: Exception) -> None:
        """If somebody has put something else where the queue is, take it away: no wakeup could come any more."""
        if WRONG_TYPE not in str(error):
            raise error
        self._on_refused()
        async with asyncio.timeout(ANSWER_SECONDS):
            await self._client.delete(jobs.QUEUE)


async def _close(client: Any) -> None:
    with contextlib.suppress(Exception):
        async with asyncio.timeout(ANSWER_SECONDS):
            await client.aclose(close_connection_pool=True)
