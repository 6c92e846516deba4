"""What bodies print passes through to the dispatcher's output; whoever reads that may be slow, or gone."""

import contextlib
import fcntl
import os
from collections.abc import Callable, Iterator

import pytest

from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import wait_until_final

F_SETPIPE_SZ = 1031
SMALLEST_PIPE = 4096
RUNS = 100  # each a line of the log, which together fill the pipe several times


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    reader, writer = os.pipe()
    fcntl.fcntl(writer, F_SETPIPE_SZ, SMALLEST_PIPE)
    yield reader, writer
    for descriptor in (reader, writer):
        if descriptor > 0:
            os.close(descriptor)


def test_nobody_waits_for_a_log_that_is_not_read(kit: Kit, pipe: tuple[int, int]) -> None:
    """A body that prints blocks, and its timeout ends it. The dispatcher drops lines rather than to wait."""
    a = kit.dispatchers(processes=2, output=pipe[1], is_awaited=False)
    printing = tasks.print_for_ever.apply_async(timeout=1)
    notes = tasks.note.delay_many([(number,) for number in range(RUNS)])
    printing, *notes = wait_until_final(printing, *notes, seconds=60)
    assert (printing.status, printing.errors[0]["kind"]) == ("FAILED", "timeout")
    assert {(run.status, run.attempt) for run in notes} == {("SUCCESSFUL", 1)}
    a.terminate()
    assert a.exit_code() == 0


def test_a_log_without_a_reader_costs_nothing_but_the_log(kit: Kit, pipe: tuple[int, int]) -> None:
    a = kit.dispatchers(output=pipe[1], is_awaited=False)
    wait_until_final(tasks.note.delay("it has started"), seconds=30)
    os.dup2(os.open(os.devnull, os.O_RDONLY), pipe[0])
    runs = wait_until_final(*tasks.note.delay_many([(number,) for number in range(10)]), seconds=30)
    (printing,) = wait_until_final(tasks.print_for_ever.delay())
    assert printing.errors[0]["exception_class"] == "BrokenPipeError"
    (after,) = wait_until_final(tasks.note.delay())
    assert {run.status for run in (*runs, after)} == {"SUCCESSFUL"}
    a.terminate()
    assert a.exit_code() == 0


def full(reader: int, writer: int) -> int:
    """A pipe that is full already, and that nobody reads."""
    os.set_blocking(writer, False)
    with contextlib.suppress(BlockingIOError):
        while True:
            os.write(writer, b"x" * SMALLEST_PIPE)
    os.set_blocking(writer, True)
    return writer


def without_a_reader(reader: int, writer: int) -> int:
    os.dup2(os.open(os.devnull, os.O_RDONLY), reader)
    return writer


def on_a_full_disk(reader: int, writer: int) -> int:
    os.dup2(os.open("/dev/full", os.O_WRONLY), writer)
    return writer


@pytest.mark.parametrize("output", [full, without_a_reader, on_a_full_disk])
def test_output_that_fails_from_the_first_line_on_costs_nothing_but_the_log(
    kit: Kit, pipe: tuple[int, int], output: Callable[[int, int], int]
) -> None:
    a = kit.dispatchers("a", output=output(*pipe), is_awaited=False, env={"KIT_LOGGING": "{}"})
    kit.gate.open("now")
    cleaned_up_after = tasks.leave_programs.delay("now")  # which its executor has to say
    runs = wait_until_final(cleaned_up_after, *tasks.note.delay_many([(number,) for number in range(10)]), seconds=30)
    assert {(run.status, run.attempt) for run in runs} == {("SUCCESSFUL", 1)}
    a.terminate()
    assert a.exit_code() == 0


@pytest.mark.parametrize("closed", [">&-", "2>&-"])
def test_a_stream_that_is_closed_costs_nothing_but_what_would_be_on_it(kit: Kit, closed: str) -> None:
    wrapper = ["sh", "-c", f'exec "$@" {closed}', "sh"]
    a = kit.dispatchers("a", wrapper=wrapper, is_awaited=False, async_concurrency=2)
    runs = wait_until_final(tasks.awful.delay("print_nul"), tasks.anote.delay(), seconds=30)
    assert {(run.status, run.attempt) for run in runs} == {("SUCCESSFUL", 1)}
    a.terminate()
    assert a.exit_code() == 0
    assert ("Ended; nothing was left behind." in a.log) == (closed == ">&-")
