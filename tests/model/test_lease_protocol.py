"""The lease protocol keeps its rules in every interleaving; and each of its guards is needed for that."""

import gc
from collections.abc import Iterator

import pytest

from .explore import explore
from .guards import GUARDS
from .lease_protocol import Protocol

OVERLAP = "a body is alive whose lease is not"
FALSE = "a claim is ended by another one's outcome"
GIVEN_BACK = "a run whose body has begun is given back as one that had not"
LOSS = "the run is lost: it can never end"

# What goes wrong without a guard. The others are second lines: without one of them nothing does, by the first.
NEEDED = {
    "switch": OVERLAP,
    "margin": OVERLAP,
    "clock": OVERLAP,
    "kill": OVERLAP,
    "fence": OVERLAP,
    "expiry": OVERLAP,
    "dead": OVERLAP,
    "known": "two bodies of one run are alive",
    "epoch in claim": FALSE,
    "epoch at finish": FALSE,
    "live in claim": "a run is claimed under a lease that is not live",
    "live in renew": "an expired lease lives again",
    "reconcile": LOSS,
    "lost look": GIVEN_BACK,
    "asked meanwhile": LOSS,
    "again": LOSS,
    "look after": GIVEN_BACK,
    "look alone": GIVEN_BACK,
    "orphans": LOSS,
}
DEPTH = 13


@pytest.fixture(autouse=True)
def uncollected() -> Iterator[None]:
    """Every state is kept until the end: looking for garbage among them takes a quarter of the time."""
    gc.disable()
    yield
    gc.enable()


@pytest.mark.slow
def test_no_interleaving_breaks_a_rule_and_from_each_the_run_can_end() -> None:
    """The whole space: A late, cut off, frozen or crashed in any way at any step, beside a B that takes over."""
    found = explore(Protocol(statements=1))
    print(found)
    assert not found.violation, str(found)
    assert found.states > 100_000, "the model has lost most of its states"


@pytest.mark.slow
def test_no_interleaving_of_two_statements_breaks_a_rule_in_any_two_faults() -> None:
    """A's claims have two statements under way. (Three faults were looked at, too: 1,600,677 states.)"""
    found = explore(Protocol(), most_faults=2)
    print(found)
    assert not found.violation, str(found)
    assert found.states > 100_000, "the model has lost most of its states"


def test_no_short_interleaving_of_two_troubled_dispatchers_breaks_a_rule() -> None:
    found = explore(Protocol(is_b_prompt=False), depth=DEPTH)
    print(found)
    assert not found.violation, str(found)
    assert found.states > 1_000, "the model has lost most of its states"


@pytest.mark.parametrize("guard", NEEDED)
def test_without_a_guard_a_rule_breaks(guard: str) -> None:
    """Shown with the shortest way there; -s prints it."""
    found = explore(Protocol([guard]), most_faults=1 if NEEDED[guard] == LOSS else None)
    print(f"Without {guard!r} ({GUARDS[guard]}):\n{found}")
    assert found.violation == NEEDED[guard], str(found)
    assert len(found.trace) == found.depth


def test_two_bodies_of_one_run_are_alive_when_the_switch_is_late() -> None:
    """What the protocol rests on: a zygote that is frozen too, as with its whole machine, cannot act."""
    found = explore(Protocol(has_late_zygote=True))
    print(found)
    assert found.violation == OVERLAP, str(found)
