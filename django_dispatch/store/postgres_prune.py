"""Pruning by hand: count what would go, or delete it; in the caller's process, each batch a commit of its own."""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from django.db import connections

from . import housekeeping


class Prunable(NamedTuple):
    """Runs to be pruned: how many there are, and how some of them are deleted."""

    what: str
    counting: str
    deleting: str
    params: Mapping[str, Any]


def past_retention(retention: Mapping[str, float | None], *, status: str | None, task: str | None) -> list[Prunable]:
    """Return what is past its retention, as dispatchers prune it; only of this status or task, if given."""
    params = {"status": status, "task": task}
    own = Prunable("past the retention of their own", housekeeping.COUNT_OLD_OWN, housekeeping.PRUNE_OWN, params)
    return [own] + [
        Prunable(word, housekeeping.COUNT_OLD, housekeeping.PRUNE, {"status": word, "task": task, "age": age})
        for word, age in retention.items()
        if age is not None and status in (None, word)
    ]


def older_than(seconds: float, *, statuses: list[str], task: str | None) -> list[Prunable]:
    """Return what ended longer ago, whatever its retention."""
    found = []
    for word in statuses:
        params = {"status": word, "task": task, "age": seconds}
        found.append(Prunable(word, housekeeping.COUNT_OLD, housekeeping.PRUNE, params))
        kept = f"{word}, with a retention of their own"
        found.append(Prunable(kept, housekeeping.COUNT_OLD_REGARDLESS, housekeeping.PRUNE_REGARDLESS, params))
    return found


def count(using: str, prunable: Prunable) -> int:
    """Return how many there are."""
    with connections[using].cursor() as cursor:
        cursor.execute(prunable.counting, prunable.params)
        return int(cursor.fetchone()[0])


def delete(using: str, prunable: Prunable, *, limit: int) -> Iterator[int]:
    """Delete them in batches, and yield how many went with each."""
    while True:
        with connections[using].cursor() as cursor:
            cursor.execute(prunable.deleting, {**prunable.params, "limit": limit})
            deleted = cursor.rowcount
        yield deleted
        if deleted < limit:
            return
