"""One session of the claims loop: sends a batch of outcomes with a claim, by halves if one of them cannot be stored."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from django.db import Error as DatabaseError

from ..documents import error_document
from ..finish import settle
from ..messages import Outcome, Verdict
from ..store.base import Exchanger
from ..store.values import Exchange, Settlement, Wanted
from .busy import Ended
from .trouble import is_unstorable, text_of

NOTHING: Wanted = {"queues": (), "limit": 0}


class Sender:
    """For one statement at a time. ``event`` is set when there may be something to send."""

    def __init__(self, exchanger: Exchanger, *, max_interruptions: int) -> None:
        self._exchanger = exchanger
        self._max_interruptions = max_interruptions
        self.event = asyncio.Event()

    async def send(self, lease_id: UUID, batch: Sequence[Ended], wanted: Wanted) -> Exchange:
        """Write what has ended and claim what is wanted. Raises ``django.db.Error`` if nobody knows what was done."""
        try:
            return await self._exchanger.exchange(lease_id, [ended.settlement for ended in batch], **wanted)
        except DatabaseError as error:
            if not batch or not is_unstorable(error):
                raise
            return await self._send_piecemeal(lease_id, batch, error)

    async def release(self, lease_id: UUID, run_id: int, epoch: int) -> Exchange:
        """Give back a run that has not started."""
        return await self._exchanger.exchange(
            lease_id, [Settlement(run_id, epoch, "READY", was_started=False)], **NOTHING
        )

    async def close(self) -> None:
        """Close the session; it is opened again when something is sent."""
        await self._exchanger.close()

    async def _send_piecemeal(self, lease_id: UUID, batch: Sequence[Ended], error: DatabaseError) -> Exchange:
        """One outcome of the batch cannot be stored: find it by halves, and store that it cannot be.

        Nothing is claimed by the way: all that is wanted is left to look at.
        """
        if len(batch) == 1:
            ended = batch[0]
            message = f"The database cannot store what the body returned: {text_of(error)}"
            text = error_document("result", message, attempt=ended.flight.run.attempt)
            outcome = Outcome(*ended.flight.token, Verdict.UNSTORABLE, ended.outcome.duration_seconds, text)
            settlement = settle(ended.flight.run, outcome, None, max_interruptions=self._max_interruptions)
            return replace(await self._exchanger.exchange(lease_id, [settlement], **NOTHING), rest_seconds=0.0)
        middle = len(batch) // 2
        halves = [await self.send(lease_id, half, NOTHING) for half in (batch[:middle], batch[middle:])]
        refused = [run_id for half in halves for run_id in half.refused]
        busy = [run_id for half in halves for run_id in half.busy]
        cancelled = [run_id for half in halves for run_id in half.cancelled]
        return Exchange((), refused, busy, cancelled, rest_seconds=0.0)
