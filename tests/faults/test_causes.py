"""Why a run was lost is on its record: signal, exit code, out of memory, the zygote's death; and how large it was."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import wait_until_final
from tests.kit.waiting import wait_for

ROOT = Path("/sys/fs/cgroup")
LIMIT_MB = 64


class MemoryGroup:
    """A control group with little memory, for whom it takes in."""

    def __init__(self) -> None:
        is_first_version = (ROOT / "memory").is_dir()
        self._folder = (ROOT / "memory" if is_first_version else ROOT) / f"kit-{uuid4().hex}"
        self._folder.mkdir()
        limit = "memory.limit_in_bytes" if is_first_version else "memory.max"
        (self._folder / limit).write_text(str(LIMIT_MB << 20))

    def take_in(self, *pids: int) -> None:
        for pid in pids:
            (self._folder / "cgroup.procs").write_text(str(pid))

    def close(self) -> None:
        wait_for(lambda: not (self._folder / "cgroup.procs").read_text(), what="nobody left in the group")
        self._folder.rmdir()


@pytest.fixture
def memory_group(kit: Kit) -> Iterator[MemoryGroup]:
    try:
        group = MemoryGroup()
    except OSError as error:
        pytest.skip(f"needs a control group of its own for memory: {error}")
    yield group
    kit.dispatchers.close()
    group.close()


def test_the_kernels_kill_for_want_of_memory_is_told_from_any_other(kit: Kit, memory_group: MemoryGroup) -> None:
    a = kit.dispatchers(settings={"MAX_INTERRUPTIONS": 1})
    zygote = a.zygote_pid
    assert zygote
    memory_group.take_in(a.pid, zygote, *a.executor_pids)
    greedy, killed = wait_until_final(tasks.awful.delay("eat_memory"), tasks.kill_me.delay())
    assert greedy.errors[0]["message"] == "Its executor died: killed by SIGKILL, out of memory."
    assert greedy.errors[0]["peak_kb"] > 20 * 1024
    assert killed.errors[0]["message"] == "Its executor died: killed by SIGKILL."
    assert [run.status for run in (greedy, killed)] == ["FAILED"] * 2


def test_signal_and_exit_code_of_a_dead_executor_are_on_record(kit: Kit) -> None:
    kit.dispatchers(settings={"MAX_INTERRUPTIONS": 1})
    signals = [int(number) for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGTERM, signal.SIGRTMIN + 3)]
    runs = wait_until_final(*(tasks.kill_me.delay(number) for number in signals), tasks.awful.delay("exit_process"))
    assert [run.errors[0]["message"].removeprefix("Its executor died: ") for run in runs] == [
        "killed by SIGSEGV.",
        "killed by SIGABRT.",
        "killed by SIGTERM.",
        f"killed by signal {signal.SIGRTMIN + 3}.",
        "exit code 0.",
    ]
    assert [run.errors[0]["exit_status"] for run in runs] == [*(-number for number in signals), 0]
    for run in runs:
        assert run.errors[0]["executor"] == f"a:{kit.ledger.rows(run)[0].pid}"
        assert run.errors[0]["peak_kb"] > 1024


def test_a_run_that_was_lost_with_the_zygote_says_so(kit: Kit) -> None:
    a = kit.dispatchers(settings={"MAX_INTERRUPTIONS": 1})
    run = tasks.gated.delay("work")
    kit.gate.wait_until_reached("work")
    zygote = a.zygote_pid
    assert zygote
    os.kill(zygote, signal.SIGKILL)
    (run,) = wait_until_final(run)
    assert run.errors[0]["message"] == "Its executor died: killed by SIGKILL, with its zygote."
