"""What wakes a dispatcher: wakeups from PostgreSQL and from Redis, and what each of them has done. On its loop."""

from collections.abc import Coroutine, Sequence
from typing import TYPE_CHECKING, Any

from ..wakeups.arq import ArqListener
from ..wakeups.base import Wakeup
from . import process
from .bell import open_bell

if TYPE_CHECKING:
    from ..wakeups.pg_notify import Listener
    from .service import Dispatcher


class Ears:
    """The listeners that the settings name. What they bring is done by the dispatcher's other parts."""

    def __init__(self, dispatcher: "Dispatcher") -> None:
        self._dispatcher = dispatcher
        self.listener: Listener | None = None
        self.bell: ArqListener | None = None

    def open(self) -> None:
        """Make the listeners, when all parts are there; nothing is connected yet."""
        self.listener = self._open_listener()
        self.bell = self._open_bell()

    def _open_listener(self) -> "Listener | None":
        it = self._dispatcher
        if "pg_notify" not in it.settings.wakeups:
            return None
        from .listening import open_listener  # who does not listen needs no driver of PostgreSQL

        return open_listener(
            it.settings,
            it.store,
            it.trouble,
            it.stats,
            on_wakeup=lambda wakeup: self._on_wakeup("pg_notify", wakeup),
            on_connected=self._on_connected,
            on_message=it.answering.on_message,
        )

    def _open_bell(self) -> ArqListener | None:
        it = self._dispatcher
        if "arq" not in it.settings.wakeups:
            return None
        return open_bell(
            it.settings,
            it.stats,
            on_wakeup=lambda wakeup: self._on_wakeup("arq", wakeup),
            on_connected=self._on_connected,
        )

    def tasks(self) -> dict[str, Coroutine[Any, Any, None]]:
        """Return what is to run as long as the dispatcher does, by name."""
        found: dict[str, Coroutine[Any, Any, None]] = {}
        if self.listener is not None:
            found["listener"] = self.listener.run()
        if self.bell is not None:
            found["bell"] = self.bell.run()
        return found

    def is_listening(self) -> bool:
        """Return whether PostgreSQL's wakeups are proved to arrive."""
        return self.listener is not None and self.listener.is_proved

    def on_ready(self, queues: Sequence[str]) -> None:
        """These queues have READY runs since we looked after them; housekeeping tells the others over PostgreSQL."""
        self._dispatcher.looks.on_ready(queues)
        if self.bell is not None:
            for queue in queues:
                self._dispatcher.tasks.soon("ring", self.bell.ring(Wakeup("ready", queue)))

    def look_at_all(self) -> None:
        """Look for what no wakeup has told: have the next poll and sweep now."""
        self._dispatcher.housekeeping.poll_soon()
        self._dispatcher.housekeeping.admission.sweep_soon()

    def _on_connected(self) -> None:
        """Look for what no wakeup has told."""
        self._dispatcher.housekeeping.learn_neighbours()
        self._dispatcher.tasks.own("look afresh", self._dispatcher.looks.look_afresh())

    def _on_wakeup(self, source: str, wakeup: Wakeup) -> None:
        it = self._dispatcher
        it.stats.wakeups_received[source, wakeup.kind] += 1
        if wakeup.kind == "ready":
            it.looks.on_ready([wakeup.value])
        elif wakeup.kind == "run":
            it.housekeeping.poll_soon()
        elif wakeup.kind == "scheduled":
            it.housekeeping.promote_soon()
        elif wakeup.kind == "blocked":
            it.housekeeping.admission.admit_soon([wakeup.value])
        elif wakeup.kind == "schedule":
            it.housekeeping.schedules_soon()
        elif wakeup.kind == "cancel" and wakeup.value == str(it.claims.lease_id):
            it.tasks.soon("cancel", it.look_for_cancellations())
        elif wakeup.kind == "lease" and wakeup.value == process.host_name():
            it.housekeeping.learn_neighbours()
