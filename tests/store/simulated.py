"""What is made up for the verbs in any order: runs, endings of bodies, and dispatchers that believe things."""

from dataclasses import dataclass, field
from enum import Enum
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from django_dispatch.store.base import Store
from django_dispatch.store.values import NewRun, Settlement

DISPATCHERS = 3
HOUR = 3600.0

PLAIN = [NewRun("shop.add", queue=queue) for queue in ("a", "b")]
KEYS = {"key:two": 2, "serial:one": 1}
KEYED = [
    PLAIN[0]._replace(concurrency_key="key:two", concurrency_limit=2),
    PLAIN[0]._replace(concurrency_key="serial:one", concurrency_limit=1, on_duplicate="serial"),
]
news = st.builds(
    lambda kind, **options: kind._replace(**options),
    kind=st.sampled_from([PLAIN[0], PLAIN[0], PLAIN[0], PLAIN[0], *KEYED]),
    queue=st.sampled_from(["a", "b"]),
    priority=st.sampled_from([0, 0, 5]),
    delay_seconds=st.sampled_from([None, None, None, HOUR]),
    on_lost=st.sampled_from(["", "", "fail"]),
    fair_key=st.sampled_from([None, "x", "x", "y"]),
)
dispatchers = st.sampled_from([0, 0, 0, 1, 1, 2])  # mostly the same one, so that much happens to it
orders = st.sampled_from([["a", "b"], ["b", "a"], ["a"], ["b"]])
# (status, and what goes with it)
endings: Any = st.sampled_from(
    [
        {"status": "SUCCESSFUL", "result": "1"},
        {"status": "SUCCESSFUL", "result": "1"},
        {"status": "FAILED", "error": '{"attempt": 1}', "has_failed": True},
        {"status": "SCHEDULED", "error": '{"attempt": 1}', "has_failed": True, "delay_seconds": HOUR},
        {"status": "READY", "was_started": False},
        {"status": "READY", "was_started": False},
        {"status": "READY", "was_interrupted": True},
        {"status": "READY", "was_interrupted": True},
        {"status": "CANCELLED"},
    ]
)


class Fate(Enum):
    """What becomes of a statement: it is answered, or is not; or it is given up, and carried out later or never."""

    ANSWERED = 1
    UNANSWERED = 2
    LOST = 3


@dataclass(frozen=True)
class Turn:
    """One dispatcher's bodies end, and it makes an exchange."""

    d: int
    endings: list[dict[str, Any]]
    queues: list[str]
    limit: int
    fate: Fate
    is_beside_a_transaction: bool


shifts = st.lists(
    st.builds(
        Turn,
        d=dispatchers,
        endings=st.lists(endings, min_size=1, max_size=3),
        queues=orders,
        limit=st.integers(1, 3),
        fate=st.sampled_from([Fate.ANSWERED, Fate.ANSWERED, Fate.ANSWERED, Fate.UNANSWERED, Fate.LOST]),
        is_beside_a_transaction=st.booleans(),
    ),
    min_size=5,
    max_size=10,
)
Token = tuple[int, int]


@dataclass
class SimulatedDispatcher:
    """What one dispatcher believes. Its ``bodies`` run; its zygote kills them before the lease can expire."""

    store: Store
    lease: UUID | None = None
    claimed: list[Token] = field(default_factory=list)
    bodies: set[Token] = field(default_factory=set)
    unwritten: dict[Token, Settlement] = field(default_factory=dict)
    sent: list[tuple[UUID, list[Settlement]]] = field(default_factory=list)
    """Each batch that it ever sent, with the lease: any of them may come, or come once more, at any time."""
    is_fenced: bool = False
    """Its deadline has passed; it may not know that yet."""

    def forget(self) -> None:
        self.lease, self.is_fenced = None, False
        self.claimed.clear()
        self.bodies.clear()
        self.unwritten.clear()

    def drop(self, token: Token) -> None:
        """Know nothing of the claim any more."""
        self.claimed = [one for one in self.claimed if one != token]
        self.bodies.discard(token)
        self.unwritten.pop(token, None)

    def knows(self, token: Token) -> bool:
        return token in self.claimed or token in self.bodies or token in self.unwritten
