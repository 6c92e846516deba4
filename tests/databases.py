"""A database of a test's own on the suite's server."""

import contextlib
import os
from collections.abc import Iterator

from django.db import connections


@contextlib.contextmanager
def own_database(alias: str) -> Iterator[str]:
    """Create an empty database under an alias of its own, and drop it in the end; its name is returned."""
    # The default one may not be there yet, whose name would tell the workers apart.
    name = f"test_{os.environ.get('PYTEST_XDIST_WORKER', 'main')}_{alias}"
    connections.settings[alias] = connections.settings["default"] | {"NAME": name}
    default = connections.create_connection("default")
    try:
        with default._nodb_cursor() as server:  # type: ignore[attr-defined]
            server.execute(f"DROP DATABASE IF EXISTS {name} WITH (FORCE)")
            server.execute(f"CREATE DATABASE {name}")
            try:
                yield name
            finally:
                connections[alias].close()
                server.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        del connections[alias]
        del connections.settings[alias]
