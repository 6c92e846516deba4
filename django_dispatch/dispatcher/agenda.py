"""The agenda: one statement says what there is to do, so that what has nothing to do need not ask. On the loop.

Each step still has a timer of its own, which only an answer puts off: without answers each comes to its turn by itself.
"""

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from . import process
from .admission import KEYS_AT_ONCE
from .housekeeping import EXPIRE_SECONDS, RECLAIM_GRACE_SECONDS, jittered

if TYPE_CHECKING:
    from .service import Dispatcher

# A step looks by itself when it was not told anything for so many times the pause between two answers.
OWN_LOOK_FACTOR = 1.5


class Agenda:
    """A step of housekeeping that spares the others theirs."""

    def __init__(self, dispatcher: "Dispatcher") -> None:
        self._dispatcher = dispatcher

    def steps(self) -> dict[str, tuple[float, Callable[[], Awaitable[float]]]]:
        """Return the step with its period in seconds."""
        return {"agenda": (0.0, self.read)}

    async def read(self) -> float:
        """Tell each step when it has something to do; return in how many seconds to ask again."""
        it = self._dispatcher
        agenda = await it.store.call(
            it.store.store.agenda,
            host=process.host_name(),
            tasks=list(it.pool.facts),
            grace_seconds=RECLAIM_GRACE_SECONDS,
            limit=KEYS_AT_ONCE,
        )
        pause = it.looks.pause()
        longest = pause * OWN_LOOK_FACTOR
        housekeeping = it.housekeeping
        housekeeping.note_neighbours(agenda.leases)
        it.looks.polled(agenda.ready_queues)
        housekeeping.put_off("poll", None, longest=longest)
        housekeeping.put_off("promote", agenda.promote_seconds, longest=longest)
        housekeeping.put_off("schedules", agenda.schedule_seconds, longest=longest)
        housekeeping.put_off("admit", housekeeping.admission.swept(agenda.blocked_keys, longest), longest=longest)
        housekeeping.put_off("expire", agenda.expire_seconds, longest=min(longest, EXPIRE_SECONDS))
        is_any_lost = agenda.has_lost or bool(housekeeping.lost_leases)
        sweep_seconds = jittered(housekeeping.reclaim_seconds)
        housekeeping.put_off("reclaim", 0.0 if is_any_lost else None, longest=min(longest, sweep_seconds))
        return pause
