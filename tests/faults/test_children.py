"""Executors as the zygote makes them: nothing inherited that hurts, and no storm when they cannot start."""

import asyncio
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from django_dispatch.dispatcher.backoff import Backoff
from django_dispatch.dispatcher.executor import Executor
from django_dispatch.dispatcher.process import start_time
from django_dispatch.dispatcher.zygote import ZygoteProcess
from django_dispatch.executors.fence import Board
from django_dispatch.messages import Kind
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import fresh, wait_until_final
from tests.kit.waiting import wait_for

try:
    import psycopg_pool  # noqa: F401
except ImportError:
    HAS_POOL = False
else:
    HAS_POOL = True


def test_a_body_may_use_a_process_pool_of_its_own(kit: Kit) -> None:
    """An executor is never daemonic, and has default signal handlers to pass on."""
    kit.dispatchers()
    (run,) = wait_until_final(tasks.use_a_pool.delay())
    assert (run.status, run.result) == ("SUCCESSFUL", [1, 2, 3])


def test_a_signal_right_after_birth_kills_the_child_and_nobody_else(database_url: str) -> None:
    """A child that has been forked a moment ago has no handler of its parents' any more."""
    assert asyncio.run(_kill_at_birth(children=100)) == [-signal.SIGTERM] * 100


async def _kill_at_birth(children: int) -> list[int]:
    """Have a zygote fork children, send SIGTERM to each as soon as it is known; return how they ended."""
    statuses: list[int] = []
    gone = asyncio.Event()
    ready = asyncio.Event()
    all_dead = asyncio.Event()

    def on_news(event: str, facts: dict[str, Any]) -> None:
        if event == "ready":
            ready.set()
        elif event == "spawned":
            os.kill(facts["pid"], signal.SIGTERM)
        elif event == "exited":
            statuses.append(facts["status"])
            if len(statuses) == children:
                all_dead.set()

    board = Board.create(slots=children)
    zygote = ZygoteProcess(_config(board), board, 0, boot_mark="test", on_news=on_news, on_gone=lambda _: gone.set())
    async with asyncio.timeout(30):
        await ready.wait()
    executors = []
    for number in range(children):
        executor = Executor(number, Kind.SYNC, number, 1, 0.0, asyncio.get_running_loop(), zygote)
        zygote.spawn(number, kind=Kind.SYNC, slot=number, descriptors=executor.descriptors)
        executors.append(executor)
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        await all_dead.wait()
    assert not gone.is_set(), "the zygote lives on"
    zygote.close()
    async with asyncio.timeout(5):
        await gone.wait()
    for executor in executors:
        executor.close()
    return statuses


def test_an_order_to_a_dead_zygote_disturbs_nobody(database_url: str) -> None:
    """It may be dead and the dispatcher not have seen it yet: what was to be started is settled when it does."""
    asyncio.run(_order_from_the_dead())


async def _order_from_the_dead() -> None:
    ready, gone = asyncio.Event(), asyncio.Event()
    board = Board.create(slots=1)
    zygote = ZygoteProcess(
        _config(board), board, 0, boot_mark="test", on_news=lambda *_: ready.set(), on_gone=lambda _: gone.set()
    )
    async with asyncio.timeout(30):
        await ready.wait()
    zygote.destroy()
    wait_for(lambda: not start_time(zygote.pid), what="the zygote dead")
    executor = Executor(1, Kind.SYNC, 0, 1, 0.0, asyncio.get_running_loop(), zygote)
    zygote.spawn(1, kind=Kind.SYNC, slot=0, descriptors=executor.descriptors)
    async with asyncio.timeout(5):
        await gone.wait()
    executor.close()


def _config(board: Board) -> dict[str, Any]:
    return {
        "dispatcher_pid": os.getpid(),
        "node": "test",
        "board": board.descriptor,
        "slots": board.slots,
        "verbosity": 1,
        "log_format": "text",
        "sys_path": sys.path,
        "async_concurrency": 1,
        "connection_check_seconds": 1,
        "connection_silence_seconds": 1,
        "limits": {"max_runs": None, "max_age_seconds": None, "max_memory_mb": None},
    }


@pytest.mark.parametrize(
    "way",
    ["plain", "early", pytest.param("pool", marks=pytest.mark.skipif(not HAS_POOL, reason="needs psycopg_pool"))],
)
def test_no_session_is_used_by_two_processes(kit: Kit, way: str) -> None:
    """A child holds no inherited connection, even where the project connects when it is imported, or uses a pool."""
    database = {"CONN_MAX_AGE": 0, "OPTIONS": {"pool": True}} if way == "pool" else {"CONN_MAX_AGE": 600}
    env = {"KIT_CONNECTS_EARLY": "1"} if way == "early" else {}
    kit.dispatchers(processes=2, settings={"EXECUTOR_MAX_RUNS": 3}, database=database, env=env)
    wait_until_final(*(tasks.query.delay() for _ in range(30)), seconds=40)
    rows = kit.ledger.rows()
    users: dict[int | None, set[int]] = {}
    for row in rows:
        users.setdefault(row.backend_pid, set()).add(row.pid)
    assert len({row.pid for row in rows}) >= 8, "executors were recycled"
    assert {len(pids) for pids in users.values()} == {1}
    assert len(rows) == 30


@pytest.mark.slow
def test_an_idle_executor_that_stands_still_is_replaced(kit: Kit) -> None:
    """Stopped by a thread that a body left behind: what it was given and never starts costs no attempt."""
    a = kit.dispatchers()
    (first,) = wait_until_final(tasks.stop_executor_later.delay())
    stopped = psutil.Process(first.result)
    wait_for(lambda: stopped.status() == psutil.STATUS_STOPPED, what="the executor stopped")
    (run,) = wait_until_final(tasks.note.delay("fine"))
    assert (run.status, run.result, run.attempt, run.interruptions) == ("SUCCESSFUL", "fine", 1, 0)
    assert f"Executor {first.result} does not start what it was given; it is replaced." in a.log
    assert not stopped.is_running()


@pytest.mark.slow
@pytest.mark.parametrize(
    "how",
    ["zygote raise", "zygote segfault", "zygote hang", "executor exit", "executor segfault", "executor hang"],
)
def test_a_project_that_does_not_start_uses_up_no_run(kit: Kit, tmp_path: Path, how: str) -> None:
    """What cannot start is started again, with growing pauses; meanwhile runs wait unharmed, and then they run."""
    sabotage, tally = tmp_path / "sabotage", tmp_path / "sabotaged"
    sabotage.write_text(how)
    run = tasks.note.delay("at last")
    a = kit.dispatchers(is_awaited=False, settings={"EXECUTOR_READY_TIMEOUT": 5})
    wait_for(lambda: tally.exists() and len(tally.read_text().split()) >= 2, 30, what="two failed starts")
    first, second = map(float, tally.read_text().split()[:2])
    assert second - first > 0.25
    pauses = [float(seconds) for seconds in re.findall(r"a new one is started in ([\d.]+) s", a.log)]
    assert not pauses or pauses[0] >= 0.5
    assert (fresh(run).status, fresh(run).attempt, fresh(run).epoch, fresh(run).errors) == ("READY", 0, 0, [])
    pid = a.pid
    sabotage.unlink()
    (run,) = wait_until_final(run, seconds=30)
    assert (run.status, run.result, run.attempt) == ("SUCCESSFUL", "at last", 1)
    assert a.pid == pid
    a.terminate()
    assert a.exit_code() == 0


def test_starts_that_fail_are_few_in_a_minute() -> None:
    """At most ten starts in the first minute, as the dispatcher spaces them: for its zygote, and for executors."""
    for first in (1.0, 0.5):
        backoff = Backoff(first_seconds=first, longest_seconds=30.0)
        assert sum(backoff.next_seconds() for _ in range(10)) > 60
