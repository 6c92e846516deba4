"""What there is in the queues, as families of figures: the same from every dispatcher and every process of the web."""

from collections.abc import Iterable, Iterator
from typing import Protocol

from ..patterns import shown
from .families import MOST_QUEUES, Family, Names, gauge

FRESH_SECONDS = 5.0
SHARE = 0.01  # of the time that passes, at most, is spent on asking: with many queues and priorities it takes a while
PATIENCE_SECONDS = 0.5  # of a scrape; then the last known figures must do


class OneBacklog(Protocol):
    """The READY runs of one queue."""

    @property
    def queue(self) -> str: ...
    @property
    def ready(self) -> int: ...
    @property
    def oldest_seconds(self) -> float: ...


def backlog_families(backlogs: Iterable[OneBacklog], age_seconds: float | None) -> Iterator[Family]:
    """Return what the database said, and how long ago that was; of too many queues, some together as ``other``."""
    names = Names(MOST_QUEUES)
    ready: dict[str, int] = {}
    oldest: dict[str, float] = {}
    for backlog in backlogs:
        queue = names.admit(shown(backlog.queue))
        ready[queue] = ready.get(queue, 0) + backlog.ready
        oldest[queue] = max(oldest.get(queue, 0.0), backlog.oldest_seconds + (age_seconds or 0.0))
    yield gauge("django_dispatch_queue_ready_runs", "READY runs, 10,000 or more shown as 10,000.", ("queue",), ready)
    yield gauge(
        "django_dispatch_queue_oldest_seconds", "How long the oldest READY run has been due.", ("queue",), oldest
    )
    if age_seconds is not None:
        yield gauge(
            "django_dispatch_queue_figures_age_seconds",
            "How old the two figures above are: the database may not answer.",
            (),
            {(): age_seconds},
        )
