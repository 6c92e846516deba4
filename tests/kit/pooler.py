"""A PgBouncer before PostgreSQL that pools transactions: sessions have no state, and LISTEN hears nothing."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

import psycopg
import pytest

from testproject import postgres

from .waiting import wait_for

POOL_SIZE = 4
NOBODY = "nobody"  # PgBouncer does not run as root


def program() -> str | None:
    """The installed PgBouncer, if any; Debian has it where only root looks."""
    return shutil.which("pgbouncer", path=f"{os.environ.get('PATH', '')}:/usr/sbin")


class Pooler:
    """One PgBouncer. ``url`` is a database's address by way of it."""

    def __init__(self, url: str, folder: Path, *, pool_mode: str = "transaction", pool_size: int) -> None:
        executable = program()
        assert executable
        self._parts = urlsplit(url)
        self._port = postgres.free_port()
        self._pool_size = pool_size
        self._executable = executable
        self._log = folder / "pgbouncer.log"
        self._ini = folder / "pgbouncer.ini"
        target = (
            f"host={self._parts.hostname} port={self._parts.port or 5432} user={unquote(self._parts.username or '')}"
        )
        self._ini.write_text(
            f"[databases]\n* = {target} password={unquote(self._parts.password or '')}\n"
            "[pgbouncer]\n"
            f"listen_addr = 127.0.0.1\nlisten_port = {self._port}\nunix_socket_dir =\n"
            f"auth_type = any\npool_mode = {pool_mode}\ndefault_pool_size = {pool_size}\nmax_client_conn = 200\n"
            "ignore_startup_parameters = extra_float_digits\n"
        )
        self._process: subprocess.Popen[bytes] | None = None
        self.start()

    @property
    def url(self) -> str:
        account, at, _ = self._parts.netloc.rpartition("@")
        return self._parts._replace(netloc=f"{account}{at}127.0.0.1:{self._port}").geturl()

    def start(self) -> None:
        """Start it, and return when it serves."""
        with self._log.open("ab") as log, self._ini.open("rb") as ini:
            # By its standard input: the account has no way into a test's folder.
            self._process = subprocess.Popen(
                [self._executable, "/dev/stdin"],
                stdin=ini,
                stdout=log,
                stderr=log,
                user=NOBODY if os.getuid() == 0 else None,
                start_new_session=True,
            )
        wait_for(self._serves, what=lambda: f"PgBouncer: {self._log.read_text()[-2000:]}")

    def kill(self) -> None:
        """End it at once, with every connection through it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    def restart(self) -> None:
        """Kill it and start it again."""
        self.kill()
        self.start()

    def every_session(self, query: str) -> list[tuple[Any, ...]]:
        """Return the answers of all the sessions that it has on the server, and of new ones until there are no more."""
        with contextlib.ExitStack() as stack:
            clients = [stack.enter_context(psycopg.connect(self.url)) for _ in range(self._pool_size)]
            return [row for client in clients for row in client.execute(query.encode()).fetchall()]

    def _serves(self) -> bool:
        try:
            with psycopg.connect(self.url, connect_timeout=2):
                return True
        except psycopg.OperationalError:
            return False


@pytest.fixture
def pooler(request: pytest.FixtureRequest, database_url: str, tmp_path: Path) -> Iterator[Pooler]:
    """A PgBouncer before the suite's database, if one is installed; a parameter is its mode."""
    if program() is None:
        pytest.skip("no PgBouncer is installed")
    pool_mode = getattr(request, "param", "transaction")
    # A session that is kept is nobody else's: there must be one for each of the dispatcher's.
    pooler = Pooler(
        database_url, tmp_path, pool_mode=pool_mode, pool_size=POOL_SIZE if pool_mode == "transaction" else 20
    )
    yield pooler
    pooler.kill()
