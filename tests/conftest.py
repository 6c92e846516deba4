"""Where the suite's PostgreSQL comes from: DATABASE_URL, the programs in --pg-bin or PG_BIN, or the embedded server."""

import os
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.conf import settings
from django.test.utils import setup_databases, teardown_databases
from pytest_django.plugin import DjangoDbBlocker

from testproject import postgres

from . import sqlite

pytest_plugins = ["tests.kit.fixtures"]


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--pg-bin", default=os.environ.get("PG_BIN"), help="folder of another PostgreSQL's programs")


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run what uses ``any_database`` on each; but what needs PostgreSQL, on that alone."""
    if "any_database" in metafunc.fixturenames:
        is_postgres_only = (
            not sqlite.NEEDS_POSTGRES.isdisjoint(metafunc.fixturenames)
            or metafunc.definition.get_closest_marker("postgres") is not None
            or metafunc.module.__name__.rpartition(".")[2].startswith("test_postgres")
        )
        metafunc.parametrize("any_database", sqlite.DATABASES[: 1 if is_postgres_only else None], indirect=True)


@pytest.fixture(scope="session")
def pg_bin(request: pytest.FixtureRequest) -> Path | None:
    """The programs to start servers from; None means the embedded ones."""
    folder = request.config.getoption("--pg-bin")
    return Path(folder) if folder else None


@pytest.fixture(scope="session")
def server_url(pg_bin: Path | None) -> Iterator[str]:
    """A server for the whole session. Tests that stop or break one use a TemporaryServer of their own."""
    if url := os.environ.get("DATABASE_URL"):
        yield url
    elif pg_bin:
        with postgres.TemporaryServer(bin_dir=pg_bin) as server:
            yield server.url
    else:
        yield postgres.ensure_server()
        postgres.release_server()


@pytest.fixture(scope="session")
def django_db_modify_db_settings(server_url: str, django_db_modify_db_settings_parallel_suffix: None) -> None:
    """Point Django at the server before pytest-django makes the test database on it, one for each worker."""
    settings.DATABASES["default"].update(postgres.django_database(server_url))


@pytest.fixture(scope="session")
def django_db_setup(
    request: pytest.FixtureRequest,
    django_test_environment: None,
    django_db_modify_db_settings: None,
    django_db_blocker: DjangoDbBlocker,
) -> Iterator[None]:
    """Make the test database for every test that asks; pytest-django's own makes none for those without its marker."""
    keepdb = bool(request.config.getoption("reuse_db"))
    with django_db_blocker.unblock():
        old = setup_databases(verbosity=0, interactive=False, serialized_aliases=(), keepdb=keepdb)
    yield
    with django_db_blocker.unblock():
        teardown_databases(old, verbosity=0, keepdb=keepdb)


@pytest.fixture(scope="session")
def database_url(server_url: str, django_db_setup: None) -> str:
    """The test database's address, for the DATABASE_URL of processes that a test starts."""
    return urlsplit(server_url)._replace(path=f"/{settings.DATABASES['default']['NAME']}").geturl()


@pytest.fixture(scope="session")
def sqlite_template(
    django_db_setup: None, django_db_blocker: DjangoDbBlocker, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A file of SQLite with all tables and nothing in them."""
    with django_db_blocker.unblock():
        return sqlite.make_template(tmp_path_factory.mktemp("sqlite"))


@pytest.fixture
def any_database(request: pytest.FixtureRequest, django_db_blocker: DjangoDbBlocker) -> Iterator[str]:
    """Run the test once on each database that the product works on; returns which it is."""
    if request.param == "postgres":
        yield request.param
    else:
        template, folder = (request.getfixturevalue(name) for name in ("sqlite_template", "tmp_path"))
        with django_db_blocker.unblock(), sqlite.own_file(template, folder):
            yield request.param
