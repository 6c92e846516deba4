"""The dispatcher's own sessions, but for the keeper's and the listener's: each for what must not wait for the others.

By default a database that is back is in use again within ten seconds: that is a deadline and the longest pause.
"""

import asyncio

from ..conf import DispatchSettings
from ..store.vendors import open_exchangers, open_store
from .line import Line
from .store_thread import StoreThread

LONGEST_STATEMENT_SECONDS = 5.0
LONGEST_CALL_SECONDS = 6.0
LONGEST_CONTROL_SECONDS = 2.0  # for one statement: whoever asked has not much patience
CLOSE_SECONDS = 2.0


class Sessions:
    """``exchangers`` for claims, ``store`` for housekeeping, ``line`` for control; nothing is connected yet.

    The server gives up on a statement first; the deadline is for a server, or a network, that says nothing.
    """

    def __init__(self, settings: DispatchSettings) -> None:
        statement_seconds = min(LONGEST_STATEMENT_SECONDS, settings.lease_ttl_seconds / 2)
        deadline_seconds = min(LONGEST_CALL_SECONDS, settings.lease_ttl_seconds * 2 / 3)
        self.store = StoreThread(
            open_store(settings.database, "store", statement_timeout_seconds=statement_seconds),
            deadline_seconds=deadline_seconds,
        )
        self.exchangers = open_exchangers(
            settings.database,
            "claims",
            statement_timeout_seconds=statement_seconds,
            deadline_seconds=deadline_seconds,
        )
        control_seconds = min(LONGEST_CONTROL_SECONDS, statement_seconds)
        control = open_store(settings.database, "control", statement_timeout_seconds=control_seconds)
        self.line = Line(StoreThread(control, deadline_seconds=control_seconds * 1.5), self.store)

    async def close(self) -> None:
        """Close those that are in use to the end; ``line`` is closed by whoever answers."""
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                for exchanger in self.exchangers:
                    await exchanger.close()
                await self.store.close()
        except TimeoutError:
            self.store.store.abort()
