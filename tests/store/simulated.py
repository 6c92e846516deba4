"""What is made up for the verbs in any order: runs, endings of bodies, and dispatchers that believe things."""

from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from hypothesis import strategies as st

from django_dispatch.store.base import NewRun, Settlement, Store

DISPATCHERS = 3
HOUR = 3600.0

news = st.builds(
    NewRun,
    task=st.just("shop.add"),
    args=st.just("[]"),
    kwargs=st.just("{}"),
    max_attempts=st.none(),
    timeout_seconds=st.none(),
    run_after=st.none(),
    meta=st.just("{}"),
    queue=st.sampled_from(["a", "b"]),
    priority=st.sampled_from([0, 0, 5]),
    delay_seconds=st.sampled_from([None, None, None, HOUR]),
    on_lost=st.sampled_from(["requeue", "requeue", "fail"]),
)
dispatchers = st.integers(0, DISPATCHERS - 1)
orders = st.sampled_from([["a", "b"], ["b", "a"], ["a"], ["b"]])
# (status, and what goes with it)
endings: Any = st.sampled_from(
    [
        {"status": "SUCCESSFUL", "result": "1"},
        {"status": "SUCCESSFUL", "result": "1"},
        {"status": "FAILED", "error": '{"attempt": 1}', "has_failed": True},
        {"status": "SCHEDULED", "error": '{"attempt": 1}', "has_failed": True, "delay_seconds": HOUR},
        {"status": "READY", "was_started": False},
        {"status": "READY", "was_interrupted": True},
        {"status": "CANCELLED"},
    ]
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
    last_batch: tuple[UUID, list[Settlement]] | None = None
    is_fenced: bool = False
    """Its deadline has passed; it may not know that yet."""

    def forget(self) -> None:
        self.lease, self.last_batch, self.is_fenced = None, None, False
        self.claimed.clear()
        self.bodies.clear()
        self.unwritten.clear()

    def knows(self, token: Token) -> bool:
        return token in self.claimed or token in self.bodies or token in self.unwritten
