"""Answers scrapes of the dispatcher's metrics, on its HTTP port. On its loop."""

import asyncio
import logging
from http import HTTPStatus
from typing import TYPE_CHECKING

from ..metrics import HINT, can_be_exposed
from .figures import families
from .http import Request, Response

if TYPE_CHECKING:
    from .service import Dispatcher

PATH = "/metrics"

logger = logging.getLogger("django_dispatch.http")


class Scrapes:
    """The route ``/metrics``. Without prometheus-client it says what to install."""

    def __init__(self, dispatcher: "Dispatcher") -> None:
        self._dispatcher = dispatcher
        self._turn = asyncio.Lock()
        self._can_be_exposed = can_be_exposed()
        if dispatcher.settings.metrics_port and not self._can_be_exposed:
            logger.info("%s is not served: %s", PATH, HINT)

    async def answer(self, request: Request) -> Response:
        """Return the figures, those of the queues asked for anew if they are old and the database answers."""
        if not self._can_be_exposed:
            return Response(HTTPStatus.NOT_IMPLEMENTED, f"Metrics need prometheus-client: {HINT}\n".encode())
        from ..metrics.exposition import render

        await self._dispatcher.backlogs.refresh()
        async with self._turn:
            # On a thread: it takes milliseconds, for which runs would wait.
            accept = request.headers.get("accept", "")
            body, content_type = await asyncio.to_thread(render, families(self._dispatcher), accept)
        return Response(HTTPStatus.OK, body, content_type)
