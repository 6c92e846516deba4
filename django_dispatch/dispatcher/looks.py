"""When to look at the table for READY runs: at wakeups, at polls, and after each LISTEN. On the dispatcher's loop."""

import time
from collections.abc import Callable, Sequence

from django.db import Error as DatabaseError

from .backoff import Backoff
from .claims import Claims
from .housekeeping import jittered
from .queues import Queues
from .store_thread import StoreThread
from .trouble import Trouble

# So many times longer is the pause between polls while the listening connection is proved good, and after a while in
# which no wakeup came: where one came, another may have been lost.
LISTENING_FACTOR = 5
QUIET_SECONDS = 10.0


class Looks:
    """Has the claims loop look, at the queues that are served. ``may_claim`` says whether anything is to be claimed."""

    def __init__(
        self,
        queues: Queues,
        claims: Claims,
        store: StoreThread,
        trouble: Trouble,
        *,
        poll_seconds: float,
        is_burst: bool,
        may_claim: Callable[[], bool],
        is_listening: Callable[[], bool],
    ) -> None:
        self._queues = queues
        self._claims = claims
        self._store = store
        self._trouble = trouble
        self._poll_seconds = poll_seconds
        self._is_burst = is_burst
        self._may_claim = may_claim
        self._is_listening = is_listening
        self._woken_at = 0.0

    def on_ready(self, names: Sequence[str]) -> None:
        """These queues have READY runs now."""
        self._woken_at = time.monotonic()
        if self._queues.add(names):
            self._claims.look()

    async def poll(self) -> float:
        """Look as if wakeups had come; return in how many seconds to do so again."""
        is_any = self._is_burst or not self._queues.learns  # a burst wants to know that there is nothing
        if self._queues.learns:
            names = await self._store.call(self._store.store.ready_queues)
            self._queues.add(names)
            is_any = is_any or bool(names)
        self._claims.is_claiming = self._may_claim()  # from the first poll on: the queues are known
        if is_any:
            self._claims.look()
        return self.pause()

    def polled(self, names: Sequence[str]) -> None:
        """The table has been looked at, and all these queues have READY runs: there need be no poll now."""
        if self._queues.add(names) or self._is_burst:
            self._claims.look()

    def pause(self) -> float:
        """Return for how many seconds the table need not be looked at if no wakeup comes."""
        is_quiet = time.monotonic() - self._woken_at > QUIET_SECONDS
        return jittered(self._poll_seconds * (LISTENING_FACTOR if is_quiet and self._is_listening() else 1))

    async def look_afresh(self) -> None:
        """After LISTEN, look once for what was missed before, in queues yet unknown too; the next poll may be far."""
        backoff = Backoff()
        while True:
            try:
                await self.poll()
                return self._trouble.succeeded("look")
            except DatabaseError as error:
                self._trouble.failed("look", error)
                await self._trouble.pause(backoff.next_seconds())
