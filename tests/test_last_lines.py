"""The last lines of an executor: bounded, of whatever logger, and readable whatever was logged."""

import gc
import logging
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from django_dispatch.executors import last_lines
from django_dispatch.executors.fence import Board
from django_dispatch.logs import current_run


@pytest.fixture
def memory() -> Iterator[memoryview]:
    """A slot of the board, between two others that nobody writes to."""
    board = Board.create(slots=3)
    factory = logging.getLogRecordFactory()
    last_lines.keep(board.lines(1))
    yield board.lines(1)
    logging.setLogRecordFactory(factory)
    assert [last_lines.read(board.lines(slot)) for slot in (0, 2)] == ["", ""]
    board.clear_slot(1)
    assert last_lines.read(board.lines(1)) == ""


@pytest.fixture
def quiet() -> logging.Logger:
    """A logger whose records nobody else handles."""
    logger = logging.getLogger("tests.last_lines")
    logger.propagate = False
    logger.setLevel(logging.INFO)
    logger.handlers = [logging.NullHandler()]
    return logger


def test_each_line_has_its_run_level_logger_and_error(memory: memoryview, quiet: logging.Logger) -> None:
    quiet.info("before %s", "any run")
    token = current_run.set({"run_id": 7})
    try:
        quiet.debug("nobody wants to know")
        raise ValueError("no")
    except ValueError:
        quiet.exception("two\nlines")
    finally:
        current_run.reset(token)
    assert last_lines.read(memory).splitlines() == [
        "INFO tests.last_lines: before any run",
        "[run 7] ERROR tests.last_lines: two lines (ValueError: no)",
    ]


def test_they_are_the_newest_and_bounded(memory: memoryview, quiet: logging.Logger) -> None:
    for number in range(1000):
        quiet.info("line %s", number)
    lines = last_lines.read(memory).splitlines()
    assert [line.rpartition(" ")[2] for line in lines] == [str(number) for number in range(980, 1000)]
    for _ in range(30):
        quiet.info("ü" * 10_000)
    text = last_lines.read(memory)
    assert len(text.encode(errors="replace")) <= last_lines.LARGEST_LINES + 2
    assert text.endswith("üüü")


def test_what_cannot_be_shown_is_said_to_be_so(memory: memoryview, quiet: logging.Logger) -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError("no")

    for message, arguments in (("%s", (Unprintable(),)), ("%s and %s", (1,)), ("\ud800", ())):
        quiet.makeRecord(quiet.name, logging.INFO, "a file", 1, message, arguments, None)
    lines = last_lines.read(memory).splitlines()
    assert lines[0] == "(a line of tests.last_lines that cannot be shown: RuntimeError)"
    assert lines[1] == "(a line of tests.last_lines that cannot be shown: TypeError)"
    assert lines[2] == "INFO tests.last_lines: ?"


def test_many_threads_may_log(memory: memoryview, quiet: logging.Logger) -> None:
    """Wherever memory is taken garbage may be collected, and another thread get its turn."""

    def log(_: int) -> None:
        for number in range(200):
            quiet.info("line %s", number)

    def yield_turn(*_: object) -> None:
        time.sleep(0)

    threshold = gc.get_threshold()
    gc.callbacks.append(yield_turn)
    gc.set_threshold(1)
    try:
        with ThreadPoolExecutor(8) as threads:
            list(threads.map(log, range(8)))
    finally:
        gc.set_threshold(*threshold)
        gc.callbacks.remove(yield_turn)
    quiet.info("all of them")
    assert last_lines.read(memory).endswith("line 199\nINFO tests.last_lines: all of them")
