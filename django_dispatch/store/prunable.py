"""Which runs a pruning by hand means; plain values, in the caller's process."""

from collections.abc import Mapping
from typing import Literal, NamedTuple


class Prunable(NamedTuple):
    """Runs to be pruned, in words and by what they have.

    ``default``: they ended longer than ``age`` seconds ago and have no retention of their own; ``own``: they are past
    the one they have; ``regardless``: they ended longer ago and have one, whatever it says. None means any.
    """

    what: str
    kind: Literal["default", "own", "regardless"]
    status: str | None
    task: str | None
    age: float | None = None


def past_retention(retention: Mapping[str, float | None], *, status: str | None, task: str | None) -> list[Prunable]:
    """Return what is past its retention, as dispatchers prune it; only of this status or task, if given."""
    own = Prunable("past the retention of their own", "own", status, task)
    return [own] + [
        Prunable(word, "default", word, task, age)
        for word, age in retention.items()
        if age is not None and status in (None, word)
    ]


def older_than(seconds: float, *, statuses: list[str], task: str | None) -> list[Prunable]:
    """Return what ended longer ago, whatever its retention."""
    found = []
    for word in statuses:
        found.append(Prunable(word, "default", word, task, seconds))
        kept = f"{word}, with a retention of their own"
        found.append(Prunable(kept, "regardless", word, task, seconds))
    return found
