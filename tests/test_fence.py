"""The board in shared memory, and what an executor does with a run that the fence does not allow."""

import os
import signal
import socket
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest

from django_dispatch.executors.fence import NEVER, Board, now_ns
from django_dispatch.executors.limits import Lifetime, Limits
from django_dispatch.executors.loop import LoopExecutor
from django_dispatch.executors.sync import SyncExecutor
from django_dispatch.messages import Assignment, FrameReader, Outcome, Ready, Stop, Verdict, pack_tickets

HOUR_NS = 3600 * 10**9
LEASE, OTHER = uuid4().bytes, uuid4().bytes


def test_a_new_board_allows_nobody_and_kills_nobody() -> None:
    board = Board.create(slots=1)
    assert not board.allows(LEASE)
    assert board.deadline_ns() == NEVER


def test_the_fence_is_for_one_lease_and_until_its_deadline() -> None:
    board = Board.create(slots=1)
    board.raise_fence(LEASE, now_ns() + HOUR_NS)
    assert board.allows(LEASE)
    assert not board.allows(OTHER)
    board.raise_fence(LEASE, now_ns() - 1)
    assert not board.allows(LEASE)
    for lease in (bytes(16), b"\xff" * 16, b"\x80" + bytes(15)):
        board.raise_fence(lease, now_ns() + HOUR_NS)
        assert board.allows(lease)


def test_another_process_sees_the_fence_through_the_descriptor() -> None:
    board = Board.create(slots=3)
    seen = Board(os.dup(board.descriptor), slots=3)
    board.raise_fence(LEASE, now_ns() + HOUR_NS)
    assert seen.allows(LEASE)
    assert seen.deadline_ns() == board.deadline_ns()


class Interrupted:
    """The cells as a reader sees them that is interrupted once, before it reads its third cell."""

    def __init__(self, cells: Any, interrupt: Callable[[], None]) -> None:
        self._cells = cells
        self._interrupt = interrupt
        self._reads = 0

    def __getitem__(self, cell: int) -> int:
        self._reads += 1
        if self._reads == 3:
            self._interrupt()
        value: int = self._cells[cell]
        return value


def test_a_reader_that_a_writer_comes_between_reads_again() -> None:
    writer = Board.create(slots=1)
    writer.raise_fence(LEASE, now_ns() + HOUR_NS)
    reader = Board(os.dup(writer.descriptor), slots=1)
    cells = Interrupted(reader._cells, lambda: writer.raise_fence(OTHER, now_ns() + HOUR_NS))
    reader._cells = cells  # type: ignore[assignment]
    assert reader.allows(OTHER), "neither half of one and half of the other, nor what was there before"


def test_a_fence_is_never_seen_half_written() -> None:
    """Lease and deadline belong together: a reader gets both of one writing, of a writer in another process."""
    board = Board.create(slots=1)

    def write() -> None:
        while True:
            board.raise_fence(LEASE, now_ns() + HOUR_NS)
            board.raise_fence(OTHER, 0)

    with InAChild(write):
        while board.deadline_ns() == NEVER:
            pass
        assert not any(board.allows(OTHER) for _ in range(100_000))


def test_a_stop_names_the_attempt_that_it_means() -> None:
    """A late signal never hits the next run."""
    board = Board.create(slots=2)
    board.order_stop(1, (7, 2), Stop.TIMEOUT)
    assert board.stop_ordered(1, (7, 2)) is Stop.TIMEOUT
    for slot, token in ((1, (7, 3)), (1, (8, 2)), (0, (7, 2))):
        assert board.stop_ordered(slot, token) is None
    board.clear_slot(1)
    assert board.stop_ordered(1, (7, 2)) is None


def test_a_loop_that_turns_shows_it() -> None:
    board = Board.create(slots=1)
    assert board.last_beat_ns(0) == 0
    before = now_ns()
    board.beat(0)
    assert before <= board.last_beat_ns(0) <= now_ns()


# what executors make of it


def sync_executor(**common: Any) -> None:
    SyncExecutor(**common, stacks=os.memfd_create("stacks")).serve()


def loop_executor(**common: Any) -> None:
    LoopExecutor(**common, stacks=os.memfd_create("stacks"), concurrency=4).serve()


@pytest.mark.parametrize("executor", [sync_executor, loop_executor])
@pytest.mark.parametrize("why", ["another lease", "past the deadline"])
def test_an_executor_starts_nothing_that_the_fence_does_not_allow(executor: Callable[..., None], why: str) -> None:
    """A body starts only under the very lease that is on the board, and before its deadline."""
    board = Board.create(slots=1)
    if why == "another lease":
        board.raise_fence(OTHER, now_ns() + HOUR_NS)
    else:
        board.raise_fence(LEASE, now_ns() - 1)
    tickets, their_tickets = socket.socketpair()
    stream, their_stream = socket.socketpair()
    # The task does not even exist: whoever looked it up would fail otherwise than expected here.
    stream.sendall(Assignment(1, LEASE, 5, 9, 1, 0, "nowhere.tasks.gone", "[]", "{}", "default").encode())
    tickets.sendall(pack_tickets([1]))
    with InAChild(
        lambda: executor(
            name="test",
            slot=0,
            board=board,
            lifetime=Lifetime(Limits(None, None, None)),
            tickets=their_tickets,
            stream=their_stream,
        )
    ):
        reader, found = FrameReader(), []
        stream.settimeout(10)
        while len(found) < 2:
            found += reader.feed(stream.recv(65536))
    assert found == [Ready(), Outcome(5, 9, Verdict.UNSTARTED)]
    for end in (tickets, their_tickets, stream, their_stream):
        end.close()


class InAChild:
    """Run a function in a forked child, which is killed at the end: executors own their process."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def __enter__(self) -> None:
        self._pid = os.fork()
        if self._pid == 0:
            try:
                self._function()
            finally:
                os._exit(0)

    def __exit__(self, *_: object) -> None:
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)
