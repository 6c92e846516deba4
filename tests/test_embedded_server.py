"""The embedded PostgreSQL: one server for all processes of a checkout, whatever happened to it before."""

import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import psycopg
import pytest

from testproject import postgres


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[postgres.Server]:
    """The shared server of another checkout."""
    monkeypatch.setenv("STATE_DIR", str(tmp_path))
    server = postgres.project_server()
    yield server
    postgres.release_server()
    postgres.stop_server()
    shutil.rmtree(server.home, ignore_errors=True)


def start_elsewhere() -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "testproject.postgres", "start"]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_processes_that_start_it_at_the_same_time_share_one_that_outlives_them(server: postgres.Server) -> None:
    outputs = [process.communicate(timeout=60) for process in [start_elsewhere() for _ in range(3)]]
    assert outputs == [(server.url + "\n", "")] * 3
    assert server.is_running()


def test_the_last_user_to_leave_stops_it(server: postgres.Server) -> None:
    postgres.ensure_server()
    code = "import sys; from testproject import postgres; postgres.ensure_server(); print(flush=True); sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        postgres.release_server()
        assert server.is_running()
        # A user that was killed is no user.
        other.kill()
    postgres.ensure_server()
    postgres.release_server()
    assert not server.is_running()


def test_a_killed_server_comes_back_at_its_address_with_what_was_committed(server: postgres.Server) -> None:
    url = postgres.ensure_server()
    with psycopg.connect(url) as connection:
        connection.execute("CREATE TABLE kept AS SELECT 42 AS answer")
    server.kill()
    assert (server.data / "postmaster.pid").exists()
    assert postgres.ensure_server() == url
    with psycopg.connect(url) as connection:
        assert connection.execute("SELECT answer FROM kept").fetchone() == (42,)


def test_a_stale_pid_file_that_names_a_stranger_does_not_keep_it_down(server: postgres.Server) -> None:
    postgres.ensure_server()
    server.kill()
    pid_file = server.data / "postmaster.pid"
    _, *others = pid_file.read_text().splitlines()
    # Of the server's own account: PostgreSQL itself knows that a process of somebody else's is none of its.
    with subprocess.Popen(["sleep", "60"], user=server.data.stat().st_uid) as stranger:
        pid_file.write_text("\n".join([str(stranger.pid), *others]))
        postgres.ensure_server()
        assert server.is_running()
        stranger.kill()


def test_it_moves_when_its_port_was_taken(server: postgres.Server) -> None:
    url = postgres.ensure_server()
    server.stop()
    with socket.create_server(("127.0.0.1", urlsplit(url).port or 0)):
        assert postgres.ensure_server() == server.url != url
        assert server.is_running()


def test_a_temporary_server_restarts_and_leaves_nothing_behind(pg_bin: Path | None) -> None:
    with postgres.TemporaryServer(bin_dir=pg_bin) as server:
        url = server.url
        server.kill()
        assert not server.is_running()
        assert server.start() == server.restart("immediate") == url
    assert not server.is_running()
    assert not server.home.exists()


def test_a_database_url_becomes_an_entry_of_databases() -> None:
    entry = postgres.django_database("postgresql://me:p%40ss@[::1]:6543/shop%2Fone?sslmode=require&connect_timeout=3")
    assert entry == {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "shop/one",
        "USER": "me",
        "PASSWORD": "p@ss",
        "HOST": "::1",
        "PORT": "6543",
        "OPTIONS": {"sslmode": "require", "connect_timeout": "3"},
    }
    with pytest.raises(ValueError, match="postgresql://, not 'mysql'"):
        postgres.django_database("mysql://localhost/shop")
