"""A PostgreSQL server for the runs alone, to stop and start. The ledger is on another: bodies write it meanwhile."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection
from pytest_django.plugin import DjangoDbBlocker

from testproject import postgres

T = TypeVar("T")


class Standby(postgres.TemporaryServer):
    """A streaming copy of another server, read-only until promote()."""

    def __init__(self, primary: postgres.TemporaryServer, *, bin_dir: Path | None) -> None:
        super().__init__(bin_dir=bin_dir)
        self._give_away(self.home)
        self._command(
            "pg_basebackup", "-R", "-X", "stream", "-c", "fast", "-D", self.data, "-d", primary.url, check=True
        )
        self._log.touch(mode=0o600)
        self._give_away(self._log)
        self._remember(primary.url.replace(f":{primary.port}/", f":{postgres.free_port()}/"))

    def promote(self) -> None:
        self._command("pg_ctl", "promote", "-w", "-D", self.data, check=True)


@contextmanager
def runs_on(url: str) -> Iterator[None]:
    """Have this process enqueue and look for runs on another server; the kit's ledger stays where it is."""
    settings = connection.settings_dict
    old = dict(settings)
    connection.close()
    settings.update(postgres.django_database(url))
    try:
        yield
    finally:
        connection.close()
        settings.clear()
        settings.update(old)


@contextmanager
def migrated_server(bin_dir: Path | None, blocker: DjangoDbBlocker) -> Iterator[postgres.TemporaryServer]:
    """Give a server of one's own with the tables in it."""
    with postgres.TemporaryServer(bin_dir=bin_dir) as server:
        with blocker.unblock(), runs_on(server.url):
            call_command("migrate", verbosity=0)
        yield server


@pytest.fixture(scope="module")
def own_server(
    pg_bin: Path | None, django_db_setup: None, django_db_blocker: DjangoDbBlocker
) -> Iterator[postgres.TemporaryServer]:
    """A server of the module's own, with the tables."""
    with migrated_server(pg_bin, django_db_blocker) as server:
        yield server


@pytest.fixture
def server(own_server: postgres.TemporaryServer, kit: Any) -> Iterator[postgres.TemporaryServer]:
    """The module's own server, running, without runs; Django leads there, and so must a test's dispatchers."""
    own_server.start()
    with admin(own_server, "postgres") as sql:
        sql.execute("ALTER DATABASE shop RESET ALL")
        sql.execute("ALTER DATABASE shop ALLOW_CONNECTIONS true")
    with runs_on(own_server.url):
        with admin(own_server) as sql:
            sql.execute("TRUNCATE django_dispatch_run, django_dispatch_lease, django_dispatch_schedule")
        yield own_server
        kit.dispatchers.close()


@contextmanager
def admin(server: postgres.Server, database: str = postgres.DATABASE) -> Iterator[psycopg.Connection[Any]]:
    """Open a session of the test's on this server, in autocommit."""
    with psycopg.connect(server.database_url(database), autocommit=True, application_name="test") as sql:
        yield sql


def now_of(sql: psycopg.Connection[Any]) -> Any:
    """Return the time by a server's clock; all servers of a test share it."""
    row = sql.execute("SELECT clock_timestamp()").fetchone()
    assert row
    return row[0]


def reconnected(question: Callable[[], T]) -> T:
    """Ask over Django's connection, which the outage has broken."""
    connection.close()
    return question()
