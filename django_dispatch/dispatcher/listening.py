"""The dispatcher's listener: where it connects, how it sends itself proofs, whom it tells of trouble. On the loop."""

from collections.abc import Callable
from typing import Any

from ..conf import DispatchSettings
from ..store.session import connection_params
from ..wakeups.base import Wakeup
from ..wakeups.pg_notify import Listener
from .backoff import Backoff
from .stats import Stats
from .store_thread import StoreThread
from .trouble import Trouble

LONGEST_PROOF_SECONDS = 5.0


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
    backoff = Backoff()

    async def send(payload: str) -> None:
        await store.call(store.store.notify, [payload])

    async def fail(error: Exception) -> None:
        trouble.failed("listener", error)
        await trouble.pause(backoff.next_seconds())

    def succeed() -> None:
        backoff.reset()
        trouble.succeeded("listener")
        stats.succeed("listener")

    proof_seconds = min(max(settings.poll_interval_seconds, 1.0), LONGEST_PROOF_SECONDS)
    stats.expect("listener", proof_seconds)
    listener = Listener(
        lambda: _params(settings),
        on_wakeup=on_wakeup,
        on_connected=on_connected,
        send=send,
        on_failed=fail,
        on_proved=succeed,
        proof_seconds=proof_seconds,
        channels=(settings.control_channel, *settings.notify_channels),
        on_message=on_message,
        on_echo=lambda seconds: stats.count_echo("pg_notify", seconds),
    )
    trouble.on_relief(listener.doubt)
    return listener


def _params(settings: DispatchSettings) -> dict[str, Any]:
    if settings.listen_dsn is not None:
        return {"conninfo": settings.listen_dsn, "application_name": "django_dispatch listener"}
    return connection_params(settings.database, "listener")
