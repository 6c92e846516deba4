"""The tasks that the tests have run: each writes the ledger, then does one thing."""

import asyncio
import os
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import psutil
from asgiref.sync import sync_to_async
from django.db import connection, transaction

from django_dispatch import RunStopped, TaskContext, task
from django_dispatch.models import Run

from . import limited, misdeeds, retries  # noqa: F401 - tasks are found by being imported
from .found import what_is_found
from .gate import Gate
from .ledger import Entry
from .loop_misdeeds import OnTheLoop
from .oddities import AwfulThings
from .talk import talk


@task(bind=True)
def note(ctx: TaskContext, value: Any = None) -> Any:
    """Return the value."""
    with Entry(ctx):
        return value


@task(bind=True, broadcast=True)
def note_everywhere(ctx: TaskContext) -> int:
    """Return the dispatcher's pid, two generations up."""
    with Entry(ctx):
        parent = psutil.Process().parent()
        assert parent
        return parent.ppid()


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
async def aquery(ctx: TaskContext) -> int:
    """Use the ORM from an event loop."""
    with Entry(ctx):
        return await Run.objects.acount()


@task(bind=True)
def query_twice(ctx: TaskContext, gate: str) -> None:
    """Use Django's connection, before a gate and behind it."""
    with Entry(ctx) as entry:
        Run.objects.exists()
        entry.wait_at(gate)
        Run.objects.exists()


@task(bind=True)
async def aquery_twice(ctx: TaskContext, gate: str) -> None:
    with Entry(ctx) as entry:
        await Run.objects.aexists()
        await entry.await_at(gate)
        await Run.objects.aexists()


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
async def block(ctx: TaskContext, seconds: float) -> None:
    """Block the event loop."""
    with Entry(ctx):
        time.sleep(seconds)  # noqa: ASYNC251


@task(bind=True)
def hold_a_lock(ctx: TaskContext, gate: str) -> None:
    """Wait at a gate in a transaction, with a lock that another attempt needs."""
    with Entry(ctx) as entry, transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_xact_lock(%s)", [ctx.run_id])
        entry.wait_at(gate)


@task(bind=True)
def takes(ctx: TaskContext, seconds: float) -> None:
    """Work for so long, which a task may not be told about in advance."""
    with Entry(ctx):
        time.sleep(seconds)


@task
async def linger() -> None:
    """Wait until somebody ends it; costs nothing while it does."""
    await asyncio.Event().wait()


@task(bind=True)
def spin_in_c(ctx: TaskContext, gate: str) -> None:
    """Be in one call into C, which holds the interpreter, for a long time."""
    with Entry(ctx) as entry:
        entry.arrive(gate)
        sum(range(10**11))


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


# what bodies do to their process


@task(bind=True)
def misbehave(ctx: TaskContext, kind: str, name: str) -> Any:
    """Do one of the misdeeds."""
    with Entry(ctx):
        pass
    return getattr(getattr(misdeeds, kind), name)()


@task
def misbehave_quickly(kind: str, name: str) -> Any:
    """Do one of the misdeeds and nothing else, in less than a millisecond if that is possible."""
    return getattr(getattr(misdeeds, kind), name)()


@task
def look() -> tuple[int, dict[str, Any]]:
    """Return the process, and what a body finds in it."""
    return os.getpid(), what_is_found()


@task(bind=True)
def leave_programs(ctx: TaskContext, gate: str) -> None:
    """Start programs, two of them a daemon and a tree, and wait at a gate."""
    with Entry(ctx) as entry:
        misdeeds.start_daemon()
        misdeeds.start_tree()
        entry.wait_at(gate)


@task(bind=True)
def ask_dispatcher(ctx: TaskContext, command: str, data: Any = None) -> Any:
    """Return what this run's own dispatcher answers."""
    return ctx.control(command, data)


@task
def enqueue_more(number: int) -> None:
    """Enqueue runs: one alone, one in a transaction, one that is rolled back, and the rest at once."""
    quick.delay()
    with transaction.atomic():
        quick.delay()
    with transaction.atomic():
        quick.delay()
        transaction.set_rollback(True)
    quick.delay_many([()] * (number - 2))


@task
async def aenqueue_more(number: int) -> None:
    """Enqueue runs from an event loop."""
    for _ in range(number):
        await quick.adelay()


@task(bind=True)
def keep_asking(ctx: TaskContext, gate: str) -> None:
    """Ask until somebody ends it."""
    with Entry(ctx) as entry:
        entry.arrive(gate)
        while True:
            ctx.control("alive")


@task(bind=True)
async def aask_dispatcher(ctx: TaskContext, command: str, data: Any = None) -> Any:
    return await ctx.acontrol(command, data)


@task(bind=True)
async def aleave_programs(ctx: TaskContext, gate: str) -> None:
    with Entry(ctx) as entry:
        misdeeds.start_daemon()
        misdeeds.start_tree()
        await entry.await_at(gate)


@task(bind=True)
def leave_a_thread(ctx: TaskContext, gate: str) -> None:
    """Start a thread that never ends, and wait at a gate."""
    with Entry(ctx) as entry:
        threading.Thread(target=threading.Event().wait).start()
        entry.wait_at(gate)


@task(bind=True)
def leave_programs_and_hang(ctx: TaskContext, gate: str) -> None:
    """Start programs, and wait at a gate whoever says to stop."""
    with Entry(ctx) as entry:
        misdeeds.start_daemon()
        misdeeds.start_tree()
        while True:
            try:
                return entry.wait_at(gate)
            except RunStopped:
                continue


@task(bind=True)
def fork_and_report(ctx: TaskContext) -> str:
    """Fork; report progress in the child, and return from both."""
    pid = os.fork()
    if pid == 0:
        ctx.progress(666, message="the child")
        return "the child"
    os.waitpid(pid, 0)
    return "the parent"


@task
def stop_executor_later() -> int:
    """Return, and have a thread stop the process a moment later."""

    def stop() -> None:
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGSTOP)

    threading.Thread(target=stop).start()
    return os.getpid()


@task(bind=True)
def kill_zygote(ctx: TaskContext) -> str:
    """Kill the parent of all executors, once."""
    with Entry(ctx) as entry:
        if ctx.attempt == 1:
            misdeeds.start_tree()
            os.kill(os.getppid(), signal.SIGKILL)
            entry.wait_at("never")
    return "again"


@task
def session_after_a_stop() -> list[int]:
    """Sleep in SQL; when told to stop, go on with the same session."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_backend_pid()")
        pids = cursor.fetchone()
        try:
            cursor.execute("SELECT pg_sleep(600)")
        except RunStopped:
            cursor.execute("SELECT pg_backend_pid()")
            pids += cursor.fetchone()
    return list(pids)


@task
def count_queries() -> int:
    """Return how many queries the log of DEBUG holds from before, and leave some."""
    before = len(connection.queries)
    for _ in range(3):
        with connection.cursor() as cursor:
            cursor.execute("SELECT 1")
    return before


@task
def print_for_ever() -> None:
    while True:
        print("m" * 10_000)  # noqa: T201


# what async bodies do to their neighbours


@task(bind=True)
async def ablock(ctx: TaskContext, gate: str) -> str:
    """Wait at a gate without awaiting: the loop stands still, and no stop is heard."""
    with Entry(ctx) as entry:
        entry.wait_at(gate)
    return "at last"


@task(bind=True)
async def astubborn(ctx: TaskContext, gate: str) -> None:
    """Wait at a gate, whoever cancels."""
    with Entry(ctx) as entry:
        while True:
            try:
                return await entry.await_at(gate)
            except asyncio.CancelledError:
                continue


@task(bind=True)
async def amisbehave(ctx: TaskContext, name: str) -> Any:
    """Do one of the misdeeds of async bodies."""
    with Entry(ctx):
        return await getattr(OnTheLoop, name)()


@task
async def ais_outside_transactions() -> bool:
    """Return whether Django's connection is free of transactions."""
    return await sync_to_async(lambda: connection.get_autocommit() and not connection.in_atomic_block)()


@task(bind=True)
async def aticking(ctx: TaskContext, gate: str) -> int:
    """Wait at a gate, and leave at another one, again and again, the number of the process that this goes on in."""
    gates = Gate(Path(os.environ["KIT_DIR"]))
    gates.arrive(gate, f"{ctx.run_id}-{ctx.epoch}")
    while not gates.is_open(gate):
        gates.arrive("tick", f"{ctx.run_id}-{os.getpid()}")
        await asyncio.sleep(0.01)
    return os.getpid()


@task(bind=True)
def say(ctx: TaskContext, text: str, gate: str = "") -> None:
    """Log in every way that a body has, then wait at a gate, if there is one, and do it again."""
    talk(ctx, text)
    with Entry(ctx) as entry:
        if gate:
            entry.wait_at(gate)
            talk(ctx, f"{text} again")


@task(bind=True)
async def asay(ctx: TaskContext, text: str, gate: str = "") -> None:
    talk(ctx, text)
    with Entry(ctx) as entry:
        if gate:
            await entry.await_at(gate)
            talk(ctx, f"{text} again")
