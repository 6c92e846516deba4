"""What must happen whether or not there is work: reclaim, promote, prune, poll. Each off its own timer, on the loop.

A step that fails is repeated with back-off, sooner when the database is seen to be back. None can hold up another, for
each is a task of its own and the store gives each call a deadline.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from uuid import UUID

from django.db import Error as DatabaseError

from ..rates import Limit
from ..store.values import Neighbour
from . import process
from .admission import Admission
from .backoff import LONGEST_PAUSE_SECONDS, Backoff
from .stats import Stats
from .store_thread import StoreThread
from .trouble import Trouble

JITTER = 0.2
PRUNE_SECONDS = 60.0
PRUNE_LIMIT = 5000
PROMOTE_LIMIT = 1000
EXPIRE_LIMIT = 1000
EXPIRE_SECONDS = 10.0  # nothing depends on it but how soon one sees that a run will not be started
AGE_LIMIT = 10  # of each queue and priority at a time: the others are to get on, too
NEIGHBOUR_SECONDS = 0.5  # look whether they live
LEARN_SECONDS = 1.0  # and who they are, if no wakeup tells
RECLAIM_GRACE_SECONDS = 2.0
# Many steps fail together, and whoever of the dispatcher's parts gets through first has all of them try at once.
LONGEST_FAILING_SECONDS = 2 * LONGEST_PAUSE_SECONDS

logger = logging.getLogger("django_dispatch.housekeeping")


class Housekeeping:
    """The steps that keep the tables in order for all. ``on_ready`` is told of queues that got READY runs.

    ``poll_pause`` says for how many seconds the table need not be looked at if no wakeup comes; ``is_listening``,
    whether one would tell of a new neighbour.
    """

    def __init__(
        self,
        store: StoreThread,
        *,
        ttl_seconds: float,
        max_interruptions: int,
        retention: Mapping[str, float | None],
        queue_limits: Mapping[str, Limit],
        aging_seconds: float | None = None,
        own_lease: Callable[[], UUID | None],
        on_ready: Callable[[Sequence[str]], None],
        poll_pause: Callable[[], float],
        is_listening: Callable[[], bool],
        trouble: Trouble,
        stats: Stats,
    ) -> None:
        self._store = store
        self.reclaim_seconds = ttl_seconds / 2
        """Between two sweeps, if nothing tells of a lost lease sooner."""
        self._max_interruptions = max_interruptions
        self._retention = retention
        self._aging_seconds = aging_seconds
        self._own_lease = own_lease
        self._on_ready = on_ready
        self._poll_pause = poll_pause
        self._is_listening = is_listening
        self._hurries: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self._rests: dict[str, asyncio.Timeout] = {}
        hurry = self._hurries["admit"].set
        self.admission = Admission(store, queue_limits, announce=self.announce, sweep_pause=poll_pause, hurry=hurry)
        self._trouble = trouble
        self._stats = stats
        self._neighbours: Sequence[Neighbour] = ()
        self._news, self._learned, self._learned_at = 1, 0, 0.0
        self.lost_leases: set[UUID] = set()
        """Leases of ours that were lost and whose bodies are dead; their runs are still to be given back."""

    async def repeat(self, name: str, seconds: float, step: Callable[[], Awaitable[float | None]]) -> None:
        """Do a step for ever, every ``seconds`` ± 20 %, or after as many seconds as it returned, or in a hurry."""
        backoff = Backoff(longest_seconds=LONGEST_FAILING_SECONDS)
        self._stats.expect(name, seconds)
        is_failing = False
        while True:
            self._hurries[name].clear()
            try:
                pause = await step()
                self._stats.succeed(name, pause)
                backoff.reset()
                self._trouble.succeeded(name)
                if is_failing:
                    logger.info("Housekeeping step %s works again.", name)
                is_failing = False
            except DatabaseError as error:
                self._trouble.failed(name, error)
                await self._trouble.pause(backoff.next_seconds())
                continue
            except Exception as error:
                pause = backoff.next_seconds()
                if not is_failing:
                    logger.warning("Housekeeping step %s fails: %s", name, error, exc_info=True)
                is_failing = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(jittered(seconds) if pause is None else pause) as rest:
                    if not is_failing:
                        self._rests[name] = rest
                    await self._hurries[name].wait()
            self._rests.pop(name, None)

    def put_off(self, name: str, seconds: float | None, *, longest: float) -> None:
        """A step has nothing to do for so many seconds, as if it had looked; after the ``longest`` it is to look.

        One that is under way may have looked before, and looks again if there is something.
        """
        rest = self._rests.get(name)
        pause = longest if seconds is None else min(seconds, longest)
        if rest is not None and not rest.expired() and pause > 0:
            rest.reschedule(asyncio.get_running_loop().time() + pause)
            self._stats.succeed(name, pause)
        elif pause < longest:
            self._hurries[name].set()

    def steps(self) -> dict[str, tuple[float, Callable[[], Awaitable[float | None]]]]:
        """Return each step with its period in seconds."""
        aging_seconds = self._aging_seconds
        aging = {} if aging_seconds is None else {"age": (min(60.0, max(0.2, aging_seconds / 10)), self.age)}
        return aging | {
            "reclaim": (self.reclaim_seconds, self.reclaim),
            "neighbours": (NEIGHBOUR_SECONDS, self.look_at_neighbours),
            "promote": (0.0, self.promote),
            "expire": (EXPIRE_SECONDS, self.expire),
            "admit": (0.0, self.admission.step),
            "prune": (PRUNE_SECONDS, self.prune),
        }

    async def reclaim(self, dead_leases: Sequence[UUID] = (), why: str = "its process died") -> None:
        """Take back the runs of leases that expired or do not exist; of ``dead_leases`` too, or of those we lost."""
        if not dead_leases and self.lost_leases:
            dead_leases, why = list(self.lost_leases), "it lost its lease"
        reclaimed = await self._store.call(
            self._store.store.reclaim,
            grace_seconds=RECLAIM_GRACE_SECONDS,
            max_interruptions=self._max_interruptions,
            dead_leases=dead_leases,
            why=why,
        )
        self.lost_leases.difference_update(dead_leases)
        for run in reclaimed:
            self._stats.count_reclaimed(run.queue, run.status)
            logger.warning(
                "Run %s (%s) is reclaimed from lease %s: %s.",
                run.run_id,
                run.task,
                run.lease_id,
                run.status,
                extra=run.log_fields | {"status": run.status},
            )
        self.learn_neighbours()  # whom no wakeup announced
        if reclaimed:
            self.promote_soon()
            self.admission.sweep_soon()
        await self.announce([run.queue for run in reclaimed if run.status == "READY"])
        if unreachable := await self._store.call(self._store.store.cancel_unreachable):
            logger.warning(
                "%s runs are cancelled: each was for one dispatcher alone, which lives no more.", unreachable
            )

    def note_neighbours(self, lease_ids: Sequence[UUID]) -> None:
        """These leases are of this host: look who they are, if any is new."""
        known = {neighbour.lease_id for neighbour in self._neighbours} | {self._own_lease()}
        if not known.issuperset(lease_ids):
            self.learn_neighbours()

    def learn_neighbours(self) -> None:
        """Ask with the next look who has a lease on this host: somebody may be new there, and dead already."""
        self._news += 1

    async def look_at_neighbours(self) -> None:
        """Reclaim at once from dispatchers of this host that are dead, with all their executors."""
        is_due = not self._is_listening() and time.monotonic() > self._learned_at + LEARN_SECONDS
        if is_due or self._news != self._learned:
            news = self._news  # what is said while we ask is asked for again
            self._neighbours = await self._store.call(
                self._store.store.neighbours, host=process.host_name(), besides=self._own_lease()
            )
            self._learned, self._learned_at = news, time.monotonic()
        dead = [neighbour.lease_id for neighbour in self._neighbours if process.is_dead(neighbour.process)]
        if dead:
            await self.reclaim(dead)

    async def promote(self) -> float:
        """Make due runs READY; return in how many seconds the next is due, or it is time for a poll."""
        queues, next_seconds, keys = await self._store.call(
            self._store.store.promote, limit=PROMOTE_LIMIT, limited_queues=self.admission.limited_queues
        )
        if keys:
            self.admission.admit_soon(keys)
        await self.announce(queues)
        if queues or keys:
            return 0.0
        return self._poll_pause() if next_seconds is None else max(0.01, min(next_seconds, self._poll_pause()))

    def promote_soon(self) -> None:
        """There is a run that may be due before the one that was next."""
        self._hurries["promote"].set()

    async def age(self) -> None:
        """Bring forward some of the runs that others with a higher priority have kept waiting for too long."""
        if self._aging_seconds is not None:
            await self._store.call(self._store.store.age, age_seconds=self._aging_seconds, limit=AGE_LIMIT)

    async def expire(self) -> float:
        """Cancel what was not started in time; return in how many seconds to look again."""
        expired, next_seconds, freed = await self._store.call(self._store.store.expire, limit=EXPIRE_LIMIT)
        if freed:
            self.admission.admit_soon(freed)
        if expired:
            logger.info("Runs that were not started before they expired: %s, CANCELLED.", expired)
        if expired == EXPIRE_LIMIT:
            return 0.0
        return EXPIRE_SECONDS if next_seconds is None else max(0.1, min(next_seconds, EXPIRE_SECONDS))

    async def prune(self) -> None:
        """Delete final runs past their retention, in batches, with a breath in between."""
        store = self._store.store
        await self._in_batches(partial(store.prune_own, limit=PRUNE_LIMIT))
        for status, age_seconds in self._retention.items():
            if age_seconds is not None:
                await self._in_batches(partial(store.prune, status=status, age_seconds=age_seconds, limit=PRUNE_LIMIT))
        await self._store.call(store.prune_buckets)

    async def _in_batches(self, prune: Callable[[], int]) -> None:
        while True:
            if await self._store.call(prune) < PRUNE_LIMIT:
                return
            await asyncio.sleep(0.05)

    def poll_soon(self) -> None:
        """There may be something to claim, nobody knows in which queue."""
        self._hurries["poll"].set()

    def waiting_soon(self) -> None:
        """Whether we wait for wakeups may have to be said."""
        self._hurries["waiting"].set()

    def schedules_soon(self) -> None:
        """There is a schedule that may be due before the one that was next."""
        self._hurries["schedules"].set()

    def declare_soon(self) -> None:
        """The code may have other schedules than it had."""
        self._hurries["declarations"].set()

    async def announce(self, queues: Sequence[str]) -> None:
        """Wake ourselves, and the others too: there may be more than we have room for."""
        names = sorted(set(queues))
        if names:
            self._on_ready(names)
            await self._store.call(self._store.store.notify, [f"ready:{name}" for name in names])


def jittered(seconds: float) -> float:
    """Return about so many seconds, so that a fleet does not act in step."""
    return seconds * random.uniform(1 - JITTER, 1 + JITTER)
