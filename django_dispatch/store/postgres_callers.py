"""What callers do on PostgreSQL: see Callers."""

from .postgres_atomic import finish
from .postgres_enqueue import active_dispatchers, cancel, enqueue, enqueue_and_wake, enqueue_many, rerun
from .postgres_prune import count_prunable, prune
from .postgres_queues import pause, resume
from .postgres_unique import enqueue_unique

__all__ = [
    "active_dispatchers",
    "cancel",
    "count_prunable",
    "enqueue",
    "enqueue_and_wake",
    "enqueue_many",
    "enqueue_unique",
    "finish",
    "pause",
    "prune",
    "rerun",
    "resume",
]
