"""The lease protocol in discrete time: two dispatchers, one run, one database. Each step names the code it stands for.

Nothing is obliged to happen. A dispatcher may take its next step at any later time, or never: that is what a frozen
one, a blocked loop, a slow network and a slow database look like. A statement may be under way for any time, be lost,
or be carried out after its sender has given it up; so may its reply. A dispatcher may crash at any moment and be
started again, an executor may die. Only two things are in time, and are what the protocol rests on: within a tick of
the deadline the zygote kills, and within a tick of a dispatcher's crash the kernel does.

Times are what is left, in ticks. A lease is named by how many its dispatcher has taken since (0 is its newest), a claim
by how many there were since (0 is the newest). So the states are finitely many, and all of them can be looked at.
"""

from collections.abc import Collection, Iterator
from typing import NamedTuple

from .guards import GUARDS
from .states import (
    ALIVE,
    CLAIM,
    CLAIMED,
    DEAD,
    ENDED,
    FINISH,
    FREE,
    GRACE,
    HOLDING,
    LOOK,
    LOST,
    MARGIN,
    NO_ROW,
    NOBODY,
    OLDEST,
    ORPHANED,
    READY,
    RENEW,
    RETURNED,
    RUNNING,
    SUCCESSFUL,
    TTL,
    Call,
    Dispatcher,
    Flight,
    State,
    Violation,
    a_claim_later,
    a_lease_later,
    after_a_loss,
    answered,
    given_up,
    in_order,
    is_final,
    left_of,
    sent,
    with_dispatcher,
)


class Step(NamedTuple):
    """What happens, and what is then. A fault may happen; that the run can end must not depend on it."""

    text: str
    state: State
    is_fault: bool = False


class Protocol:
    """The steps from a state.

    ``without`` names guards that are switched off. ``is_b_prompt``: B is never late, loses no lease and does not crash,
    so that the states are few. ``statements`` is how many claims may have under way, and how many given up.
    ``has_late_zygote`` breaks what the protocol rests on.
    """

    def __init__(
        self,
        without: Collection[str] = (),
        *,
        is_b_prompt: bool = True,
        statements: int = 2,
        has_late_zygote: bool = False,
    ) -> None:
        assert GUARDS.keys() >= set(without)
        self._without = frozenset(without)
        self._is_b_prompt = is_b_prompt
        self._statements = statements
        self._has_late_zygote = has_late_zygote
        self._margin = 0 if "margin" in without else MARGIN
        self._grace = 0 if "grace" in without else GRACE

    def steps(self, state: State) -> Iterator[Step]:
        """Return every next step with the state that it leads to; none when the run is final. Raises Violation."""
        if is_final(state):
            return
        for d, me in enumerate(state.dispatchers):
            if d == 1 and self._is_b_prompt:
                yield from self._of_the_prompt(state, me)
            elif me.phase == DEAD:
                yield from self._of_the_dead(state, d, me)
            else:
                yield from self._of_the_keeper(state, d, me)
                yield from self._of_the_claims(state, d, me)
                yield from self._of_the_executor(state, d, me)
                yield Step(f"{'AB'[d]} crashes", with_dispatcher(state, d, self._crashed(me)), is_fault=True)
            for ghost in me.ghosts:
                yield from self._of_the_ghost(state, d, me, ghost)
            yield from self._of_the_sweeps(state, d, me)
        yield from self._of_time(state)

    def canonical(self, state: State) -> State:
        """Return the same for a state and its mirror image, if the two dispatchers are alike."""
        a, b = state.dispatchers
        if self._is_b_prompt or a <= b:
            return state
        holder = state.holder if state.holder == NOBODY else (1 - state.holder[0], state.holder[1])
        return state._replace(dispatchers=(b, a), holder=holder)

    # the keeper

    def _of_the_keeper(self, state: State, d: int, me: Dispatcher) -> Iterator[Step]:
        """LeaseKeeper._step() in dispatcher/lease.py, and Dispatcher._ground() in dispatcher/service.py."""
        name = "AB"[d]
        if me.keeper:
            yield from self._of_the_renewal(state, d, me, me.keeper)
        elif me.phase == HOLDING and me.deadline > 0:
            yield Step(f"{name} sends a renewal", with_dispatcher(state, d, me._replace(keeper=Call(RENEW))))
        elif me.phase == HOLDING:
            yield Step(f"{name} finds its deadline passed", with_dispatcher(state, d, me._replace(phase=LOST)))
        elif me.phase == FREE and me.rows[1] == NO_ROW:
            # ACQUIRE in store/statements.py. That its reply is late is as if the first renewal were.
            after = a_lease_later(me)._replace(phase=HOLDING, deadline=TTL - self._margin, rows=(TTL, me.rows[0]))
            holder = (d, min(state.holder[1] + 1, OLDEST)) if state.holder[0] == d else state.holder
            yield Step(f"{name} acquires a lease", with_dispatcher(state, d, after)._replace(holder=holder))
        if me.phase == LOST:
            # Claims.lose(), Pool.kill_all() to its end, LeaseKeeper.acquire_again()
            flight = me.flight if "kill" in self._without else ()
            yield Step(
                f"{name} has its bodies killed", with_dispatcher(state, d, me._replace(phase=FREE, flight=flight))
            )

    def _of_the_renewal(self, state: State, d: int, me: Dispatcher, call: Call) -> Iterator[Step]:
        name = "AB"[d]
        lost = me._replace(keeper=(), phase=LOST)
        if not call.is_done:
            # RENEW in store/statements.py
            if me.rows[0] > 0 or ("live in renew" in self._without and me.rows[0] != NO_ROW):
                if me.rows[0] <= 0:
                    raise Violation("an expired lease lives again", f"{name}'s renewal is written")
                after = me._replace(keeper=call._replace(is_done=True), rows=(TTL, me.rows[1]))
                yield Step(f"{name}'s renewal is written", with_dispatcher(state, d, after))
            else:
                yield Step(f"{name}'s renewal is refused", with_dispatcher(state, d, lost))
        elif me.deadline > 0 or "late renewal" in self._without:
            # LeaseKeeper._extend() in dispatcher/lease.py
            age = 0 if "clock" in self._without else call.age
            after = me._replace(keeper=(), deadline=max(0, TTL - self._margin - age))
            yield Step(f"{name} hears of its renewal", with_dispatcher(state, d, after))
        else:
            yield Step(f"{name} hears of its renewal too late", with_dispatcher(state, d, lost))
        yield Step(
            f"{name}'s keeper loses its connection", with_dispatcher(state, d, me._replace(keeper=())), is_fault=True
        )

    # the claims

    def _of_the_claims(self, state: State, d: int, me: Dispatcher) -> Iterator[Step]:
        """Claims._step() in dispatcher/claims.py: finish, claim, reconcile; two statements at a time."""
        name = "AB"[d]
        for call in me.claims:
            yield from self._of_the_claims_call(state, d, me, call)
        if me.phase not in (HOLDING, LOST) or len(me.claims) == self._statements:
            return
        is_looking = any(call.verb == LOOK for call in me.claims)
        if me.must_reconcile and (not me.claims or ("look after" in self._without and not is_looking)):
            yield Step(
                f"{name} asks what it holds",
                with_dispatcher(state, d, sent(me, Call(LOOK))._replace(must_reconcile=False)),
            )
        elif me.must_reconcile or (is_looking and "look alone" not in self._without):
            return
        elif not me.flight:
            yield Step(f"{name} asks for a run", with_dispatcher(state, d, sent(me, Call(CLAIM))))
        elif me.flight.stage in (RETURNED, ENDED):
            _, lease, claim = me.flight
            landed = me._replace(flight=())
            if lease == 0:
                finish = Call(FINISH, lease, claim, me.flight.stage)
                yield Step(f"{name} sends the outcome", with_dispatcher(state, d, sent(landed, finish)))
            else:  # Claims.on_outcome()
                yield Step(f"{name} drops an outcome of its old lease", with_dispatcher(state, d, landed))

    def _of_the_claims_call(self, state: State, d: int, me: Dispatcher, call: Call) -> Iterator[Step]:
        name = "AB"[d]
        me = answered(me, call)
        if call.verb == LOOK:
            yield from self._of_the_look(state, d, me, call)
        elif not call.is_done:
            after = self._written(with_dispatcher(state, d, me), d, call)
            if after is not None:
                done = call._replace(is_done=True, claim=0 if call.verb == CLAIM else call.claim)
                yield Step(
                    f"{name}'s {call.verb} is written", with_dispatcher(after, d, sent(after.dispatchers[d], done))
                )
            else:
                yield Step(f"{name}'s {call.verb} finds nothing", with_dispatcher(state, d, me))
        elif call.verb == FINISH:
            yield Step(f"{name} hears that the outcome is written", with_dispatcher(state, d, me))
        elif (call.lease == 0 and me.phase in (HOLDING, LOST)) or "late claim" in self._without:
            claimed = me._replace(flight=Flight(CLAIMED, call.lease, call.claim))
            yield Step(f"{name} hears what it has claimed", with_dispatcher(state, d, claimed))
        else:
            yield Step(f"{name} drops what it claimed under its old lease", with_dispatcher(state, d, me))
        yield Step(
            f"{name} loses the connection under its {call.verb}",
            with_dispatcher(state, d, self._after_trouble(me, call)),
            is_fault=True,
        )

    def _after_trouble(self, me: Dispatcher, call: Call) -> Dispatcher:
        """Claims._step(): except DatabaseError; and Claims._note_trouble()."""
        ghosts = me.ghosts if call.is_done or call.verb == LOOK else in_order(*me.ghosts, call)[: self._statements]
        is_ours = call.lease == 0 and me.phase != FREE
        is_to_look = is_ours and "reconcile" not in self._without
        # Of two outcomes that are to be sent again the older one would be refused: as good as gone.
        is_newest = not me.flight or call.claim < me.flight.claim
        is_unwritten = call.verb == FINISH and is_ours and is_newest
        return me._replace(
            ghosts=ghosts,
            flight=Flight(call.stage, call.lease, call.claim) if is_unwritten else me.flight,
            must_reconcile=me.must_reconcile or is_to_look,
            must_again=me.must_again or (bool(ghosts) and is_to_look and "again" not in self._without),
        )

    def _of_the_look(self, state: State, d: int, me: Dispatcher, call: Call) -> Iterator[Step]:
        """Claims._reconcile() in dispatcher/claims.py: HELD, and the release of what is not known here."""
        name = "AB"[d]
        if not call.is_done:
            stage = RUNNING if state.status == RUNNING and state.holder == (d, call.lease) else ""
            told = sent(me, call._replace(is_done=True, stage=stage))
            yield Step(f"the database says what {name} holds", with_dispatcher(state, d, told))
            return
        me = me._replace(must_reconcile=me.must_reconcile and "asked meanwhile" not in self._without)
        if (call.lease != 0 or me.phase == FREE) and "lost look" not in self._without:
            yield Step(f"{name} hears what it held under its old lease", with_dispatcher(state, d, me))
            return
        is_known = bool(me.flight) and me.flight[1:] == (0, 0)
        if call.stage == RUNNING and (not is_known or "known" in self._without):
            if state.holder == (d, call.lease) and call.claim == 0 and state.has_begun and not is_known:
                raise Violation("a run whose body has begun is given back as one that had not", f"{name} releases it")
            state = with_dispatcher(state, d, me)
            after = self._written(state, d, Call(FINISH, call.lease, call.claim, ENDED)) or state
            yield Step(f"{name} releases what it does not know", after)
        else:
            if me.flight and not call.stage and me.flight.stage == ALIVE:
                me = me._replace(flight=me.flight._replace(stage=ENDED))
            yield Step(f"{name} hears what it holds", with_dispatcher(state, d, me))

    def _of_the_ghost(self, state: State, d: int, me: Dispatcher, ghost: Call) -> Iterator[Step]:
        """A statement goes on in the database when its connection breaks; or does not."""
        # Claims.run(): one more look StoreThread.deadline_seconds after the trouble, when it must have ended
        left = tuple(other for other in me.ghosts if other is not ghost)
        must_look = me.must_again and not left
        me = me._replace(
            ghosts=left, must_reconcile=me.must_reconcile or must_look, must_again=me.must_again and not must_look
        )
        gone = with_dispatcher(state, d, me)
        yield Step(f"what {'AB'[d]} gave up comes to nothing", gone)
        if (after := self._written(gone, d, ghost)) is not None:
            yield Step(f"the {ghost.verb} that {'AB'[d]} gave up is written", after)

    def _written(self, state: State, d: int, call: Call) -> State | None:
        """CLAIM and EXCHANGE in store/statements.py. None: no row fits."""
        if call.verb == CLAIM:
            left = left_of(state.dispatchers[d], call.lease)
            if state.status != READY or (left <= 0 and "live in claim" not in self._without):
                return None
            if left <= 0:
                raise Violation("a run is claimed under a lease that is not live", f"{'AB'[d]}'s claim is written")
            return a_claim_later(state)._replace(status=RUNNING, holder=(d, call.lease), has_begun=False)
        is_lease_right = state.holder == (d, call.lease) or "lease at finish" in self._without
        is_epoch_right = call.claim == 0 or self._without & {"epoch in claim", "epoch at finish"}
        if state.status != RUNNING or not is_lease_right or not is_epoch_right:
            return None
        if call.stage == RETURNED and call.claim != 0:
            raise Violation("a success is written that is not of the newest claim", f"{'AB'[d]}'s finish is written")
        if call.claim != 0:
            raise Violation("a claim is ended by another one's outcome", f"{'AB'[d]}'s finish is written")
        return given_up(state, SUCCESSFUL if call.stage == RETURNED else READY)

    # B, when it is prompt

    def _of_the_prompt(self, state: State, me: Dispatcher) -> Iterator[Step]:
        """The same code, each statement and its reply at once."""
        if me.phase == DEAD:
            after = me._replace(phase=HOLDING, deadline=TTL - self._margin, rows=(TTL, NO_ROW))
            yield Step("B starts", with_dispatcher(state, 1, after))
        elif not me.flight:
            if (after_claim := self._written(state, 1, Call(CLAIM))) is not None:
                yield Step("B claims", with_dispatcher(after_claim, 1, me._replace(flight=Flight(CLAIMED, 0, 0))))
        elif me.flight.stage in (RETURNED, ENDED):
            finish = Call(FINISH, 0, me.flight.claim, me.flight.stage)
            after_finish = self._written(state, 1, finish) or state
            yield Step("B writes the outcome, if it counts", with_dispatcher(after_finish, 1, me._replace(flight=())))
        else:
            yield from self._of_the_executor(state, 1, me)

    # the executor

    def _of_the_executor(self, state: State, d: int, me: Dispatcher) -> Iterator[Step]:
        """executors/sync.py and loop.py; Zygote._enforce_deadline() in executors/zygote.py."""
        if not me.flight:
            return
        name, flight = "AB"[d], me.flight
        ended = with_dispatcher(state, d, me._replace(flight=flight._replace(stage=ENDED)))
        if flight.stage == CLAIMED:
            # Board.allows() in executors/fence.py; else Verdict.UNSTARTED
            if (flight.lease == 0 and me.deadline > 0) or "fence" in self._without:
                after = with_dispatcher(state, d, me._replace(flight=flight._replace(stage=ALIVE)))
                is_of_the_newest = flight.claim == 0 and state.status == RUNNING
                yield Step(f"{name}'s body starts", after._replace(has_begun=state.has_begun or is_of_the_newest))
            else:
                yield Step(f"{name}'s executor does not start the body", ended)
        elif flight.stage == ALIVE:
            yield Step(
                f"{name}'s body returns", with_dispatcher(state, d, me._replace(flight=flight._replace(stage=RETURNED)))
            )
            if me.deadline <= 0 and "switch" not in self._without:
                yield Step(f"{name}'s zygote kills at the deadline", ended)
            else:
                yield Step(f"{name}'s body raises, or its executor dies", ended)

    # deaths

    def _crashed(self, me: Dispatcher) -> Dispatcher:
        """PR_SET_PDEATHSIG in executors/zygote.py: the executors are about to die."""
        flight = me.flight._replace(stage=ORPHANED) if me.flight and me.flight.stage == ALIVE else ()
        writes = (call for call in me.claims if call.verb != LOOK and not call.is_done)
        return Dispatcher(ghosts=in_order(*me.ghosts, *writes)[: self._statements], flight=flight, rows=me.rows)

    def _of_the_dead(self, state: State, d: int, me: Dispatcher) -> Iterator[Step]:
        if me.flight:
            yield Step(f"{'AB'[d]}'s executors die with it", with_dispatcher(state, d, me._replace(flight=())))
        else:
            yield Step(f"{'AB'[d]} starts", with_dispatcher(state, d, me._replace(phase=FREE)))

    # sweeps and time

    def _of_the_sweeps(self, state: State, d: int, me: Dispatcher) -> Iterator[Step]:
        """Housekeeping.reclaim() and look_at_neighbours(); RECLAIM in store/statements.py."""
        if all(dispatcher.phase == DEAD for dispatcher in state.dispatchers):
            return
        is_dead = me.phase == DEAD and (not me.flight or "dead" in self._without)
        for lease in (0, 1):
            left = me.rows[lease]
            is_given_up = me.phase == FREE or (me.phase != DEAD and lease == 1)
            if left != NO_ROW and (left < -self._grace or is_dead or is_given_up or "expiry" in self._without):
                rows = (NO_ROW, me.rows[1]) if lease == 0 else (me.rows[0], NO_ROW)
                after = with_dispatcher(state, d, me._replace(rows=rows))
                is_hit = state.status == RUNNING and state.holder == (d, lease)
                yield Step(f"{'AB'[d]}'s lease is reclaimed", after_a_loss(after) if is_hit else after)
                if is_hit:
                    yield Step(f"{'AB'[d]}'s lease is reclaimed, its run is locked and skipped", after)
        is_orphan = state.status == RUNNING and state.holder[0] == d and left_of(me, state.holder[1]) == NO_ROW
        if is_orphan and "orphans" not in self._without:
            yield Step("the run without a lease is reclaimed", after_a_loss(state))

    def _of_time(self, state: State) -> Iterator[Step]:
        for me in state.dispatchers:
            if me.ghosts:
                return
            if me.flight and not self._has_late_zygote:
                is_overdue = me.flight.stage == ALIVE and me.deadline <= 0 and "switch" not in self._without
                if is_overdue or me.flight.stage == ORPHANED:
                    return
        a, b = state.dispatchers
        after = state._replace(dispatchers=(self._older(a), b if self._is_b_prompt else self._older(b)))
        # Time is a fault where a lease should have been renewed.
        is_late = any(me.phase == HOLDING and me.deadline == 1 for me in (a, b))
        yield Step("a tick", after, is_late)

    def _older(self, me: Dispatcher) -> Dispatcher:
        keeper = me.keeper and me.keeper._replace(age=min(me.keeper.age + 1, TTL - MARGIN))
        newest, previous = me.rows
        newest = newest if newest == NO_ROW else max(newest - 1, -GRACE - 1)
        previous = previous if previous == NO_ROW else max(previous - 1, 0)  # given up: no grace for it
        return me._replace(deadline=max(me.deadline - 1, 0), keeper=keeper, rows=(newest, previous))
