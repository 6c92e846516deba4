"""The tasks that the tests have run: each writes the ledger, then does one thing."""

import asyncio
import os
import signal
import subprocess
import time
from typing import Any

import psutil
from django.db import connection

from django_dispatch import RunStopped, TaskContext, task

from .ledger import Entry
from .oddities import AwfulThings


@task(bind=True)
def note(ctx: TaskContext, value: Any = None) -> Any:
    """Return the value."""
    with Entry(ctx):
        return value


@task(bind=True)
async def anote(ctx: TaskContext, value: Any = None) -> Any:
    with Entry(ctx):
        return value


@task
def quick() -> None:
    """Do nothing, fast."""


@task(bind=True)
def gated(ctx: TaskContext, gate: str, value: Any = None) -> Any:
    """Wait at a gate, then return the value; ``{attempt}`` in either is filled in."""
    with Entry(ctx) as entry:
        entry.wait_at(gate)
    return value.format(attempt=ctx.attempt) if isinstance(value, str) else value


@task(bind=True)
async def agated(ctx: TaskContext, gate: str, value: Any = None) -> Any:
    with Entry(ctx) as entry:
        await entry.await_at(gate)
    return value


@task(bind=True, on_lost="fail")
def gated_once(ctx: TaskContext, gate: str) -> None:
    with Entry(ctx) as entry:
        entry.wait_at(gate)


@task(bind=True)
def stubborn(ctx: TaskContext, gate: str) -> None:
    """Wait at a gate, whoever says to stop."""
    with Entry(ctx) as entry:
        while True:
            try:
                return entry.wait_at(gate)
            except RunStopped:
                continue


@task(bind=True)
def tidying(ctx: TaskContext, gate: str, tidying_gate: str) -> None:
    """Wait at a gate, and however that ends, at another one before leaving."""
    with Entry(ctx) as entry:
        try:
            entry.wait_at(gate)
        finally:
            entry.wait_at(tidying_gate)


@task(bind=True)
def sometimes_slow(ctx: TaskContext, gate: str = "") -> None:
    """Be as quick as can be, or wait at a gate."""
    if gate:
        with Entry(ctx) as entry:
            entry.wait_at(gate)


@task(bind=True)
def kill_me(ctx: TaskContext, number: int = signal.SIGKILL) -> None:
    """Kill the executor."""
    with Entry(ctx):
        os.kill(os.getpid(), number)


@task(bind=True)
def kill_dispatcher(ctx: TaskContext) -> None:
    """Kill the dispatcher, the parent of the zygote, and wait for the consequence."""
    with Entry(ctx) as entry:
        os.kill(psutil.Process(os.getppid()).ppid(), signal.SIGKILL)
        entry.wait_at("never")


@task(bind=True)
def run_sleep(ctx: TaskContext, seconds: float) -> None:
    """Run a program."""
    with Entry(ctx):
        subprocess.run(["sleep", str(seconds)], check=True)


@task(bind=True)
def sleep_in_sql(ctx: TaskContext, seconds: float) -> None:
    """Have PostgreSQL sleep, on Django's connection."""
    with Entry(ctx, note="sql"), connection.cursor() as cursor:
        cursor.execute("SELECT pg_sleep(%s)", [seconds])


@task(bind=True)
def query(ctx: TaskContext) -> int:
    """Use Django's connection; the ledger has its backend pid."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        (backend_pid,) = cursor.fetchone()
    with Entry(ctx, backend_pid=backend_pid):
        return int(backend_pid)


@task(bind=True)
def use_a_pool(ctx: TaskContext) -> list[int]:
    """Have a multiprocessing pool of its own do the work."""
    import multiprocessing

    with Entry(ctx), multiprocessing.get_context("fork").Pool(2) as pool:
        return pool.map(abs, [-1, -2, -3])


@task(bind=True)
def awful(ctx: TaskContext, name: str) -> Any:
    """Do one of the awful things that bodies do."""
    with Entry(ctx):
        return getattr(AwfulThings, name)()


@task(bind=True)
async def aawful(ctx: TaskContext, name: str) -> Any:
    with Entry(ctx):
        await asyncio.sleep(0)
        return getattr(AwfulThings, name)()


@task(bind=True, max_attempts=2)
def awful_twice(ctx: TaskContext, name: str) -> Any:
    with Entry(ctx):
        return getattr(AwfulThings, name)()


@task(bind=True)
def takes(ctx: TaskContext, seconds: float) -> None:
    """Work for so long, which a task may not be told about in advance."""
    with Entry(ctx):
        time.sleep(seconds)


@task(bind=True)
def says_why(ctx: TaskContext, gate: str) -> None:
    """Wait at a gate; when told to stop, say by what and why, and obey."""
    with Entry(ctx) as entry:
        try:
            entry.wait_at(gate)
        except BaseException as error:
            ctx.progress(1, message=f"{type(error).__name__}: {ctx.stop_reason}")
            raise


@task(bind=True)
async def asays_why(ctx: TaskContext, gate: str) -> None:
    with Entry(ctx) as entry:
        try:
            await entry.await_at(gate)
        except BaseException as error:
            ctx.progress(1, message=f"{type(error).__name__}: {ctx.stop_reason}")
            raise


@task(bind=True, max_attempts=2)
def raises(ctx: TaskContext, gate: str) -> None:
    """Wait at a gate, then raise."""
    with Entry(ctx) as entry:
        entry.wait_at(gate)
        raise ValueError("as it was told to")


@task(bind=True)
async def blocks(ctx: TaskContext, gate: str) -> None:
    """Wait at a gate without letting anybody else on the event loop, which has turned a moment before."""
    with Entry(ctx) as entry:
        await asyncio.sleep(0.3)
        entry.wait_at(gate)
