"""SQLite in the place of the suite's PostgreSQL: the same tests, on a file of each test's own."""

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from django.contrib.contenttypes.models import ContentType
from django.core.management import call_command
from django.db import connections

from django_dispatch import conf

DATABASES = ("postgres", "sqlite")
# What only PostgreSQL has: somebody who hears wakeups, a session beside the store's.
NEEDS_POSTGRES = {"ear", "heard", "listener", "database_url"}
APPS = ("contenttypes", "auth", "admin", "sessions", "django_dispatch", "shop")


@contextmanager
def default_on_sqlite(file: Path) -> Iterator[None]:
    """Have ``default`` be this file, in this thread and in those that are started meanwhile."""
    settings, connection = connections.settings["default"], connections["default"]
    connections.settings["default"] = {
        **settings,
        **{"ENGINE": "django.db.backends.sqlite3", "NAME": str(file), "HOST": "", "PORT": "", "OPTIONS": {}},
    }
    connections["default"] = connections.create_connection("default")
    _forget_what_was_read()
    try:
        yield
    finally:
        connections["default"].close()
        connections.settings["default"], connections["default"] = settings, connection
        _forget_what_was_read()


def _forget_what_was_read() -> None:
    """Forget what is kept by alias: it is of the other database."""
    conf.current.cache_clear()
    ContentType.objects.clear_cache()


def make_template(folder: Path) -> Path:
    """Return a file with all tables of the shop."""
    template = folder / "template.sqlite3"
    with default_on_sqlite(template):
        for app in APPS:
            call_command("migrate", app, verbosity=0, skip_checks=True)
    return template


@contextmanager
def own_file(template: Path, folder: Path) -> Iterator[Path]:
    """Have ``default`` be a copy of the template."""
    file = Path(shutil.copy(template, folder / "db.sqlite3"))
    with default_on_sqlite(file):
        yield file
