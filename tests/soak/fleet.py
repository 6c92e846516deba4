"""The dispatchers of a soak, and their supervisor, which starts each one again when it has ended."""

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.kit.dispatchers import Dispatcher, Dispatchers
from tests.kit.relay import Relay

from .evidence import Frozen
from .plan import FLEET, LEASE_TTL_SECONDS, MAX_INTERRUPTIONS

RESTART_SECONDS = 0.5
OPTIONS: dict[str, Any] = {
    "processes": 2,
    "async_concurrency": 4,
    "lease_ttl": LEASE_TTL_SECONDS,
    "shutdown_timeout": 2,
}
SETTINGS = {
    "CANCEL_GRACE": 1,
    "MAX_INTERRUPTIONS": MAX_INTERRUPTIONS,
    "RETENTION": {"SUCCESSFUL": 10, "CANCELLED": 15, "FAILED": 20},
}
MORE_DESCRIPTORS = 40
# The patience, the grace, the last writes, and a freeze meanwhile.
END_SECONDS = 60.0


class Fleet:
    """All dispatchers by name: those of the plan's FLEET. ``say`` takes what happened, for the timeline."""

    def __init__(self, folder: Path, url: str, relay: Relay, say: Callable[[str], None]) -> None:
        self._dispatchers = Dispatchers(folder, url)
        self._relay = relay
        self._say = say
        self._ended_at: dict[str, float] = {}
        self._told_at: dict[str, float] = {}
        self._baseline: dict[int, int] = {}
        self._frozen_since: dict[str, tuple[float, frozenset[int]]] = {}
        self.by_name: dict[str, Dispatcher] = {}
        self.frozen: list[Frozen] = []
        self.starts = 0
        self.problems: list[str] = []
        """What no dispatcher should have done, whatever was done to it."""

    @property
    def all(self) -> list[Dispatcher]:
        """Every dispatcher that there ever was."""
        return self._dispatchers.all

    def start(self, name: str) -> None:
        """Start one, and do not wait for it."""
        self.starts += 1
        self.by_name[name] = self._dispatchers(
            name,
            is_awaited=False,
            host=FLEET[name],
            database_url=self._relay.url if name == "relayed" else None,
            settings=SETTINGS,
            env={"KIT_APPS": "tests.soak"},
            **OPTIONS,
        )

    def terminate(self, name: str) -> None:
        """Tell one to end, as for a new release."""
        stop([self.by_name[name].pid], signal.SIGTERM)
        self._told_at.setdefault(name, time.monotonic())

    def supervise(self) -> None:
        """Start again whoever ended, after a moment; kill who was told to end and does not."""
        for name, dispatcher in self.by_name.items():
            if (code := dispatcher.poll()) is None:
                self._insist(name, dispatcher)
                continue
            self._told_at.pop(name, None)
            ended_at = self._ended_at.setdefault(name, time.monotonic())
            if ended_at + RESTART_SECONDS < time.monotonic():
                del self._ended_at[name]
                self._say(f"supervisor: {name} had ended with {code}; started again")
                self.start(name)

    def _insist(self, name: str, dispatcher: Dispatcher) -> None:
        if self._told_at.get(name, time.monotonic()) < time.monotonic() - END_SECONDS:
            self.problems.append(
                f"dispatcher {name} ({dispatcher.pid}) did not end within {END_SECONDS:g} s of SIGTERM"
            )
            dispatcher.kill9()

    # frozen as a whole

    def freeze(self, name: str) -> list[int]:
        """Stop the whole family; return whom."""
        self.thaw(name)
        dispatcher = self.by_name[name]
        pids = [dispatcher.pid, *filter(None, [dispatcher.zygote_pid]), *dispatcher.executor_pids]
        self._frozen_since[name] = (time.time(), frozenset(pids))
        stop(pids, signal.SIGSTOP)
        return pids

    def thaw(self, name: str) -> None:
        """Let the family go on, executors first: the worst order."""
        if name in self._frozen_since:
            began_at, pids = self._frozen_since.pop(name)
            stop(sorted(pids, reverse=True), signal.SIGCONT)
            self.frozen.append(Frozen(pids, began_at, time.time()))

    def thaw_all(self) -> None:
        """Let everybody go on."""
        for name in list(self._frozen_since):
            self.thaw(name)
        for dispatcher in self.by_name.values():
            stop([process.pid for process in dispatcher.processes()], signal.SIGCONT)

    # the end

    def note_descriptors(self) -> None:
        """Remember how many descriptors each has, once it is at work."""
        for pid in self._long_lived():
            self._baseline.setdefault(pid, _descriptors(pid))

    def look_for_leaks(self) -> None:
        """Note who has many more descriptors than it had."""
        counts = [(pid, self._baseline.get(pid, 1 << 30), _descriptors(pid)) for pid in self._long_lived()]
        self.problems += [
            f"process {pid} had {first} descriptors and has {last}"
            for pid, first, last in counts
            if last > first + MORE_DESCRIPTORS
        ]

    def end(self) -> None:
        """Tell all to end, and wait."""
        for dispatcher in self.by_name.values():
            dispatcher.terminate()
        deadline = time.monotonic() + END_SECONDS
        for name, dispatcher in self.by_name.items():
            while (code := dispatcher.poll()) is None and time.monotonic() < deadline:
                time.sleep(0.05)
            if code != 0:
                self.problems.append(f"dispatcher {name} ({dispatcher.pid}) ended with {code} at its SIGTERM")

    def _long_lived(self) -> list[int]:
        return [dispatcher.pid for dispatcher in self.by_name.values() if "Ready:" in dispatcher.log]


def stop(pids: list[int], number: signal.Signals) -> None:
    """Send a signal to processes that may be gone."""
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def remains(folder: Path) -> list[str]:
    """Return every process that descends from a dispatcher of this soak, by the folder in its environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if "KIT_DISPATCHER" in (environment := process.environ()) and environment.get("KIT_DIR") == str(folder):
                found.append(f"process {process.pid}: {' '.join(process.cmdline())}")
        except psutil.Error:
            continue
    return found


def _descriptors(pid: int) -> int:
    try:
        return len(os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return 0
