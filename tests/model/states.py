"""What the model knows of the world: the run, the leases and two dispatchers, at one moment; and what may never be."""

from typing import NamedTuple

TTL = 3
MARGIN = 1
GRACE = 1
MAX_INTERRUPTIONS = 2
OLDEST = 2
"""Older leases and claims are as good as this old: nothing in the database fits them any more."""
NO_ROW = -9

# Plain strings, not enumerations, for speed: their hashes are kept.
READY, RUNNING, SUCCESSFUL, FAILED = "READY", "RUNNING", "SUCCESSFUL", "FAILED"
DEAD, FREE, HOLDING, LOST = "dead", "without a lease", "holding a lease", "grounding"
CLAIMED, ALIVE, ORPHANED, RETURNED, ENDED = "claimed", "alive", "orphaned", "returned", "ended"
RENEW, CLAIM, FINISH, LOOK = "renewal", "claim", "finish", "look at what it holds"


class Violation(Exception):
    """A rule is broken; the text says which, ``step`` by what, if that never came to a state."""

    def __init__(self, rule: str, step: str = "") -> None:
        super().__init__(rule)
        self.step = step


class Flight(NamedTuple):
    """A claimed run in a dispatcher's hands. Its body is ALIVE or ORPHANED; or was, and that is to be written."""

    stage: str
    lease: int
    claim: int


class Call(NamedTuple):
    """A statement under way; ``is_done``: only its reply still is. ``age``: ticks since a renewal was sent.

    ``stage`` is that of a body whose outcome is written; or RUNNING, if a look has found the run held.
    """

    verb: str
    lease: int = 0
    claim: int = 0
    stage: str = ""
    is_done: bool = False
    age: int = 0


class Dispatcher(NamedTuple):
    """``claims`` are the statements of the claims under way, ``ghosts`` those given up by their sender.

    ``rows`` is what is left of its newest and previous lease.
    """

    phase: str = DEAD
    deadline: int = 0
    keeper: tuple[()] | Call = ()
    claims: tuple[Call, ...] = ()
    ghosts: tuple[Call, ...] = ()
    flight: tuple[()] | Flight = ()
    must_reconcile: bool = False
    must_again: bool = False
    rows: tuple[int, int] = (NO_ROW, NO_ROW)


class State(NamedTuple):
    """``holder`` is whose lease a RUNNING run points to: dispatcher and lease; ``has_begun``: so has its body."""

    status: str
    holder: tuple[int, int]
    interruptions: int
    dispatchers: tuple[Dispatcher, Dispatcher]
    has_begun: bool = False


NOBODY = (-1, 0)
START = State(READY, NOBODY, 0, (Dispatcher(), Dispatcher()))


def check(state: State) -> None:
    """Raise Violation if a rule does not hold in this state."""
    alive = [(me, me.flight) for me in state.dispatchers if me.flight and me.flight.stage in (ALIVE, ORPHANED)]
    if len(alive) > 1:
        raise Violation("two bodies of one run are alive")
    for me, flight in alive:
        if is_final(state):
            raise Violation("a run is final, and its body is alive")
        if left_of(me, flight.lease) <= 0:
            raise Violation("a body is alive whose lease is not")
    if is_final(state):
        for me in state.dispatchers:
            is_answered = any(call[:2] == (CLAIM, 0) and call.is_done for call in me.claims)
            if me.deadline > 0 and (is_answered or me.flight[:2] == (CLAIMED, 0)):
                raise Violation("a run is final, and its body may yet start")


def is_final(state: State) -> bool:
    return state.status in (SUCCESSFUL, FAILED)


def with_dispatcher(state: State, d: int, me: Dispatcher) -> State:
    status, holder, interruptions, (a, b), has_begun = state  # not _replace(), for speed
    return State(status, holder, interruptions, (me, b) if d == 0 else (a, me), has_begun)


def left_of(me: Dispatcher, lease: int) -> int:
    return me.rows[lease] if lease < OLDEST else NO_ROW


def in_order(*calls: Call) -> tuple[Call, ...]:
    """Which of them was sent first does not matter."""
    return tuple(sorted(calls)) if len(calls) > 1 else calls


def sent(me: Dispatcher, call: Call) -> Dispatcher:
    """One more statement of the claims is under way."""
    return me._replace(claims=in_order(*me.claims, call))


def answered(me: Dispatcher, call: Call) -> Dispatcher:
    """One statement less is under way."""
    left = list(me.claims)
    left.remove(call)
    return me._replace(claims=tuple(left))


def a_lease_later(me: Dispatcher) -> Dispatcher:
    """It takes a new lease: what is of the newest is of the previous one now."""

    def aged(calls: tuple[Call, ...]) -> tuple[Call, ...]:
        return in_order(*(call._replace(lease=min(call.lease + 1, OLDEST)) for call in calls))

    flight = me.flight and me.flight._replace(lease=min(me.flight.lease + 1, OLDEST))
    return me._replace(claims=aged(me.claims), ghosts=aged(me.ghosts), flight=flight)


def a_claim_later(state: State) -> State:
    """The run is claimed once more: what is of the newest claim is of the one before now."""

    def aged(calls: tuple[Call, ...]) -> tuple[Call, ...]:
        return in_order(*(call._replace(claim=1) if call.verb != CLAIM or call.is_done else call for call in calls))

    a, b = (
        me._replace(claims=aged(me.claims), ghosts=aged(me.ghosts), flight=me.flight and me.flight._replace(claim=1))
        for me in state.dispatchers
    )
    return state._replace(dispatchers=(a, b))


def given_up(state: State, status: str) -> State:
    """Nobody holds the run any more."""
    return state._replace(status=status, holder=NOBODY, has_begun=False)


def after_a_loss(state: State) -> State:
    """_LOSE in store/statements.py."""
    interruptions = state.interruptions + 1
    status = FAILED if interruptions >= MAX_INTERRUPTIONS else READY
    return given_up(state, status)._replace(interruptions=interruptions)
