"""Put wakeups into Redis through django-redis, from sync code, in whichever process enqueued or cancelled.

The address, password, TLS and Sentinels are those of an alias of ``CACHES``; the timeouts are ours, for an enqueue must
not wait for a doorbell. This is the one module that imports django-redis, and only when Redis is used.
"""

import time
from typing import Any

from django.core.cache import caches
from django.core.signals import setting_changed

from django_dispatch import conf

from .base import Wakeup
from .breaker import Breaker
from .jobs import put

# For a connection, and for each answer: one to a wakeup, two or three more when the connection is new.
ANSWER_SECONDS = 0.1
ONE_TRY: dict[str, Any] = {"retry": None, "retry_on_timeout": False, "retry_on_error": []}
NO_INTRODUCTION = {"lib_name": None, "lib_version": None}  # which would be two answers more to wait for
# A pool that is full, or that waits for a connection, would be one more thing to wait for.
POOL_KEYS = {"max_connections", "timeout", "queue_class"}

breaker = Breaker()
_clients: dict[str, Any] = {}


def ring(wakeup: Wakeup) -> None:
    """Put the wakeup into Redis, in one round trip. Never raises; does nothing for a while after a failure."""
    if not breaker.may_try():
        return
    try:
        pipe = _client(conf.current().redis).pipeline(transaction=True)
        put(pipe, wakeup)
        began_at = time.monotonic()  # the first time, packages were imported before
        pipe.execute()
    except Exception as error:
        breaker.failed(error)
        return
    seconds = time.monotonic() - began_at
    if seconds > ANSWER_SECONDS:
        breaker.failed(TimeoutError(f"an answer took {seconds:.2f} s"))
    else:
        breaker.succeeded()


def connection_pool(alias: str) -> Any:
    """Return a pool of our own to where an alias of ``CACHES`` leads, with no connection in it yet."""
    from django_redis.pool import get_connection_factory

    client: Any = caches[alias].client  # type: ignore[attr-defined]
    options = {key: value for key, value in client._options.items() if key != "CONNECTION_POOL_CLASS"}
    given = {key: value for key, value in options.get("CONNECTION_POOL_KWARGS", {}).items() if key not in POOL_KEYS}
    timeouts = {"socket_timeout": ANSWER_SECONDS, "socket_connect_timeout": ANSWER_SECONDS}
    ours = ONE_TRY | NO_INTRODUCTION | timeouts
    options |= {"CONNECTION_POOL_KWARGS": given | ours, "SOCKET_TIMEOUT": None, "SOCKET_CONNECT_TIMEOUT": None}
    if options.get("SENTINEL_KWARGS") is not None:
        options["SENTINEL_KWARGS"] = options["SENTINEL_KWARGS"] | ours
    factory: Any = get_connection_factory(options)
    return factory.get_connection_pool(factory.make_connection_params(client._server[0]))


def is_django_redis(alias: str) -> bool:
    """Return whether an alias of ``CACHES`` is a cache of django-redis. Raises ImportError without the package."""
    from django_redis.cache import RedisCache

    return isinstance(caches[alias], RedisCache)


def _client(alias: str) -> Any:
    if alias not in _clients:
        from redis import Redis

        _clients[alias] = Redis(connection_pool=connection_pool(alias))
    return _clients[alias]


def _forget(*, setting: str, **_: Any) -> None:
    if setting in ("CACHES", "DISPATCH"):
        _clients.clear()


setting_changed.connect(_forget)
