"""The state that bodies of a process share."""

import faulthandler
import os
import signal
from pathlib import Path

import pytest

from django_dispatch.executors import stacks
from django_dispatch.executors.state import LOOK_SECONDS, ProcessState


def test_a_directory_that_is_gone_is_no_reason_not_to_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment may delete the release that a dispatcher was started from."""
    folder = tmp_path / "release"
    folder.mkdir()
    monkeypatch.chdir(folder)
    born_before = ProcessState()
    folder.rmdir()
    born_after = ProcessState()
    for state in (born_before, born_after):
        assert state.restore(everything=False)


def test_stacks_are_told_whatever_a_body_made_of_the_signal(tmp_path: Path) -> None:
    """By default the signal would end the process."""
    with (tmp_path / "stacks").open("w+b") as dump:
        before = signal.getsignal(stacks.STACK_SIGNAL)
        try:
            for handler in (signal.SIG_DFL, lambda *_: None):
                stacks.answer_signals(dump.fileno())
                signal.signal(stacks.STACK_SIGNAL, handler)
                stacks.answer_signals(dump.fileno())
                dump.truncate(0)
                os.kill(os.getpid(), stacks.STACK_SIGNAL)
                assert b"in test_stacks_are_told" in Path(dump.name).read_bytes()
        finally:
            faulthandler.unregister(stacks.STACK_SIGNAL)
            signal.signal(stacks.STACK_SIGNAL, before)


def test_everything_is_looked_at_once_quick_bodies_have_taken_long_enough_together() -> None:
    state = ProcessState()
    looks = [state.is_due(LOOK_SECONDS / 4) for _ in range(8)]
    assert looks == [False, False, False, True] * 2
    assert state.is_due(LOOK_SECONDS)
