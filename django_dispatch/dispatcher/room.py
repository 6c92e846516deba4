"""How much may be claimed, by what room there is in each lane; and where a run is best put. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple

from ..finish import TaskFacts
from ..messages import Kind
from .durations import SHORT_SECONDS, Durations
from .executor import Executor


class Room(NamedTuple):
    """How many runs may be claimed, and of which tasks none; ``is_partial``: a lane with executors is full."""

    limit: int
    excluded: Sequence[str] = ()
    is_partial: bool = False


def room_in(
    rooms: Mapping[Kind, int],
    limit: int,
    tasks: Mapping[str, TaskFacts],
    wanted: Callable[[Kind], int],
    asked_for: int = 0,
) -> Room:
    """Return the room for a claim. ``wanted`` says how many executors a lane is to have.

    What is asked for, and what will be claimed, may all be of one lane, so the smaller room of those that have any is
    what there is.
    """
    open_rooms = [room for room in rooms.values() if room > 0]
    room = min(*open_rooms, limit + asked_for) - asked_for if open_rooms else 0
    if room <= 0:
        return Room(0)
    full = [kind for kind, room in rooms.items() if room <= 0]
    excluded = [path for path, facts in tasks.items() if facts.kind in full] if full else []
    is_partial = any(wanted(kind) for kind in full)
    return Room(room, excluded, is_partial)


def least_busy(executors: Iterable[Executor], kind: Kind, ahead: int) -> Executor | None:
    """Return the executor that a run is best put to, ``ahead`` of its time at most; None if there is none."""
    best, least = None, ahead
    for executor in executors:
        if executor.kind is kind and executor.is_open:
            load = len(executor.flights) - executor.capacity
            if load < least and (load < 0 or not executor.is_slow):
                best, least = executor, load
    return best


def is_soon_free(executor: Executor, durations: Durations, now: float) -> bool:
    """Whether a synchronous executor has just begun a body, by the loop's clock, of a task that has proved short."""
    flight = next(iter(executor.flights.values()), None)
    if flight is None or executor.kind is not Kind.SYNC or not executor.is_open:
        return False
    began_at = now if flight.started_at is None else flight.started_at
    return now - began_at < SHORT_SECONDS and durations.is_short(flight.run.task)
