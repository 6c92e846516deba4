"""Gates: a body says that it has come to one, and waits until the test opens it. Files, so any process can."""

from collections.abc import Callable
from pathlib import Path

from .waiting import wait_for


class Gate:
    """The gates of one test. Names are free; each attempt reaches a gate once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)

    # the test's side

    def open(self, *names: str) -> None:
        """Let everybody pass, now and later."""
        for name in names:
            (self.folder / f"{name}.open").touch()

    def reached(self, name: str) -> list[str]:
        """Return who has come to a gate, each as ``<run id>-<epoch>``."""
        return sorted(path.name.rpartition(".at-")[2] for path in self.folder.glob(f"{name}.at-*"))

    def wait_until_reached(self, *names: str, times: int = 1, seconds: float = 20) -> None:
        """Wait until each gate was reached by so many attempts."""
        __tracebackhide__ = True
        for name in names:
            wait_for(self._counter(name, times), seconds, what=f"gate {name!r} reached {times} times")

    def _counter(self, name: str, times: int) -> Callable[[], bool]:
        return lambda: len(self.reached(name)) >= times

    # the body's side

    def arrive(self, name: str, who: str) -> None:
        """Say that this attempt has come to the gate."""
        (self.folder / f"{name}.at-{who}").touch()

    def is_open(self, name: str) -> bool:
        return (self.folder / f"{name}.open").exists()
