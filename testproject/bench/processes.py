"""Dispatchers as a service manager starts them, and what their processes cost."""

import contextlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping

import psutil

PATIENCE_SECONDS = 120.0


class Dispatcher:
    """One ``manage.py rundispatcher`` on a database, and the processes that it started."""

    def __init__(self, url: str, *options: str, env: Mapping[str, str] | None = None) -> None:
        self._popen = subprocess.Popen(
            [sys.executable, "manage.py", "rundispatcher", "-v0", "--no-reload", "--metrics-port=0", *options],
            env=environment(url) | dict(env or {}),
        )
        self.process = psutil.Process(self._popen.pid)

    @property
    def zygote(self) -> psutil.Process | None:
        return next(iter(self.process.children()), None)

    @property
    def executors(self) -> list[psutil.Process]:
        return [] if self.zygote is None else self.zygote.children()

    def wait_until_ready(self, executors: int) -> None:
        """Wait until it has a lease: only then are executors started."""
        wait_for(lambda: len(self.executors) >= executors, f"{executors} executors")

    def wait(self) -> int:
        """Wait until it has ended by itself; return the exit code."""
        return self._popen.wait()

    def kill(self) -> int:
        """``kill -9`` the dispatcher alone; return when, on the monotonic clock, in nanoseconds."""
        now = time.monotonic_ns()
        self._popen.kill()
        self._popen.wait()
        return now

    def stop(self) -> None:
        """End it gracefully."""
        if self._popen.poll() is None:
            self._popen.terminate()
        self._popen.wait()


@contextlib.contextmanager
def dispatchers(url: str, count: int, *options: str, executors: int = 0) -> Iterator[list[Dispatcher]]:
    """Start so many dispatchers and wait until each is ready; end them."""
    started: list[Dispatcher] = []
    try:
        started.extend(Dispatcher(url, f"--node=bench-{number}", *options) for number in range(count))
        for dispatcher in started:
            dispatcher.wait_until_ready(executors)
        yield started
    finally:
        for dispatcher in started:
            dispatcher.stop()


def environment(url: str) -> dict[str, str]:
    """Return the environment of a process of this project on another database."""
    return os.environ | {"DATABASE_URL": url, "DEBUG": "", "DJANGO_SETTINGS_MODULE": "testproject.settings"}


def wait_for(condition: Callable[[], object], what: str, *, pause_seconds: float = 0.02) -> None:
    """Return when the condition holds."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"Waited {PATIENCE_SECONDS:g} s in vain for {what}.")
        time.sleep(pause_seconds)


def proportional_mb(process: psutil.Process) -> float:
    """Return the proportional set size: memory that processes share is divided among them."""
    return float(process.memory_full_info().pss) / 1e6


def resident_mb(process: psutil.Process) -> float:
    """Return the resident set size."""
    return float(process.memory_info().rss) / 1e6


def cpu_seconds(process: psutil.Process) -> float:
    """Return the processor time that it has used, without its children's."""
    times = process.cpu_times()
    return float(times.user + times.system)
