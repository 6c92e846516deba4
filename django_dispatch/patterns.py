"""Which queues a list of patterns means: names, ``mail*``, and excludes such as ``-mail.slow``. Pure."""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from uuid import UUID

# Of one dispatcher alone: the runs that are to be made by it and by nobody else. No pattern means such a queue.
PRIVATE_PREFIX = "lease:"


def serves(patterns: Sequence[str], queue: str) -> bool:
    """Return whether one pattern means the queue, and no exclude does; excludes alone leave all the others."""
    if queue.startswith(PRIVATE_PREFIX):
        return False
    included, excluded = _compiled(tuple(patterns))
    return included.fullmatch(queue) is not None and excluded.fullmatch(queue) is None


def private_queue(lease_id: UUID) -> str:
    """Return the queue that only the dispatcher with this lease serves."""
    return f"{PRIVATE_PREFIX}{lease_id}"


def shown(queue: str) -> str:
    """Return the name under which a queue is counted: private ones are as many as there were dispatchers."""
    return PRIVATE_PREFIX.rstrip(":") if queue.startswith(PRIVATE_PREFIX) else queue


def is_plain(pattern: str) -> bool:
    """Return whether the pattern is the name of one queue."""
    return "*" not in pattern and not pattern.startswith("-")


def plain_names(patterns: Sequence[str]) -> list[str] | None:
    """Return the queues if all are known by name; None if they are to be found out."""
    includes = [pattern for pattern in patterns if not pattern.startswith("-")]
    return [name for name in includes if serves(patterns, name)] if includes and all(map(is_plain, includes)) else None


def weight_of(queue: str, weights: Mapping[str, int]) -> int:
    """Return the weight of the queue: by its own name, else by the first pattern that means it, else 1."""
    if queue in weights:
        return weights[queue]
    return next((weight for pattern, weight in weights.items() if serves([pattern], queue)), 1)


@lru_cache(maxsize=256)
def _compiled(patterns: tuple[str, ...]) -> tuple[re.Pattern[str], re.Pattern[str]]:
    includes = [pattern for pattern in patterns if not pattern.startswith("-")]
    excludes = [pattern[1:] for pattern in patterns if pattern.startswith("-")]
    return _either(includes or ["*"]), _either(excludes)


def _either(patterns: Sequence[str]) -> re.Pattern[str]:
    # Without a branch nothing must match, not even the empty text.
    branches = [".*".join(map(re.escape, pattern.split("*"))) for pattern in patterns]
    return re.compile("|".join(branches) if branches else r"(?!)", re.DOTALL)
