"""The commands that change something: runs, this dispatcher's work, its executors, its life."""

import asyncio
import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django.db import Error as DatabaseError

from ...conf import MAX_SLOTS
from ...exceptions import InvalidOption
from ...store.values import CancelledRun, Filter
from ..executor import Executor, Flight
from .filters import meant, read_filter

if TYPE_CHECKING:
    from ..service import Dispatcher

MOST_CANCELLED = 10_000  # in one statement
PATIENCE_SECONDS = 0.5  # for the database, before bodies here are stopped without it
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

logger = logging.getLogger("django_dispatch.control")


async def cancel(dispatcher: "Dispatcher", data: Mapping[str, Any]) -> dict[str, Any]:
    """Cancel the runs that are meant, those that wait in the database too; answer what became of each.

    Bodies that run here are stopped even when the database does not answer.
    """
    wanted = read_filter(data, is_strict=True)
    if not wanted:
        raise InvalidOption("cancel needs a run, a uuid, a task or a queue: it does not cancel everything.")
    here = list(meant(dispatcher, wanted))
    writing = asyncio.ensure_future(_cancel_in_database(dispatcher, wanted))
    done, _ = await asyncio.wait([writing], timeout=PATIENCE_SECONDS)
    _stop_bodies(dispatcher, here)
    answer: dict[str, Any] = {
        f"run-{flight.run.id}": {"run_id": flight.run.id, "task": flight.run.task, "answer": "requested"}
        for _, flight in here
    }
    try:
        found = await writing if done else {}
    except DatabaseError as error:
        text = str(error).strip().split("\n", 1)[0]
        return answer | {"error": f"Only what runs here is stopped; the database does not answer: {text}"}
    if not done:
        writing.add_done_callback(_note_late)
        return answer | {"error": "The database has not answered yet: runs that wait may be cancelled later."}
    for run in found.values():
        if run.answer != "already final" or "run" in wanted or "uuid" in wanted:
            answer.setdefault(f"run-{run.id}", {"run_id": run.id})["answer"] = run.answer
    return answer


async def _cancel_in_database(dispatcher: "Dispatcher", wanted: Filter) -> dict[int, CancelledRun]:
    found: dict[int, CancelledRun] = {}
    line = dispatcher.answering.line
    while True:
        batch = await line.call(lambda store: store.cancel(MOST_CANCELLED, **wanted))
        found |= batch
        leases = {run.lease_id for run in batch.values() if run.lease_id is not None}
        freed = {key for run in batch.values() for key in run.freed}
        if payloads := [*(f"cancel:{lease_id}" for lease_id in leases), *(f"blocked:{key}" for key in freed)]:
            await line.call(lambda store, payloads=payloads: store.notify(payloads))  # type: ignore[misc]
        if len(batch) < MOST_CANCELLED:
            return found


def _stop_bodies(dispatcher: "Dispatcher", here: list[tuple[Executor | None, Flight]]) -> None:
    """Stop those that run. One that has not started is left to the cancellations that the database knows of."""
    for executor, flight in here:
        if executor is not None and flight.started_at is not None and flight.token in executor.flights:
            dispatcher.watch.cancel(executor, flight, asyncio.get_running_loop().time())


def _note_late(writing: "asyncio.Future[Any]") -> None:
    if not writing.cancelled() and writing.exception() is not None:
        logger.warning("A cancel could not be written: %s", str(writing.exception()).split("\n", 1)[0])


async def run(dispatcher: "Dispatcher", data: Mapping[str, Any]) -> dict[str, Any]:
    """Record a run; answer its id. The data are those of a message, with ``queue`` if not the task's own."""
    received = await dispatcher.answering.submissions.submit(data)
    if received is None:
        return {"ack": dict(data), "discarded": True}
    return {"ack": dict(data), "run_id": received.id, "uuid": received.uuid}


async def pause(dispatcher: "Dispatcher", data: Mapping[str, Any]) -> dict[str, Any]:
    """Claim no more runs; those that are here go on."""
    dispatcher.pause()
    return {"state": dispatcher.state, "running": len(dispatcher.pool.flights())}


async def resume(dispatcher: "Dispatcher", data: Mapping[str, Any]) -> dict[str, Any]:
    """Claim again."""
    dispatcher.resume()
    return {"state": dispatcher.state}


async def drain(dispatcher: "Dispatcher", data: Mapping[str, Any]) -> dict[str, Any]:
    """End as at the first SIGTERM."""
    dispatcher.end("control command")
    return {"state": dispatcher.state, "running": len(dispatcher.pool.flights())}


async def shutdown(dispatcher: "Dispatcher", data: Mapping[str, Any]) -> dict[str, Any]:
    """End as at the second SIGTERM."""
    if dispatcher.state != "draining":
        dispatcher.end("control command")
    dispatcher.end("control command")
    return {"state": dispatcher.state, "running": len(dispatcher.pool.flights())}


async def scale(dispatcher: "Dispatcher", data: Mapping[str, Any]) -> dict[str, Any]:
    """Have so many executors for synchronous tasks from now on."""
    processes = data.get("processes")
    if isinstance(processes, bool) or not isinstance(processes, int) or not 1 <= processes <= MAX_SLOTS:
        raise InvalidOption(f"processes must be a whole number from 1 to {MAX_SLOTS}, not {processes!r}.")
    before = dispatcher.pool.processes
    dispatcher.pool.scale(processes)
    dispatcher.keeper.show_slots(processes + dispatcher.settings.async_concurrency)
    logger.info("Scaled from %s to %s executors.", before, processes)
    return {"processes": processes, "before": before}


async def recycle(dispatcher: "Dispatcher", data: Mapping[str, Any]) -> dict[str, Any]:
    """Import the project afresh, then replace every executor when it has ended what it has."""
    return {"recycling": len(dispatcher.pool.executors), "is_new": dispatcher.children.recycle()}


async def set_log_level(dispatcher: "Dispatcher", data: Mapping[str, Any]) -> dict[str, Any]:
    """Set the level of our loggers, in the dispatcher at once, in each executor from its next body on."""
    level = str(data.get("level", "")).upper()
    if level not in LEVELS:
        raise InvalidOption(f"level must be one of {', '.join(LEVELS)}, not {data.get('level')!r}.")
    ours = logging.getLogger("django_dispatch")
    before = logging.getLevelName(ours.getEffectiveLevel())
    ours.setLevel(level)
    dispatcher.board.set_log_level(ours.level)
    logger.info("The level of the log is %s now, and was %s.", level, before)
    return {"logger": ours.name, "level": level, "previous_level": before}


ORDERS = {
    order.__name__: order for order in (cancel, run, pause, resume, drain, shutdown, scale, recycle, set_log_level)
}
