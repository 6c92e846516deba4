"""Pruning by hand: count what would go, or delete it; in the caller's process, each batch a commit of its own."""

from collections.abc import Iterator

from django.db import connections

from . import housekeeping
from .prunable import Prunable

COUNTING = {
    "default": housekeeping.COUNT_OLD,
    "own": housekeeping.COUNT_OLD_OWN,
    "regardless": housekeeping.COUNT_OLD_REGARDLESS,
}
DELETING = {
    "default": housekeeping.PRUNE,
    "own": housekeeping.PRUNE_OWN,
    "regardless": housekeeping.PRUNE_REGARDLESS,
}


def count_prunable(using: str, prunable: Prunable) -> int:
    """Return how many there are."""
    with connections[using].cursor() as cursor:
        cursor.execute(COUNTING[prunable.kind], prunable._asdict())
        return int(cursor.fetchone()[0])


def prune(using: str, prunable: Prunable, *, limit: int) -> Iterator[int]:
    """Delete them in batches, and yield how many went with each."""
    while True:
        with connections[using].cursor() as cursor:
            cursor.execute(DELETING[prunable.kind], {**prunable._asdict(), "limit": limit})
            deleted = cursor.rowcount
        yield deleted
        if deleted < limit:
            return
