"""The state that bodies of a process share."""

from pathlib import Path

import pytest

from django_dispatch.executors.state import ProcessState


def test_a_directory_that_is_gone_is_no_reason_not_to_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A deployment may delete the release that a dispatcher was started from."""
    folder = tmp_path / "release"
    folder.mkdir()
    monkeypatch.chdir(folder)
    born_before = ProcessState()
    folder.rmdir()
    born_after = ProcessState()
    assert born_after.restore(was_quick=True)
    assert not born_before.restore(was_quick=True), "a body may have deleted it; a fresh executor will not mind"
