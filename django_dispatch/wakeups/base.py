"""What a wakeup says, on whatever channel it travels; pure, in every process.

A wakeup is a hint and carries no work: who misses it finds the same in the table, one poll later.
"""

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal, get_args

from ..conf import WAKEUP_CHANNEL

CHANNEL = WAKEUP_CHANNEL

# In the place of many keys at which runs wait. No key begins so but a queue's, and no queue has an empty name.
ANY_KEY = "queue:"
MOST_KEYS = 20

WakeupKind = Literal["ready", "run", "scheduled", "blocked", "cancel", "lease", "schedule", "test"]
KINDS: tuple[WakeupKind, ...] = get_args(WakeupKind)


@dataclass(frozen=True, slots=True)
class Wakeup:
    """``ready``: a queue may have READY runs; ``run``: this run may be one; ``scheduled``: a queue has one that is due
    later; ``blocked``: a run waits at a limit, or a place there is free.

    ``cancel``: a lease's runs were asked to stop; ``lease``: a dispatcher of a host took a lease; ``schedule``: the
    rule of one has changed; ``test``: an echo.
    """

    kind: WakeupKind
    value: str

    def encode(self) -> str:
        """Return the payload: the kind, a colon, and the queue, run, key, lease, host or (for a test) any text."""
        return f"{self.kind}:{self.value}"

    @classmethod
    def parse(cls, payload: str) -> "Wakeup | None":
        """Read a payload; None if it is not one of ours, for anybody may notify on any channel."""
        found, _, value = payload.partition(":")
        for kind in KINDS:
            if found == kind and value:
                return cls(kind, value)
        return None


def blocked_wakeups(keys: Collection[str]) -> list[Wakeup]:
    """Return what tells of these keys: each of a few, or that there are many."""
    if len(keys) > MOST_KEYS:
        return [Wakeup("blocked", ANY_KEY)]
    return [Wakeup("blocked", key) for key in keys]
