"""Counts the runs that this process enqueues, and tells whoever collects them. In every process but the dispatcher.

A process of the web counts for itself, unless PROMETHEUS_MULTIPROC_DIR is set: then for all that share it. An executor
reports each count to its dispatcher at once, which has those of all its executors.
"""

import os
import threading
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import TYPE_CHECKING

from . import can_be_exposed
from .families import MOST_QUEUES, MOST_TASKS, Family, Names, counter

if TYPE_CHECKING:
    from .exposition import SharedCounter

NAME = "django_dispatch_runs_enqueued_total"
HELP = "Runs enqueued by Python code, or for messages, once committed."
LABELS = ("task", "queue")

Report = Callable[[str, str, int], None]


class Enqueued:
    """Runs enqueued here, by task and queue. Any thread may count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tasks, self._queues = Names(MOST_TASKS), Names(MOST_QUEUES)
        self._counts: Counter[tuple[str, str]] = Counter()
        self.report: Report | None = None
        """Gets each count, in the place of this, if set."""

    def count(self, task: str, queue: str, number: int) -> None:
        """Count runs that are committed."""
        if self.report is not None:
            return self.report(task, queue, number)
        with self._lock:
            labels = self._tasks.admit(task), self._queues.admit(queue)
            self._counts[labels] += number
        if shared := _shared():
            shared.add(labels, number)

    def family(self) -> Family:
        """Return what was counted."""
        if shared := _shared():
            return shared.family()
        with self._lock:
            return counter(NAME, HELP, LABELS, self._counts)


@cache
def _shared() -> "SharedCounter | None":
    if os.environ.get("PROMETHEUS_MULTIPROC_DIR") and can_be_exposed():
        from .exposition import SharedCounter

        return SharedCounter(NAME, HELP, LABELS)
    return None


enqueued = Enqueued()
