"""The dispatcher's ear for wakeups by Redis: where it connects, and what is said of its trouble. On the loop.

Redis is a convenience: its trouble is not the database's, and no reason for a probe to fail.
"""

import asyncio
from collections.abc import Callable

from ..conf import DispatchSettings
from ..wakeups.arq import ArqListener, open_client
from ..wakeups.base import Wakeup
from ..wakeups.breaker import Breaker
from .backoff import Backoff
from .stats import Stats

SOURCE = "arq"
PROOF_SECONDS = 5.0


def open_bell(
    settings: DispatchSettings,
    stats: Stats,
    *,
    on_wakeup: Callable[[Wakeup], None],
    on_connected: Callable[[], None],
) -> ArqListener:
    """Return a listener on the Redis that the settings name; nothing is connected yet."""
    backoff, breaker = Backoff(), Breaker()

    async def fail(error: Exception) -> None:
        breaker.failed(error)
        await asyncio.sleep(backoff.next_seconds())

    def succeed() -> None:
        backoff.reset()
        breaker.succeeded()

    def refuse() -> None:
        stats.wakeups_refused[SOURCE] += 1

    return ArqListener(
        lambda: open_client(settings.redis),
        on_wakeup=on_wakeup,
        on_connected=on_connected,
        on_refused=refuse,
        on_failed=fail,
        on_proved=succeed,
        on_echo=lambda seconds: stats.count_echo(SOURCE, seconds),
        proof_seconds=PROOF_SECONDS,
    )
