"""Which runs a command means, by ``run``, ``uuid``, ``task``, ``queue``, ``args`` and ``kwargs``."""

import json
import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, cast

from ...exceptions import InvalidOption
from ...store.values import Filter
from ..executor import Executor, Flight

if TYPE_CHECKING:
    from ..service import Dispatcher

KINDS: Mapping[str, type] = {"run": int, "uuid": str, "task": str, "queue": str, "args": list, "kwargs": dict}

logger = logging.getLogger("django_dispatch.control")


def read_filter(data: Mapping[str, Any], *, is_strict: bool) -> Filter:
    """Return what is meant. A field that is unknown is ignored, or refused if ``is_strict``. Raises InvalidOption."""
    unknown = sorted(set(data) - set(KINDS))
    if unknown and is_strict:
        raise InvalidOption(f"Unknown fields {unknown}: without them more would be meant. Known are {sorted(KINDS)}.")
    if unknown:
        logger.warning("Unknown fields of a control command are ignored: %s", unknown)
    given = {name: data[name] for name in KINDS if data.get(name) not in (None, "", [], {})}
    for name, value in given.items():
        if not isinstance(value, KINDS[name]) or isinstance(value, bool):
            raise InvalidOption(f"{name} must be of type {KINDS[name].__name__}, not {value!r}.")
    texts = {name: json.dumps(value) if name in ("args", "kwargs") else value for name, value in given.items()}
    return cast("Filter", texts)


def meant(dispatcher: "Dispatcher", wanted: Filter) -> Iterator[tuple[Executor | None, Flight]]:
    """Yield the runs here that are meant, each with its executor; None: it waits for one."""
    pool = dispatcher.pool
    flights: list[tuple[Executor | None, Flight]] = [
        (executor, flight) for executor in pool.executors.values() for flight in executor.flights.values()
    ]
    flights += [(None, flight) for flight in pool.waiting]
    return (both for both in flights if _is_meant(both[1], wanted))


def _is_meant(flight: Flight, wanted: Filter) -> bool:
    run = flight.run
    facts: dict[str, Any] = {"run": run.id, "uuid": run.uuid, "task": run.task, "queue": run.queue}
    for name, value in wanted.items():
        if name in ("args", "kwargs"):
            if json.loads(getattr(run, name)) != json.loads(str(value)):
                return False
        elif facts[name] != value:
            return False
    return True
