"""A body's question to its dispatcher, from the executor's side: what else arrives meanwhile, and stops in between."""

import json
import signal
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from django_dispatch.context import TaskContext
from django_dispatch.exceptions import ControlError, RunCancelled
from django_dispatch.executors.body import Attempt
from django_dispatch.executors.fence import Board
from django_dispatch.executors.limits import Lifetime, Limits
from django_dispatch.executors.sync import SyncExecutor
from django_dispatch.messages import Answer, Assignment, FrameReader, Question, Stop

ASSIGNMENT = Assignment(7, b"l" * 16, 1, 1, 1, 0, "task", "[]", "{}", "default")


class Ends:
    """An executor that is in a body, and the dispatcher's end of its stream."""

    def __init__(self) -> None:
        self._tickets, theirs = socket.socketpair()
        self.stream, their_stream = socket.socketpair()
        self.board = Board.create(slots=1)
        self.executor = SyncExecutor(
            name="x",
            slot=0,
            board=self.board,
            lifetime=Lifetime(Limits(None, None, None)),
            tickets=theirs,
            stream=their_stream,
            stacks=-1,
        )
        self.attempt = self.executor._current = Attempt(ASSIGNMENT, "x")
        self._reader = FrameReader()

    def ask(self, seconds: float = 10.0) -> str:
        return self.executor._ask(self.attempt, "{}", seconds)

    def question(self) -> Question:
        """Wait for the executor's question."""
        self.stream.settimeout(10)
        while True:
            for message in self._reader.feed(self.stream.recv(4096)):
                assert isinstance(message, Question)
                return message

    def stop(self, thread: threading.Thread | None = None) -> None:
        """Have the body stopped by a signal to a thread; to this one, before it returns."""
        self.board.order_stop(0, self.attempt.token, Stop.CANCEL)
        signal.pthread_kill((thread or threading.current_thread()).ident or 0, signal.SIGUSR1)

    def close(self) -> None:
        for end in (self._tickets, self.stream, self.executor._stream):
            end.close()


@pytest.fixture
def ends() -> Iterator[Ends]:
    before = signal.getsignal(signal.SIGUSR1)
    ends = Ends()
    signal.signal(signal.SIGUSR1, ends.executor._on_stop)
    yield ends
    signal.signal(signal.SIGUSR1, before)
    ends.close()


def later(work: Any) -> threading.Thread:
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_an_assignment_that_comes_with_the_answer_is_kept_and_an_old_answer_dropped(ends: Ends) -> None:
    def dispatcher() -> None:
        number = ends.question().number
        frames = Answer(number - 1, "old").encode() + ASSIGNMENT.encode() + Answer(number, "new").encode()
        for byte in range(0, len(frames), 5):  # however it is cut
            ends.stream.sendall(frames[byte : byte + 5])

    thread = later(dispatcher)
    assert ends.ask() == "new"
    thread.join()
    assert ends.executor._inbox._assignments == {7: ASSIGNMENT}


def test_a_stop_that_comes_while_the_stream_is_read_waits_until_it_was(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between taking bytes off the socket and keeping them, a raising signal would lose them."""
    read = ends.executor._inbox.read_stream

    def disturbed(*flags: int) -> None:
        ends.stop()
        read(*flags)

    monkeypatch.setattr(ends.executor._inbox, "read_stream", disturbed)
    thread = later(lambda: (ends.question(), ends.stream.sendall(ASSIGNMENT.encode())))
    with pytest.raises(RunCancelled):
        ends.ask()
    thread.join()
    assert ends.executor._inbox._assignments == {7: ASSIGNMENT}
    assert not ends.executor._asking.locked()


class Disturbed:
    """A lock; a stop comes when somebody has just taken it."""

    def __init__(self, ends: Ends) -> None:
        self._lock, self._ends = ends.executor._asking, ends

    def acquire(self, timeout: float) -> bool:
        taken = self._lock.acquire(timeout=timeout)
        self._ends.stop()
        return taken

    def release(self) -> None:
        self._lock.release()


def test_a_stop_that_comes_when_it_is_ones_turn_to_ask_leaves_the_turn_to_others(
    ends: Ends, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = ends.executor._asking
    monkeypatch.setattr(ends.executor, "_asking", Disturbed(ends))
    with pytest.raises(RunCancelled):
        ends.ask()
    assert not lock.locked()


def test_a_stop_that_comes_while_another_thread_asks_ends_the_waiting(ends: Ends) -> None:
    with ends.executor._asking:
        threading.Timer(0.1, lambda: ends.stop(threading.main_thread())).start()
        with pytest.raises(RunCancelled):
            ends.ask(seconds=60)
        with pytest.raises(TimeoutError):
            ends.ask(seconds=0)


def test_a_stop_that_comes_before_the_body_is_armed_is_found(ends: Ends) -> None:
    ends.executor._current = None
    ends.stop()
    ends.executor._current = ends.attempt
    with pytest.raises(RunCancelled):
        ends.executor._call(ends.attempt)


def test_a_stop_that_comes_while_the_answer_does_not_ends_the_waiting(ends: Ends) -> None:
    main = threading.main_thread()

    def dispatcher() -> None:
        ends.question()
        ends.stop(main)

    thread = later(dispatcher)
    with pytest.raises(RunCancelled):
        ends.ask(seconds=60)
    thread.join()


def test_a_question_that_nobody_answers_ends_in_time(ends: Ends) -> None:
    context = TaskContext(
        run_id=1, epoch=1, attempt=1, worker_id="x", report=None, why_stop=None, ask=lambda _, s: ends.ask(s)
    )
    began = time.monotonic()
    with pytest.raises(ControlError, match=r"No answer to the control command 'alive' within 0\.05 s"):
        context.control("alive", timeout=0.05)
    assert time.monotonic() - began >= 0.05


def test_several_threads_of_a_body_ask_one_after_the_other(ends: Ends) -> None:
    def dispatcher() -> None:
        for _ in range(8):
            question = ends.question()
            ends.stream.sendall(Answer(question.number, str(question.number)).encode())

    answers: list[str] = []
    thread = later(dispatcher)
    askers = [later(lambda: answers.append(ends.ask())) for _ in range(8)]
    for asker in askers:
        asker.join()
    thread.join()
    assert sorted(answers) == [str(number) for number in range(1, 9)]


def test_a_plain_call_has_nobody_to_ask() -> None:
    with pytest.raises(ControlError, match="this is a plain call"):
        TaskContext.detached().control("alive")


def test_the_answer_is_a_document() -> None:
    asked: list[Any] = []

    def ask(text: str, seconds: float) -> str:
        asked.append((json.loads(text), seconds))
        return '{"a": 1}'

    context = TaskContext(run_id=1, epoch=1, attempt=1, worker_id="x", report=None, why_stop=None, ask=ask)
    assert context.control("running", {"queue": "q"}, timeout=2) == {"a": 1}
    assert asked == [({"control": "running", "control_data": {"queue": "q"}}, 2)]
