"""Breadth-first search over all that a protocol can do, and the shortest way to what it must not."""

from collections import deque
from dataclasses import dataclass, field

from .lease_protocol import Protocol
from .states import START, Violation, check, is_final


@dataclass
class Found:
    """What a search found: how many states, how deep; and the shortest trace to a violation, if there is one."""

    states: int = 0
    depth: int = 0
    violation: str = ""
    trace: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        lines = "\n".join(f"{number:4}. {step}" for number, step in enumerate(self.trace, 1))
        return f"{self.states} states, {self.depth} steps deep: {self.violation or 'no violation'}\n{lines}"


def explore(protocol: Protocol, *, depth: int | None = None, most_faults: int | None = None) -> Found:
    """Look at every state that can be reached, the nearest first, up to the first violation.

    ``depth`` bounds the steps, ``most_faults`` the faults on the way to a state.

    A state from which no end of the run can be reached any more without a fault is one, too, unless the search was cut
    short.
    """
    ids = {(START, 0): 0}
    came: list[tuple[int, str]] = [(0, "")]
    depths = [0]
    before: list[list[int]] = [[]]
    final: list[int] = []
    queue = deque([(START, 0)])
    here = -1

    def trace(end: int, *last: str) -> list[str]:
        steps: list[str] = []
        while end:
            end, step = came[end]
            steps.append(step)
        return [*reversed(steps), *last]

    while queue:
        state, faults = queue.popleft()
        here += 1
        if is_final(state):
            final.append(here)
        if depths[here] == depth:
            break
        try:
            for step, after, is_fault in protocol.steps(state):
                key = protocol.canonical(after), faults + (is_fault and most_faults is not None)
                if most_faults is not None and key[1] > most_faults:
                    continue
                there = ids.get(key)
                if there is None:
                    there = ids[key] = len(came)
                    came.append((here, step))
                    depths.append(depths[here] + 1)
                    before.append([])
                    queue.append(key)
                    check(key[0])
                if not is_fault:
                    before[there].append(here)
        except Violation as violation:
            return Found(len(came), depths[here] + 1, str(violation), trace(here, violation.step or step))
    if queue:
        return Found(len(came), depths[here])
    stuck = _first_that_reaches_none_of(final, before)
    if stuck is not None:
        return Found(len(came), depths[stuck], "the run is lost: it can never end", trace(stuck))
    return Found(len(came), depths[-1])


def _first_that_reaches_none_of(goals: list[int], before: list[list[int]]) -> int | None:
    """Go backwards from the goals; return the first state that is not met, in the order of discovery."""
    is_met = bytearray(len(before))
    todo = list(goals)
    for goal in goals:
        is_met[goal] = True
    while todo:
        for earlier in before[todo.pop()]:
            if not is_met[earlier]:
                is_met[earlier] = True
                todo.append(earlier)
    first = is_met.find(0)
    return None if first < 0 else first
