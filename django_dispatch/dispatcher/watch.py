"""The watch over executors: timeouts, stops that are not obeyed, runs stuck behind others, loops that do not turn.

On the dispatcher's loop, every 50 milliseconds while there is something to watch, 20 while runs wait in executors
behind others, else once a second.
"""

import asyncio
import contextlib
import logging

from ..executors.fence import Board, now_ns
from ..messages import Kind, Stop
from .executor import Executor, Flight
from .pool import Pool

TICK_SECONDS = 0.05
QUICK_TICK_SECONDS = 0.02
IDLE_TICK_SECONDS = 1.0
STUCK_SECONDS = 0.03  # a run that takes longer does not keep others waiting behind it
WAIT_SECONDS = 0.2  # then a claimed run that found no executor is given back,
LONGEST_WAIT_SECONDS = 1.0  # or then, where short runs go by
BLOCKED_SECONDS = 2.0
STILL_TICKS = 60  # an executor that starts nothing of what it has, for so long, never will. Ticks: we may be late too

logger = logging.getLogger("django_dispatch.dispatcher")


class Watch:
    """Looks at every flight each tick."""

    def __init__(self, pool: Pool, board: Board, *, grace_seconds: float, ready_timeout_seconds: float) -> None:
        self._pool = pool
        self._board = board
        self._ready_timeout_seconds = ready_timeout_seconds
        self._blocked: set[int] = set()
        self._still_ticks: dict[int, int] = {}
        self.grace_seconds = grace_seconds

    async def run(self) -> None:
        """Tick for ever."""
        loop = asyncio.get_running_loop()
        while True:
            self._pool.stirred.clear()
            self.tick(loop.time())
            with contextlib.suppress(TimeoutError):
                if self._pool.is_quiet():
                    async with asyncio.timeout(IDLE_TICK_SECONDS):
                        await self._pool.stirred.wait()
            await asyncio.sleep(QUICK_TICK_SECONDS if self._pool.has_queues() else TICK_SECONDS)

    def tick(self, now: float) -> None:
        """Do what is due at ``now``, by the loop's clock."""
        for executor in list(self._pool.executors.values()):
            if not executor.is_ready:
                self._look_at_start(executor, now)
                continue
            if executor.kind == Kind.ASYNC:
                self._look_at_loop(executor)
            longest = 0.0
            for flight in list(executor.flights.values()):
                if flight.started_at is None:
                    break  # in order of assignment: no later one has started
                longest = max(longest, now - flight.started_at)
                self._look_at_flight(executor, flight, now)
            self._look_for_stillness(executor, has_started=longest > 0.0)
            if executor.unstarted and longest > STUCK_SECONDS and len(executor.flights) > executor.capacity - 1:
                self._unstick(executor, longest)
        self._pool.assign_waiting()
        if self._pool.waiting:
            for kind in Kind:
                patience = LONGEST_WAIT_SECONDS if self._pool.is_moving(kind, now) else WAIT_SECONDS
                self._pool.release_waiting(kind, older_than=now - patience)

    def _look_at_flight(self, executor: Executor, flight: Flight, now: float) -> None:
        assert flight.started_at is not None
        if flight.stop is None:
            if flight.timeout_seconds is not None and now - flight.started_at >= flight.timeout_seconds:
                self.stop(executor, flight, Stop.TIMEOUT, now)
        elif flight.kill_at is not None and now >= flight.kill_at and not executor.is_killed:
            logger.warning(
                "Run %s (%s) did not stop within %g s; its executor %s is killed.",
                flight.run.id,
                flight.run.task,
                self.grace_seconds,
                executor.pid,
                extra=flight.run.log_fields,
            )
            self._pool.kill(executor, f"to stop run {flight.run.id}")

    def stop(self, executor: Executor, flight: Flight, reason: Stop, now: float) -> None:
        """Tell a started body to end; it is killed when it has not within the grace."""
        if flight.stop is None:
            self._pool.stop(executor, flight, reason)
        flight.kill_at = now + self.grace_seconds

    def cancel(self, executor: Executor, flight: Flight, now: float) -> None:
        """Cancel a run: stop its body, or, if that has not started, let it never start."""
        if flight.started_at is None:
            self._pool.recall(executor, flight)
        elif flight.stop is None:
            self.stop(executor, flight, Stop.CANCEL, now)

    def _unstick(self, executor: Executor, longest: float) -> None:
        """Take back what waits behind a run that turns out to be long, and remember that it is."""
        for flight in executor.flights.values():
            if flight.started_at is not None:
                self._pool.durations.learn(flight.run.task, longest)
        executor.is_slow = executor.kind is Kind.SYNC
        self._pool.take_back_from(executor)

    def _look_at_start(self, executor: Executor, now: float) -> None:
        if not executor.is_doomed and now - executor.born_at > self._ready_timeout_seconds:
            logger.error(
                "Executor %s was not ready after %g s; it is replaced.", executor.pid, self._ready_timeout_seconds
            )
            self._pool.kill(executor, "not ready in time")

    def _look_for_stillness(self, executor: Executor, *, has_started: bool) -> None:
        """A free executor starts at once what it is given, unless it is frozen, or a thread or a signal holds it."""
        if has_started or not executor.unstarted or executor.is_killed:
            self._still_ticks.pop(executor.id, None)
            return
        ticks = self._still_ticks[executor.id] = self._still_ticks.get(executor.id, 0) + 1
        if ticks >= STILL_TICKS:
            logger.error("Executor %s does not start what it was given; it is replaced.", executor.pid)
            self._pool.kill(executor, "it started nothing")

    def _look_at_loop(self, executor: Executor) -> None:
        blocked_seconds = (now_ns() - (self._board.last_beat_ns(executor.slot) or now_ns())) / 1e9
        executor.is_blocked = blocked_seconds >= BLOCKED_SECONDS
        if not executor.is_blocked:
            self._blocked.discard(executor.id)
            return
        if executor.unstarted:
            self._pool.take_back_from(executor)  # somebody else's loop may turn
        if executor.flights and executor.id not in self._blocked:
            self._blocked.add(executor.id)
            tasks = sorted({flight.run.task for flight in executor.flights.values() if flight.started_at is not None})
            logger.warning(
                "The event loop of executor %s has been blocked for %.1f s, by one of: %s.",
                executor.pid,
                blocked_seconds,
                ", ".join(tasks),
            )
