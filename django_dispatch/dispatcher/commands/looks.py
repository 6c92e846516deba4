"""The commands that look: they change nothing, and need no database."""

import asyncio
import contextlib
import os
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...exceptions import InvalidOption
from ...executors import stacks as inner_stacks
from ...executors.fence import now_ns
from .. import process
from ..executor import Executor, Flight
from ..figures import families
from .filters import meant, read_filter

if TYPE_CHECKING:
    from ..service import Dispatcher

PAGE_KB = os.sysconf("SC_PAGE_SIZE") // 1024
DEEPEST_STACK = 6


async def alive(dispatcher: "Dispatcher", data: Mapping[str, Any]) -> dict[str, Any]:
    """Say that the loop turns, and which of its parts cannot do their job: see health.py."""
    failing = dispatcher.health.failing()
    return {"is_healthy": not failing, "late": list(failing)}


async def running(dispatcher: "Dispatcher", data: Mapping[str, Any]) -> dict[str, Any]:
    """Say which runs this dispatcher has, of those that are meant."""
    wanted = read_filter(data, is_strict=False)
    return {
        f"run-{flight.run.id}": _run(dispatcher, executor, flight) for executor, flight in meant(dispatcher, wanted)
    }


async def workers(dispatcher: "Dispatcher", data: Mapping[str, Any]) -> dict[str, Any]:
    """Say what each executor is and does."""
    return {f"worker-{executor.id}": _worker(dispatcher, executor) for executor in dispatcher.pool.executors.values()}


async def main(dispatcher: "Dispatcher", data: Mapping[str, Any]) -> dict[str, Any]:
    """Say who this dispatcher is, and how its parts are."""
    stats, settings, claims, pool = dispatcher.stats, dispatcher.settings, dispatcher.claims, dispatcher.pool
    statuses = _finished_by_status(dispatcher)
    return {
        "node": settings.node,
        "host": process.host_name(),
        "pid": os.getpid(),
        "zygote": dispatcher.children.zygote_pid,
        "version": dispatcher.version,
        "state": dispatcher.state,
        "uptime_seconds": round(time.time() - stats.started_at, 3),
        "queues": list(settings.queues or ["*"]),
        "lease_id": claims.lease_id and str(claims.lease_id),
        "lease_seconds_left": round((dispatcher.board.deadline_ns() - now_ns()) / 1e9, 3) if claims.lease_id else None,
        "received_count": stats.messages_received,
        "control_count": stats.control_commands.total(),
        "pool": {
            "processes": pool.processes,
            "async_concurrency": settings.async_concurrency,
            "worker_ct": len(pool.executors),
            "running_ct": sum(flight.started_at is not None for flight in pool.flights()),
            "active_task_ct": len(pool.flights()) + len(pool.waiting),
            "finished_count": sum(statuses[status] for status in ("SUCCESSFUL", "FAILED", "CANCELLED")),
            "canceled_count": statuses["CANCELLED"],
        },
        "loops": {
            name: {
                "period_seconds": round(loop.period_seconds, 3),
                "seconds_since_success": loop.last_success_at and round(time.time() - loop.last_success_at, 3),
            }
            for name, loop in stats.loops.items()
        },
        "late": stats.late(),
    }


async def producers(dispatcher: "Dispatcher", data: Mapping[str, Any]) -> dict[str, Any]:
    """Say where runs come from: wakeups, messages, schedules, the poll."""
    settings, stats, received = dispatcher.settings, dispatcher.stats, dispatcher.stats.wakeups_received
    listener, bell = dispatcher.ears.listener, dispatcher.ears.bell
    return {
        "listener": {
            "is_enabled": listener is not None,
            "is_connected": listener is not None and listener.is_connected,
            "is_proved": listener is not None and listener.is_proved,
            "notify": settings.notify,
            "is_told": dispatcher.waiting.is_told,
            "wakeups_received": sum(number for (source, _), number in received.items() if source == "pg_notify"),
        },
        "redis": {
            "is_enabled": bell is not None,
            "is_connected": bell is not None and bell.is_connected,
            "wakeups_received": sum(number for (source, _), number in received.items() if source == "arq"),
        },
        "messages": {
            "channels": dict(settings.notify_channels),
            "produced_count": stats.runs_received,
            "waiting": dispatcher.answering.submissions.waiting,
            "refused": dict(stats.messages_refused),
        },
        "schedules": dispatcher.scheduler.look(),
        "poll": {"period_seconds": settings.poll_interval_seconds, "produced_count": stats.runs_claimed},
    }


async def metrics(dispatcher: "Dispatcher", data: Mapping[str, Any]) -> dict[str, Any]:
    """Say what the port for metrics says: the same figures."""
    return {family.name: family.document() for family in families(dispatcher) if family.samples}


async def chunks(dispatcher: "Dispatcher", data: Mapping[str, Any]) -> dict[str, Any]:
    """Say which messages are half-sent."""
    assembler, now = dispatcher.answering.assembler, time.monotonic()
    partials = assembler.pending(now)
    return {
        "status": {
            "total_chunks_received": assembler.received,
            "successful_assemblies": assembler.assembled,
            "errored_assemblies": assembler.refused,
            "timed_out_assemblies": assembler.dropped,
            "active_messages": len(partials),
        },
        "partials": partials,
    }


async def aio_tasks(dispatcher: "Dispatcher", data: Mapping[str, Any]) -> dict[str, Any]:
    """Say where each asyncio task of the dispatcher waits, its innermost ``limit`` frames."""
    limit = data.get("limit", DEEPEST_STACK)
    if not isinstance(limit, int) or limit < 1:
        raise InvalidOption(f"limit must be a whole number from 1, not {limit!r}.")
    names: Counter[str] = Counter()
    answer = {}
    for task in asyncio.all_tasks():
        name = task.get_name()
        names[name] += 1
        key = name if names[name] == 1 else f"{name} ({names[name]})"
        answer[key] = {"done": task.done(), "stack": inner_stacks.of_task(task, limit)}
    return answer


async def stacks(dispatcher: "Dispatcher", data: Mapping[str, Any]) -> dict[str, Any]:
    """Say where the body of a run is, from inside its executor; nothing if this dispatcher has no such run."""
    wanted = read_filter(data, is_strict=False)
    if not wanted:
        raise InvalidOption("stacks needs a run.")
    answer = {}
    for executor, flight in meant(dispatcher, wanted):
        text = "It has not started." if executor is None else await dispatcher.stacks.of(executor, flight)
        answer[f"run-{flight.run.id}"] = _run(dispatcher, executor, flight) | {"stack": text}
    return answer


async def status(dispatcher: "Dispatcher", data: Mapping[str, Any]) -> dict[str, Any]:
    """Say all that the other commands here say, each under its name."""
    parts = (running, workers, producers, metrics, main, chunks, aio_tasks)
    return {part.__name__: await part(dispatcher, {}) for part in parts}


LOOKS = {
    look.__name__: look
    for look in (alive, running, workers, status, aio_tasks, stacks, producers, metrics, main, chunks)
}


def _run(dispatcher: "Dispatcher", executor: Executor | None, flight: Flight) -> dict[str, Any]:
    run = flight.run
    now = asyncio.get_running_loop().time()
    state = "assigned" if executor else "waiting"
    if flight.started_at is not None:
        state = "stopping" if flight.stop is not None else "running"
    return {
        "run_id": run.id,
        "uuid": run.uuid,
        "task": run.task,
        "queue": run.queue,
        "priority": run.priority,
        "attempt": run.attempt,
        "epoch": run.epoch,
        "state": state,
        "seconds": round(now - (flight.started_at or flight.claimed_at), 3),
        "executor": executor and executor.pid,
    }


def _worker(dispatcher: "Dispatcher", executor: Executor) -> dict[str, Any]:
    flights = list(executor.flights.values())
    first = flights[0].run if flights else None
    return {
        "worker_id": executor.id,
        "pid": executor.pid,
        "kind": executor.kind.value,
        "status": _state(executor, flights),
        "current_task": first and first.task,
        "current_task_uuid": first and first.uuid,
        "active_cancel": any(flight.stop is not None for flight in flights),
        "runs": [flight.run.id for flight in flights if flight.started_at is not None],
        "age": round(asyncio.get_running_loop().time() - executor.born_at, 3),
        "finished_count": executor.finished,
        "rss_kb": _rss_kb(executor.pid),
    }


def _state(executor: Executor, flights: Iterable[Flight]) -> str:
    if executor.is_doomed:
        return "leaving"
    if not executor.is_ready:
        return "starting"
    return "busy" if any(flights) else "ready"


def _rss_kb(pid: int | None) -> int | None:
    """What the process has in memory now, by the kernel."""
    with contextlib.suppress(OSError, IndexError):
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE_KB
    return None


def _finished_by_status(dispatcher: "Dispatcher") -> Counter[str]:
    statuses: Counter[str] = Counter()
    for (_, _, status), number in dispatcher.stats.runs_finished.items():
        statuses[status] += number
    return statuses
