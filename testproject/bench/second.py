"""A second database of the same server, known to Django by an alias: what is beside it in a measurement."""

import contextlib
from collections.abc import Iterator
from typing import Any

import psycopg
from django.core.management import call_command
from django.db import connections

from testproject import postgres
from testproject.bench.ground import Ground


@contextlib.contextmanager
def second_database(ground: Ground, alias: str) -> Iterator[tuple[str, "psycopg.Connection[Any]"]]:
    """Make one with our tables; yield its address and a session in autocommit; drop it in the end."""
    url = ground.server.database_url(alias)
    ground.sql.execute(f"CREATE DATABASE {alias}".encode())
    connections.settings[alias] = connections.settings["default"] | postgres.django_database(url)
    try:
        call_command("migrate", "django_dispatch", database=alias, verbosity=0)
        with psycopg.connect(url, autocommit=True) as sql:
            yield url, sql
    finally:
        connections[alias].close()
        del connections[alias], connections.settings[alias]
        ground.sql.execute(f"DROP DATABASE IF EXISTS {alias} WITH (FORCE)".encode())
