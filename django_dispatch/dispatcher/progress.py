"""What running bodies say of their progress, on its way to the database. On the dispatcher's loop."""

import asyncio
import logging
from collections.abc import Callable
from uuid import UUID

from django.db import Error as DatabaseError

from .executor import Token
from .store_thread import StoreThread

PERIOD_SECONDS = 0.5

logger = logging.getLogger("django_dispatch.dispatcher")


class ProgressNotes:
    """The newest progress of each run, stored twice a second; what a run said last goes with its outcome."""

    def __init__(self, store: StoreThread, lease_id: Callable[[], UUID | None]) -> None:
        self._store = store
        self._lease_id = lease_id
        self._notes: dict[Token, str] = {}
        self._noted = asyncio.Event()

    def note(self, token: Token, text: str) -> None:
        """Keep a progress, a JSON text, in the place of an older one."""
        self._notes[token] = text
        self._noted.set()

    def take(self, token: Token) -> str | None:
        """Return what is not stored yet of a run that has ended, and forget it."""
        return self._notes.pop(token, None)

    async def run(self) -> None:
        """Store what there is, for ever."""
        while True:
            await self._noted.wait()
            await asyncio.sleep(PERIOD_SECONDS)
            self._noted.clear()
            lease_id, notes = self._lease_id(), self._notes
            if notes and lease_id is not None:
                self._notes = {}
                try:
                    await self._store.call(self._store.store.report_progress, lease_id, notes)
                except DatabaseError as error:
                    logger.debug("Progress could not be stored: %s", error)
