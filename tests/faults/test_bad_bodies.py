"""Bodies that hang, crash, cut their executor off or start processes, side by side with innocent ones."""

from collections.abc import Iterator

import pytest
from pytest_django.plugin import DjangoDbBlocker

from django_dispatch.models import Run
from tests.kit import misdeeds, tasks
from tests.kit.fixtures import Kit, open_kit
from tests.kit.runs import wait_until_final
from tests.kit.waiting import wait_for

OBEYED, KILLED = "The run was told to stop.", "did not stop when told to; it was killed."
HANGS = {
    "sleep": OBEYED,
    "wait_for_a_silent_peer": OBEYED,
    "except_exception": OBEYED,
    "compute_in_c": KILLED,
    "block_in_c": KILLED,
    "catch_everything": KILLED,
    "ignore_the_signal": KILLED,
    "stop_myself": KILLED,
}
CUT_OFF = "Its executor closed or spoiled its connection to the dispatcher, and was killed."
ENDS = {
    "segfault": "Its executor died: killed by SIGSEGV.",
    "abort": "Its executor died: killed by SIGABRT.",
    "kill_myself": "Its executor died: killed by SIGKILL.",
    "overflow_the_stack": "Its executor died: killed by SIGSEGV.",
    "close_every_file": "Its executor died: exit code 1.",
    "close_every_file_and_stay": CUT_OFF,
    "write_to_every_socket": CUT_OFF,
}
STARTS = {
    "program": "fine\n",
    "fork_and_exec": 0,
    "pool_by_fork": [1, 2, 3],
    "pool_by_spawn": [1, 2, 3],
    "pool_by_forkserver": [1, 2, 3],
    "process_pool_executor": [1, 2, 3],
}
EXECUTORS = 2

Runs = dict[str, Run]


@pytest.fixture(scope="module")
def shared_kit(
    tmp_path_factory: pytest.TempPathFactory, database_url: str, django_db_blocker: DjangoDbBlocker
) -> Iterator[Kit]:
    with open_kit(tmp_path_factory.mktemp("bad"), database_url, django_db_blocker) as kit:
        yield kit


@pytest.fixture(scope="module")
def runs(shared_kit: Kit) -> Runs:
    """Every bad body once, an innocent neighbour with each, on one dispatcher that goes on."""
    a = shared_kit.dispatchers(processes=EXECUTORS, settings={"CANCEL_GRACE": 0.3, "MAX_INTERRUPTIONS": 1})
    bad: dict[str, Run] = {}
    neighbours: list[Run] = []
    for kind, group in (("Hangs", HANGS), ("Ends", ENDS), ("Starts", STARTS)):
        for name in group:
            timeout = 0.3 if kind == "Hangs" else None
            bad[name] = tasks.misbehave.apply_async((kind, name), timeout=timeout)
            neighbours.append(tasks.note.delay(name))
    bad["fork_and_report"] = tasks.fork_and_report.delay()
    ended = dict(zip(bad, wait_until_final(*bad.values(), seconds=120), strict=True))
    around = wait_until_final(*neighbours, seconds=30)
    assert [(run.status, run.attempt, run.interruptions) for run in around] == [("SUCCESSFUL", 1, 0)] * len(around)
    wait_for(lambda: a.is_ready(EXECUTORS) and len(a.executor_pids) == EXECUTORS, what="as many executors as before")
    after = wait_until_final(*(tasks.note.delay(number) for number in range(10)))
    assert {run.status for run in after} == {"SUCCESSFUL"}
    a.terminate()
    assert a.exit_code() == 0, "the dispatcher of the beginning, with nothing left to be reclaimed"
    return ended


@pytest.mark.slow
@pytest.mark.parametrize("name", HANGS)
def test_a_body_that_hangs_is_timed_out_by_an_exception_or_by_a_kill(runs: Runs, name: str, shared_kit: Kit) -> None:
    run = runs[name]
    (error,) = run.errors
    assert (run.status, run.attempt, error["kind"]) == ("FAILED", 1, "timeout")
    assert error["message"].endswith(HANGS[name])
    assert shared_kit.ledger.starts(run) == 1


@pytest.mark.parametrize("name", ENDS)
def test_a_body_that_ends_its_process_is_a_loss_that_says_how(runs: Runs, name: str) -> None:
    run = runs[name]
    (error,) = run.errors
    assert (run.status, run.attempt, run.interruptions, run.result) == ("FAILED", 1, 1, None)
    assert (error["kind"], error["message"]) == ("lost", ENDS[name])


@pytest.mark.parametrize("name", STARTS)
def test_a_body_may_start_processes_in_every_way(runs: Runs, name: str) -> None:
    """An executor is not daemonic, and passes on default signal handlers."""
    run = runs[name]
    assert (run.status, run.attempt, run.result, run.errors) == ("SUCCESSFUL", 1, STARTS[name], [])


def test_a_fork_reports_nothing(runs: Runs) -> None:
    """Neither an outcome nor progress: its run is its parent's, and so are the pipes."""
    run = runs["fork_and_report"]
    assert (run.status, run.result, run.attempt, run.progress) == ("SUCCESSFUL", "the parent", 1, None)


def test_the_groups_are_complete() -> None:
    for kind, group in ((misdeeds.Hangs, HANGS), (misdeeds.Ends, ENDS), (misdeeds.Starts, STARTS)):
        assert {name for name in vars(kind) if not name.startswith("_")} == group.keys()
