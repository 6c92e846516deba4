"""Executors over TLS, where an inherited session would show at once: both processes would garble its records."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest
from pytest_django.plugin import DjangoDbBlocker

from testproject import postgres
from tests.kit.fixtures import open_kit
from tests.kit.waiting import wait_for

RUNS = 200


def programs_with_tls() -> Path | None:
    """The folder of a PostgreSQL that was built with OpenSSL: the embedded one is not."""
    for folder in sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True):
        if (folder / "initdb").exists():
            return folder
    return None


@pytest.fixture
def tls_url() -> Iterator[str]:
    bin_dir = programs_with_tls()
    if bin_dir is None:
        pytest.skip("no PostgreSQL with TLS is installed")
    with postgres.TemporaryServer(bin_dir=bin_dir) as server:
        certificate, key = server.data / "server.crt", server.data / "server.key"
        names = ["-keyout", key, "-out", certificate, "-subj", "/CN=localhost"]
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", *names], check=True)
        owner = server.data.stat()
        for path in (certificate, key):
            os.chown(path, owner.st_uid, owner.st_gid)
            path.chmod(0o600)
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("ALTER SYSTEM SET ssl = on")
        server.restart()
        yield f"{server.url}?sslmode=require"


@pytest.mark.slow
def test_no_tls_session_is_shared(tls_url: str, tmp_path: Path, django_db_blocker: DjangoDbBlocker) -> None:
    """A child holds no inherited connection: children come and go all the time, and every query has its answer."""
    environment = os.environ | {"DATABASE_URL": tls_url, "DJANGO_SETTINGS_MODULE": "tests.settings"}
    subprocess.run([sys.executable, "manage.py", "migrate", "-v0"], env=environment, check=True)
    with open_kit(tmp_path, tls_url, django_db_blocker) as kit:
        fill = "INSERT INTO django_dispatch_run (task) SELECT 'tests.kit.tasks.query' FROM generate_series(1, %s)"
        kit.sql.execute(fill, [RUNS])
        # The project connects while it is imported. Not awaited: that asks the suite's own database.
        a = kit.dispatchers(
            processes=2,
            settings={"EXECUTOR_MAX_RUNS": 5},
            database={"CONN_MAX_AGE": 600},
            env={"KIT_CONNECTS_EARLY": "1"},
            is_awaited=False,
        )
        ended = "SELECT count(*) = %s FROM django_dispatch_run WHERE status = 'SUCCESSFUL'"
        wait_for(lambda: kit.sql.execute(ended, [RUNS]).fetchone() == (True,), 60, what="every run successful")
        plain = "SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE NOT ssl AND client_port > 0"
        assert kit.sql.execute(plain).fetchone() == (0,)
        users: dict[int | None, set[int]] = {}
        for row in kit.ledger.rows():
            users.setdefault(row.backend_pid, set()).add(row.pid)
        assert len({pid for pids in users.values() for pid in pids}) >= RUNS // 5
        assert {len(pids) for pids in users.values()} == {1}
        assert "SSL" not in a.log
