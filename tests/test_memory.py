"""The kernel's own count of what it killed for want of memory: where it stands, and what it explains."""

from pathlib import Path

import pytest

from django_dispatch.executors import memory
from django_dispatch.executors.memory import OutOfMemoryKills

PLACES = {
    "version 2": ("0::/a/b", "a/b/memory.events"),
    "version 2, seen from a container": ("0::/docker/1", "memory.events"),
    "version 1": ("4:memory:/a\n0::/", "memory/a/memory.oom_control"),
    "version 1, seen from a container": ("3:cpu,memory:/docker/1", "memory/memory.oom_control"),
}


@pytest.fixture
def groups(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(memory, "GROUPS", tmp_path)
    monkeypatch.setattr(memory, "MEMBERSHIP", tmp_path / "membership")
    return tmp_path


@pytest.mark.parametrize("place", PLACES)
def test_each_kill_explains_one_death(groups: Path, place: str) -> None:
    membership, name = PLACES[place]
    (groups / "membership").write_text(membership + "\n")
    counter = groups / name
    counter.parent.mkdir(parents=True, exist_ok=True)
    counter.write_text("oom 9\noom_kill 3\n")
    kills = OutOfMemoryKills()
    assert not kills.explain_one(), "what was before us explains nothing"
    counter.write_text("oom 12\noom_kill 5\n")
    assert [kills.explain_one() for _ in range(3)] == [True, True, False]


def test_an_old_kill_explains_nothing(groups: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (groups / "membership").write_text("0::/\n")
    (groups / "memory.events").write_text("oom_kill 0\n")
    kills = OutOfMemoryKills()
    (groups / "memory.events").write_text("oom_kill 1\n")
    kills.look()
    monkeypatch.setattr(memory, "RECENT_SECONDS", -1.0)
    assert not kills.explain_one()


@pytest.mark.parametrize("text", ["", "4:pids:/\n", "0::/\n"])
def test_where_nobody_counts_nothing_is_claimed(groups: Path, text: str) -> None:
    (groups / "membership").write_text(text)
    assert not OutOfMemoryKills().explain_one()
