"""Whether this dispatcher can do its job, and whether it does it now: for probes. On its loop, from memory alone.

Two questions, for their answers lead to different acts. Who cannot do its job is to be restarted: a loop has not done
its work for too long, and the database is not why. (If the database is why, a restart would not help.) Who is not ready
is to be waited for: it has no lease, no executors, or orders to claim nothing. To be busy is neither.
"""

import json
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, Any

from ..executors.fence import now_ns
from ..messages import Kind
from .http import Request, Response, Route

if TYPE_CHECKING:
    from .service import Dispatcher

JSON = "application/json"


class Health:
    """Looks at the dispatcher's parts."""

    def __init__(self, dispatcher: "Dispatcher") -> None:
        self._dispatcher = dispatcher
        self._stats = dispatcher.stats
        self._trouble = dispatcher.trouble
        self._pool = dispatcher.pool

    def failing(self) -> dict[str, str]:
        """Return the loops that cannot do their job, each with why."""
        return {
            name: f"has not done its work for {self._silence(name):.0f} s"
            for name in self._stats.late()
            if not self._trouble.explains(name)
        }

    def unready(self) -> list[str]:
        """Return why it does not take up runs; nothing if it does."""
        state = self._dispatcher.state
        reasons = [] if state == "active" else ["it has no lease" if state == "grounded" else f"it is {state}"]
        if state == "active" and self._dispatcher.board.deadline_ns() <= now_ns():
            reasons.append("its lease was not renewed in time")
        if state != "grounded":
            reasons += [f"no {kind} executor is ready" for kind in self._missing()]
        return reasons + [f"the {name} loop {why}" for name, why in self.failing().items()]

    def status(self) -> str:
        """Say in a line what it does."""
        running = sum(flight.started_at is not None for flight in self._pool.flights())
        finished = sum(self._stats.runs_finished.values())
        what = f"{self._dispatcher.state}, {running} running, {finished} finished"
        reasons = self.unready()
        return f"{what}; not ready: {', '.join(reasons)}" if reasons else what

    def routes(self) -> dict[str, Route]:
        """Return what answers probes over HTTP: 200 or 503, and why."""

        async def healthz(request: Request) -> Response:
            failing = self.failing()
            return self._response(not failing, "is_healthy", failing=failing)

        async def readyz(request: Request) -> Response:
            reasons = self.unready()
            return self._response(not reasons, "is_ready", reasons=reasons)

        return {"/healthz": healthz, "/readyz": readyz}

    def _missing(self) -> list[Kind]:
        """The kinds of executors of which there is none that takes runs."""
        executors = self._pool.executors.values()
        here = {executor.kind for executor in executors if executor.is_ready and not executor.is_doomed}
        return [kind for kind in Kind if self._pool.wanted(kind) and kind not in here]

    def _silence(self, name: str) -> float:
        loop = self._stats.loops[name]
        return time.time() - (loop.last_success_at or loop.began_at)

    def _response(self, is_well: bool, key: str, **more: Mapping[str, str] | list[str]) -> Response:
        us = self._dispatcher
        document: dict[str, Any] = {key: is_well, "node": us.settings.node, "state": us.state, **more}
        status = HTTPStatus.OK if is_well else HTTPStatus.SERVICE_UNAVAILABLE
        return Response(status, json.dumps(document).encode() + b"\n", JSON)
