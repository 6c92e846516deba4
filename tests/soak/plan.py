"""The schedule of faults: made from the seed alone, before anything begins. Pure."""

import random
from collections.abc import Sequence
from dataclasses import dataclass

LEASE_TTL_SECONDS = 3.0
MAX_INTERRUPTIONS = 4
DECK_SECONDS = 60.0

# name: the host that it believes to be on, and whether its way to the database leads through the relay.
FLEET = {"a": None, "b": None, "far": "elsewhere", "relayed": "beyond"}
ROLES = ("claims", "store", "keeper", "listener", "executor")

# Dealt once in a minute, in any order.
DECK = (
    *["kill executor"] * 3,
    *["kill dispatcher"] * 3,
    *["terminate"] * 2,
    "kill zygote",
    "hurry",
    "freeze dispatcher",
    "freeze executor",
    "freeze family",
    *[f"cut {role}" for role in ROLES],
    "relay swallows",
    *["relay holds"] * 2,
    "relay refuses",
    "database restarts fast",
    "database restarts immediately",
)
# What lasts, and is undone then: for so many lease times. After two and a half, others have the runs.
LASTING = {"freeze": (1.2, 3.0), "relay": (0.3, 3.5), "database": (0.1, 0.8)}


@dataclass(frozen=True)
class Fault:
    """One fault: when (seconds from the beginning), what, to whom, and for how long."""

    at: float
    kind: str
    target: str
    seconds: float = 0.0
    pick: float = 0.0
    """From 0 to 1: which of the target's executors."""

    def __str__(self) -> str:
        return f"{self.kind} {self.target}" + (f" for {self.seconds:.1f} s" if self.seconds else "")


def plan(seed: int, seconds: float) -> Sequence[Fault]:
    """Return the faults of so many seconds, in their order. The longer plan of a seed begins with the shorter one."""
    dice = random.Random(f"{seed}/faults")
    faults: list[Fault] = []
    begin = 0.0
    while begin < seconds:
        deck = list(DECK)
        dice.shuffle(deck)
        step = DECK_SECONDS / len(deck)
        faults += [_fault(dice, begin + (place + dice.random()) * step, kind) for place, kind in enumerate(deck)]
        begin += DECK_SECONDS
    return [fault for fault in sorted(faults, key=lambda fault: fault.at) if fault.at < seconds]


def _fault(dice: random.Random, at: float, kind: str) -> Fault:
    target = dice.choice(list(FLEET))
    if kind.startswith("relay"):
        target = "relayed"
    elif kind.startswith(("cut", "database")):
        target = "all"
    least, most = LASTING.get(kind.split(maxsplit=1)[0], (0.0, 0.0))
    return Fault(at, kind, target, dice.uniform(least, most) * LEASE_TTL_SECONDS, dice.random())
