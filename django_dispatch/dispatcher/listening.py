"""The dispatcher's listener: where it connects, how it sends itself proofs, whom it tells of trouble. On the loop."""

import asyncio
import logging
from collections.abc import Callable

from ..conf import DispatchSettings
from ..store.session import listen_params
from ..wakeups.base import Wakeup
from ..wakeups.pg_notify import Deaf, Listener
from .backoff import Backoff
from .housekeeping import jittered
from .stats import Stats
from .store_thread import StoreThread
from .trouble import Trouble

LONGEST_PROOF_SECONDS = 5.0
# Behind a pooler that pools transactions, LISTEN will hear nothing next time either. It may be set otherwise one day.
DEAF_SECONDS = 60.0

logger = logging.getLogger("django_dispatch.dispatcher")


class Reports:
    """What becomes of the listening connection, as the dispatcher is told of it; a deaf one is told of once."""

    def __init__(self, trouble: Trouble, stats: Stats) -> None:
        self._trouble = trouble
        self._stats = stats
        self._backoff = Backoff()
        self._is_known_deaf = False

    async def fail(self, error: Exception) -> None:
        """Take note of a failure, and wait until it may be tried again."""
        if isinstance(error, Deaf):
            return await self._rest(error)
        self._trouble.failed("listener", error)
        await self._trouble.pause(self._backoff.next_seconds())

    async def _rest(self, error: Deaf) -> None:
        if not self._is_known_deaf:
            logger.warning("%s", error)
        self._is_known_deaf = True
        self._trouble.succeeded("listener")
        self._stats.succeed("listener", DEAF_SECONDS)
        await asyncio.sleep(jittered(DEAF_SECONDS))

    def succeed(self) -> None:
        """Take note that it hears."""
        if self._is_known_deaf:
            logger.warning("LISTEN hears again.")
        self._is_known_deaf = False
        self._backoff.reset()
        self._trouble.succeeded("listener")
        self._stats.succeed("listener")


def open_listener(
    settings: DispatchSettings,
    store: StoreThread,
    trouble: Trouble,
    stats: Stats,
    *,
    on_wakeup: Callable[[Wakeup], None],
    on_connected: Callable[[], None],
    on_message: Callable[[str, str], None],
) -> Listener:
    """Return a listener that shares in what the dispatcher knows of the database; nothing is connected yet."""

    async def send(payload: str) -> None:
        await store.call(store.store.notify, [payload])

    reports = Reports(trouble, stats)
    proof_seconds = min(max(settings.poll_interval_seconds, 1.0), LONGEST_PROOF_SECONDS)
    stats.expect("listener", proof_seconds)
    listener = Listener(
        lambda: listen_params(settings.database, settings.listen_dsn, "listener"),
        on_wakeup=on_wakeup,
        on_connected=on_connected,
        send=send,
        on_failed=reports.fail,
        on_proved=reports.succeed,
        proof_seconds=proof_seconds,
        channels=(settings.control_channel, *settings.notify_channels),
        on_message=on_message,
        on_echo=lambda seconds: stats.count_echo("pg_notify", seconds),
    )
    trouble.on_relief(listener.doubt)
    return listener
