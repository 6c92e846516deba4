"""Real dispatchers, as a service manager would start them, with all that descends from them in view."""

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psutil
import pytest

from django_dispatch.models import Lease

from .waiting import POLL_SECONDS, wait_for

BASE_DIR = Path(__file__).resolve().parent.parent.parent
MARK = "KIT_DISPATCHER"
OUTLIVES_SECONDS = 5.0  # one that is just starting sees only then that it has no dispatcher
DEFAULTS = {"processes": 1, "async_concurrency": 0, "lease_ttl": 3, "poll_interval": 0.2, "shutdown_timeout": 10}


class Dispatcher:
    """One ``manage.py rundispatcher`` and its family."""

    def __init__(
        self, node: str, command: list[str], env: Mapping[str, str], log: Path, output: int | None = None
    ) -> None:
        self.node = node
        self.log_path = log
        self._mark = f"{MARK}={uuid4().hex}"
        name, _, value = self._mark.partition("=")
        with log.open("ab") as file:
            self._process = subprocess.Popen(
                command,
                cwd=BASE_DIR,
                env={**env, name: value},
                stdin=subprocess.DEVNULL,
                stdout=file if output is None else output,
                stderr=file if output is None else output,
                start_new_session=True,
            )
        self.pid = self._process.pid

    # what it says and has

    @property
    def log(self) -> str:
        """All that it and its executors have written."""
        return self.log_path.read_text(errors="replace")

    def wait_for_log(self, text: str, seconds: float = 15) -> None:
        """Wait until the log has this text."""
        __tracebackhide__ = True
        wait_for(lambda: text in self.log, seconds, what=f"{text!r} in the log of {self.node}")

    @property
    def zygote_pid(self) -> int | None:
        for child in self._children(self.pid):
            if "django_dispatch.executors.zygote" in _command_of(child):
                return child.pid
        return None

    @property
    def executor_pids(self) -> list[int]:
        zygote = self.zygote_pid
        return [] if zygote is None else [child.pid for child in self._children(zygote)]

    def processes(self) -> list[psutil.Process]:
        """Return everything alive that it started, by whatever way: all inherit a mark in their environment."""
        return [process for process in psutil.process_iter() if self._mark in _environment_of(process)]

    @property
    def lease_id(self) -> UUID | None:
        """The lease that it holds, by the database."""
        lease = Lease.objects.filter(node=self.node, pid=self.pid).order_by("-acquired_at").first()
        return lease.id if lease else None

    def wait_until_ready(self, executors: int = 1, seconds: float = 30) -> None:
        """Wait until it has a lease and so many executors."""
        __tracebackhide__ = True
        wait_for(lambda: self.is_ready(executors), seconds, what=f"dispatcher {self.node} ready")

    def is_ready(self, executors: int = 1) -> bool:
        if self._process.poll() is not None:
            pytest.fail(f"Dispatcher {self.node} ended with {self._process.returncode}.")
        return "Ready:" in self.log and self.lease_id is not None and len(self.executor_pids) >= executors

    # what is done to it

    def signal(self, number: signal.Signals) -> None:
        self._process.send_signal(number)

    def terminate(self) -> None:
        """Ask it to end, as a service manager does."""
        self.signal(signal.SIGTERM)

    def kill9(self) -> None:
        """Kill the dispatcher, and it alone; return when it is dead."""
        self._process.kill()
        self._process.wait()

    def poll(self) -> int | None:
        """Return its exit code if it has ended."""
        return self._process.poll()

    def exit_code(self, seconds: float = 30) -> int:
        """Wait until it has ended; return its exit code."""
        __tracebackhide__ = True
        code = wait_for(lambda: (self.poll(),) if self.poll() is not None else None, seconds)
        assert code is not None
        assert code[0] is not None
        return code[0]

    def remains(self) -> list[str]:
        """Kill it; return what outlived it by some seconds (a zombie does not), and kill that too."""
        for process in self.processes():
            process.send_signal(signal.SIGCONT)
        if self._process.poll() is None:
            self.kill9()
        deadline = time.monotonic() + OUTLIVES_SECONDS
        while (alive := self.processes()) and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        remains = [_description_of(process) for process in alive]
        for process in alive:
            process.kill()
        return remains

    @staticmethod
    def _children(pid: int) -> list[psutil.Process]:
        try:
            return psutil.Process(pid).children()
        except psutil.NoSuchProcess:
            return []


class Dispatchers:
    """``dispatchers(node, …)`` starts one; all are gone after close()."""

    def __init__(self, folder: Path, url: str) -> None:
        self._folder = folder
        self._url = url
        self._numbers = itertools.count(1)
        self.all: list[Dispatcher] = []

    def __call__(
        self,
        node: str = "a",
        *,
        is_awaited: bool = True,
        is_mute: bool = False,
        host: str | None = None,
        database_url: str | None = None,
        settings: Mapping[str, Any] | None = None,
        database: Mapping[str, Any] | None = None,
        env: Mapping[str, str] | None = None,
        output: int | None = None,
        wrapper: Sequence[str] = (),
        **options: Any,
    ) -> Dispatcher:
        """Start a dispatcher and wait until it is ready, or not (``is_awaited``).

        ``options`` are those of the command (``lease_ttl=2``, ``burst=True``), ``settings`` keys of ``DISPATCH``,
        ``database`` keys of ``DATABASES["default"]``. ``host`` is the name of a host of its own; ``database_url`` may
        lead through a relay, which the ledger avoids. ``output`` is a descriptor to write to, in the place of a log.
        ``wrapper`` is a command to start it by. ``is_mute``: without stdin, stdout and stderr, so without a log.
        """
        command = [sys.executable, "manage.py", "rundispatcher", "--no-reload", f"--node={node}"]
        for name, value in {**DEFAULTS, **options}.items():
            flag = f"--{name.replace('_', '-')}"
            command.append(flag if value is True else f"{flag}={value}")
        if host is not None:
            command = [sys.executable, "-m", "tests.kit.host", host, *command]
        command = [*wrapper, *command]
        if is_mute:
            command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command]
        own = {
            "DJANGO_SETTINGS_MODULE": "tests.settings",
            "DATABASE_URL": database_url or self._url,
            "DEBUG": "0",
            "PYTHONUNBUFFERED": "1",
            "KIT_DATABASE_URL": self._url,
            "KIT_DIR": str(self._folder),
            "KIT_DATABASE": json.dumps(dict(database or {})),
            "KIT_DISPATCH": json.dumps(dict(settings or {})),
        }
        log = self._folder / f"dispatcher-{next(self._numbers)}-{node}.log"
        dispatcher = Dispatcher(node, command, {**os.environ, **own, **(env or {})}, log, output)
        self.all.append(dispatcher)
        if is_awaited:
            dispatcher.wait_until_ready(options.get("processes", 1))
        return dispatcher

    def close(self) -> None:
        """End all, and fail if any of their processes outlived its dispatcher."""
        remains = {dispatcher.node: dispatcher.remains() for dispatcher in self.all}
        assert not any(remains.values()), f"Processes outlived their dispatcher: {remains}"


def _safely(read: Callable[[], Any], otherwise: Any) -> Any:
    try:
        return read()
    except psutil.Error:
        return otherwise


def _command_of(process: psutil.Process) -> list[str]:
    command: list[str] = _safely(process.cmdline, [])
    return command


def _environment_of(process: psutil.Process) -> list[str]:
    environment: dict[str, str] = _safely(process.environ, {})
    return [f"{MARK}={environment[MARK]}"] if MARK in environment else []


def _description_of(process: psutil.Process) -> str:
    return f"{process.pid}: {' '.join(_command_of(process))}"
