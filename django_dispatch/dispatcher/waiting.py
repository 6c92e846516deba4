"""Says in the database whether this dispatcher waits for wakeups, where ``NOTIFY`` is "idle" or "off". On the loop.

A run may be enqueued by a transaction that does not see yet that we wait, and committed after our last look: nobody
would tell us. So, when we have said that we wait, we look again and again, less and less often, until every transaction
that had begun to write before has ended, and once more. From then on whoever enqueues sees that we wait, and notifies.

One of those may have kept another from notifying, though, that began later: of the table's trigger, one at a time gets
to notify. So all that has a second round, for those that had begun to write before the first was over.
"""

import asyncio
from collections.abc import Awaitable, Callable
from uuid import UUID

from ..conf import DispatchSettings
from .store_thread import StoreThread
from .trouble import Trouble

# Before we say that we do not wait any more: a dispatcher that gets one short run at a time says nothing.
BUSY_SECONDS = 1.0
FIRST_PAUSE_SECONDS = 0.02
LONGEST_PAUSE_SECONDS = 5.0
ROUNDS = 2


class Waiting:
    """A step of housekeeping. ``look`` has the table looked at soon; ``hurry`` has the step done soon."""

    def __init__(
        self,
        store: StoreThread,
        settings: DispatchSettings,
        *,
        own_lease: Callable[[], UUID | None],
        look: Callable[[], None],
        hurry: Callable[[], None],
        trouble: Trouble,
    ) -> None:
        self._store = store
        # Who does not listen waits for nothing.
        is_deaf = settings.notify == "idle" and "pg_notify" not in settings.wakeups
        self._notify = "off" if is_deaf else settings.notify
        self._queues = list(settings.queues or ["*"])
        self._own_lease = own_lease
        self._look = look
        self._hurry = hurry
        self._loop = asyncio.get_running_loop()
        self._busy_since: float | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._said: tuple[UUID, bool] | None = None
        self._mark: int | None = None
        self._rounds_left = 0
        self._pause_seconds = FIRST_PAUSE_SECONDS
        trouble.on_relief(self._say_again)

    def steps(self) -> dict[str, tuple[float, Callable[[], Awaitable[float]]]]:
        """Return the step with its period in seconds, if there is anything to say."""
        return {} if self._notify == "always" else {"waiting": (LONGEST_PAUSE_SECONDS, self.step)}

    @property
    def is_told(self) -> bool:
        """Whether we hear of whatever becomes READY, if we hear anything."""
        if self._notify == "always":
            return True
        return self._mark is None and self._said is not None and self._said == (self._own_lease(), True)

    def on_look(self, is_short: bool) -> None:
        """A look at the table has found less than there was room for (``is_short``), or as much: enough to do."""
        if self._notify != "idle":
            return
        if is_short:
            self._busy_since = None
            if self._said is None or not self._said[1]:
                self._hurry()
        elif self._busy_since is None:
            self._busy_since = self._loop.time()
            if self._timer is None:
                self._timer = self._loop.call_later(BUSY_SECONDS, self._look_at_the_time)

    def _say_again(self) -> None:
        """There was trouble, and what we said may be forgotten: a failover loses the newest commits."""
        self._said = None
        self._hurry()

    def _look_at_the_time(self) -> None:
        self._timer = None
        if self._busy_since is None:
            return
        left_seconds = self._busy_since + BUSY_SECONDS - self._loop.time()
        if left_seconds <= 0:
            self._hurry()
        else:
            self._timer = self._loop.call_later(left_seconds, self._look_at_the_time)

    async def step(self) -> float:
        """Say what is not said yet; return in how many seconds to look whether it still holds."""
        lease_id = self._own_lease()
        if lease_id is None:
            return LONGEST_PAUSE_SECONDS
        is_waiting = self._is_waiting()
        if is_waiting is not None and self._said != (lease_id, is_waiting):
            await self._say(lease_id, is_waiting)
        return LONGEST_PAUSE_SECONDS if self._mark is None else await self._look_for_missed(self._mark)

    def _is_waiting(self) -> bool | None:
        """None: it is too soon to say anything else than before."""
        if self._notify == "off":
            return False
        if self._busy_since is None:
            return True
        return False if self._loop.time() >= self._busy_since + BUSY_SECONDS else None

    async def _say(self, lease_id: UUID, is_waiting: bool) -> None:
        store = self._store.store
        self._said = self._mark = None  # if the call fails, nobody knows what is true
        if not await self._store.call(store.say_waiting, lease_id, queues=self._queues, is_waiting=is_waiting):
            return
        if is_waiting:
            self._mark = await self._store.call(store.mark)
            self._rounds_left = ROUNDS
            self._pause_seconds = FIRST_PAUSE_SECONDS
        self._said = lease_id, is_waiting
        if not is_waiting:
            self._look()  # and sooner again than we did while we would have been told

    async def _look_for_missed(self, mark: int) -> float:
        while has_passed := await self._store.call(self._store.store.has_passed, mark):
            self._rounds_left -= 1
            if not self._rounds_left:
                break
            self._mark = mark = await self._store.call(self._store.store.mark)
        self._look()
        if has_passed:
            self._mark = None
            return LONGEST_PAUSE_SECONDS
        pause, self._pause_seconds = self._pause_seconds, min(2 * self._pause_seconds, LONGEST_PAUSE_SECONDS)
        return pause
