"""System checks: what is wrong with the project's set-up, found before anything runs, in any process.

====================  ==========================================================================================
id                    meaning
====================  ==========================================================================================
django_dispatch.E001  ``DISPATCH`` has an unknown key, a nonsense value, or two keys that contradict each other
django_dispatch.E002  ``DISPATCH["DATABASE"]``, or ``LISTEN_DSN``, is no alias of ``DATABASES``
django_dispatch.E003  ``DISPATCH["DATABASE"]`` is neither PostgreSQL nor SQLite, or the SQLite is too old
django_dispatch.E004  psycopg 3 cannot be imported, often for want of libpq; Django falls back to psycopg2 silently
django_dispatch.E005  a task module cannot be imported
django_dispatch.E006  ``WAKEUPS`` has ``"arq"``, but django-redis or arq is not installed
django_dispatch.E007  ``WAKEUPS`` has ``"arq"``, but ``DISPATCH["REDIS"]`` is no cache of django-redis
django_dispatch.W001  LISTEN would go through a transaction pooler, where it hears nothing
django_dispatch.W002  psycopg runs in its pure Python implementation
django_dispatch.W003  ``DISPATCH["NOTIFY_CHANNELS"]`` is set, but ``WAKEUPS`` has no ``"pg_notify"``: nobody listens
django_dispatch.W004  ``DISPATCH["METRICS_PORT"]`` is set, but prometheus-client is not installed
django_dispatch.W005  a schedule has a problem; only with ``check --database``, which asks the database
django_dispatch.W006  routers would have runs read, written or migrated elsewhere than in ``DISPATCH["DATABASE"]``
django_dispatch.W007  on SQLite, transactions that read first would be refused when they write: "database is locked"
django_dispatch.I001  ``DISPATCH["DATABASE"]`` is on SQLite: what cannot be had there
====================  ==========================================================================================

They have two tags, beside Django's own for the database, because the dispatcher must not import task modules: a command
that names ``requires_system_checks = [SETTINGS_TAG]`` leaves E005 out.
"""

import sqlite3
from collections.abc import Collection, Iterator, Sequence
from importlib import import_module
from typing import Any

from django.apps import AppConfig
from django.conf import settings
from django.core.checks import CheckMessage, Error, Info, Tags, Warning, register
from django.db import DatabaseError, connections, router

from django_dispatch import conf
from django_dispatch.metrics import HINT, can_be_exposed
from django_dispatch.wakeups.redis import is_django_redis

SETTINGS_TAG = "django_dispatch"
TASKS_TAG = "django_dispatch_tasks"

PGBOUNCER_PORT = "6432"
SIGNS_OF_A_CONNECTION_STRING = ("=", "://")
MOST_SCHEDULES = 20
OLDEST_SQLITE = (3, 35)  # the first with RETURNING
REDIS_PACKAGES = ("django_redis", "arq")


def register_checks() -> None:
    """Register the checks of this app; called once, when the apps are ready."""
    register(check_settings, SETTINGS_TAG)
    register(check_tasks, TASKS_TAG)
    register(check_schedules, Tags.database)


def check_settings(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """Check ``DISPATCH`` and the database it names. Connects to nothing."""
    found, problems = conf.examine(getattr(settings, "DISPATCH", {}))
    if found is None:
        return [Error(problem.message, hint=problem.hint, id="django_dispatch.E001") for problem in problems]
    return [*_database_messages(found), *_redis_messages(found), *_metrics_messages(found)]


def check_tasks(app_configs: Sequence[AppConfig] | None = None, **_: Any) -> list[CheckMessage]:
    """Import every task module, and report those that raise."""
    from django_dispatch import registry

    registry.autodiscover()
    return [
        Error(
            f"The task module {module!r} cannot be imported: {trace.strip().splitlines()[-1]}",
            hint="Runs of its tasks fail as unknown until it can be. The traceback is in the log.",
            id="django_dispatch.E005",
        )
        for module, trace in registry.broken_modules().items()
    ]


def check_schedules(
    app_configs: Sequence[AppConfig] | None = None, databases: Collection[str] | None = None, **_: Any
) -> list[CheckMessage]:
    """Report schedules that dispatchers have flagged, where the database that holds them may be asked."""
    from django_dispatch.models import Schedule

    found, _problems = conf.examine(getattr(settings, "DISPATCH", {}))
    if found is None or found.database not in (databases or ()):
        return []
    flagged = Schedule.objects.using(found.database).exclude(problem="").order_by("name")
    try:
        return [
            Warning(
                f"The schedule {name!r} has a problem: {problem}",
                hint="Edit or disable it, in the admin or by SQL.",
                id="django_dispatch.W005",
            )
            for name, problem in flagged.values_list("name", "problem")[:MOST_SCHEDULES]
        ]
    except DatabaseError:  # not migrated yet: others say so
        return []


def _database_messages(found: conf.DispatchSettings) -> Iterator[CheckMessage]:
    alias = found.database
    if alias not in connections:
        yield Error(
            f"DISPATCH['DATABASE'] is {alias!r}, but DATABASES has no such alias.",
            hint=f"The aliases are {', '.join(connections)}.",
            id="django_dispatch.E002",
        )
        return
    connection = connections[alias]
    if connection.vendor == "sqlite":
        yield from _sqlite_messages(alias)
    elif connection.vendor != "postgresql":
        yield Error(
            f"DISPATCH['DATABASE'] is {alias!r}, which is neither PostgreSQL nor SQLite but {connection.vendor}.",
            hint="Add a PostgreSQL database to DATABASES and name its alias in DISPATCH['DATABASE'].",
            id="django_dispatch.E003",
        )
        return
    else:
        yield from _listen_messages(found)
    yield from _router_messages(alias)
    if found.notify_channels and "pg_notify" not in found.wakeups:
        yield Warning(
            f"Nobody hears {', '.join(sorted(found.notify_channels))}: DISPATCH['WAKEUPS'] has no 'pg_notify'.",
            hint="Add \"pg_notify\" to DISPATCH['WAKEUPS'], which needs PostgreSQL, or remove NOTIFY_CHANNELS.",
            id="django_dispatch.W003",
        )
    if connection.vendor == "postgresql":
        yield from _psycopg_messages()


def _sqlite_messages(alias: str) -> Iterator[CheckMessage]:
    if sqlite3.sqlite_version_info < OLDEST_SQLITE:
        oldest = ".".join(map(str, OLDEST_SQLITE))
        yield Error(
            f"DISPATCH['DATABASE'] is {alias!r}, on SQLite {sqlite3.sqlite_version}; it must be {oldest} or newer.",
            hint="Use a Python that was built with a newer SQLite, or PostgreSQL.",
            id="django_dispatch.E003",
        )
    mode = str(connections[alias].settings_dict.get("OPTIONS", {}).get("transaction_mode") or "DEFERRED").upper()
    if mode == "DEFERRED":
        yield Warning(
            f"Transactions on {alias!r} that read first and write later may fail at once: database is locked.",
            hint='Set "OPTIONS": {"transaction_mode": "IMMEDIATE"} for it in DATABASES: then they wait their turn.',
            id="django_dispatch.W007",
        )
    yield Info(
        f"Runs are kept on SQLite ({alias!r}): dispatchers find them by polling, and all who write take turns.",
        hint="There are no wakeups, no control commands (dispatcherctl, ask()), no runs that come as messages, and one"
        " host alone. For many writers or quick starts use PostgreSQL. See docs/sqlite.md.",
        id="django_dispatch.I001",
    )


def _redis_messages(found: conf.DispatchSettings) -> Iterator[CheckMessage]:
    if "arq" not in found.wakeups:
        return
    missing = [name for name in REDIS_PACKAGES if not _can_import(name)]
    if missing:
        yield Error(
            f"DISPATCH['WAKEUPS'] has 'arq', but {' and '.join(missing)} cannot be imported.",
            hint="pip install \"django-dispatch[redis]\", or leave 'arq' out.",
            id="django_dispatch.E006",
        )
        return
    aliases = settings.CACHES
    if found.redis not in aliases or not is_django_redis(found.redis):
        what = "CACHES has no such alias" if found.redis not in aliases else "that cache is not django-redis"
        yield Error(
            f"DISPATCH['REDIS'] is {found.redis!r}, but {what}.",
            hint="Name an alias of CACHES whose BACKEND is 'django_redis.cache.RedisCache'.",
            id="django_dispatch.E007",
        )


def _can_import(name: str) -> bool:
    try:
        import_module(name)
    except ImportError:
        return False
    return True


def _listen_messages(found: conf.DispatchSettings) -> Iterator[CheckMessage]:
    alias = found.listen_dsn or found.database
    if alias not in connections:
        if not any(sign in alias for sign in SIGNS_OF_A_CONNECTION_STRING):
            yield Error(
                "DISPATCH['LISTEN_DSN'] is neither a connection string nor an alias of DATABASES.",
                hint=f"The aliases are {', '.join(connections)}.",
                id="django_dispatch.E002",
            )
    elif "pg_notify" in found.wakeups and _is_pooled(connections[alias].settings_dict):
        yield Warning(
            f"The database {alias!r} seems to be reached through a transaction pooler, where LISTEN hears nothing.",
            hint="Set DISPATCH['LISTEN_DSN'] to a direct connection, or DISPATCH['WAKEUPS'] to [] to poll only.",
            id="django_dispatch.W001",
        )


def _router_messages(alias: str) -> Iterator[CheckMessage]:
    from django_dispatch.models import Run

    wrong = [
        f"{what} to {other!r}"
        for what, other in (("reads go", router.db_for_read(Run)), ("writes go", router.db_for_write(Run)))
        if other != alias
    ]
    if not router.allow_migrate_model(alias, Run):
        wrong.append("no migration makes its table there")
    if wrong:
        yield Warning(
            f"DISPATCH['DATABASE'] is {alias!r}, but the routers say otherwise for Run: {', '.join(wrong)}.",
            hint='Put "django_dispatch.routers.DispatchRouter" first in DATABASE_ROUTERS.',
            id="django_dispatch.W006",
        )


def _metrics_messages(found: conf.DispatchSettings) -> Iterator[CheckMessage]:
    if "METRICS_PORT" in getattr(settings, "DISPATCH", {}) and found.metrics_port and not can_be_exposed():
        yield Warning(
            f"No metrics can be served on port {found.metrics_port}: prometheus-client is not installed.",
            hint=f"{HINT}, or set DISPATCH['METRICS_PORT'] to 0.",
            id="django_dispatch.W004",
        )


def _is_pooled(database: dict[str, Any]) -> bool:
    # Django's docs ask for no server-side cursors behind a transaction pooler; a session pooler needs no such thing.
    return bool(database.get("DISABLE_SERVER_SIDE_CURSORS")) or str(database.get("PORT")) == PGBOUNCER_PORT


def _psycopg_messages() -> Iterator[CheckMessage]:
    try:
        from psycopg import pq
    except ImportError as error:
        yield Error(
            f"psycopg 3 cannot be imported: {error}",
            hint='pip install "psycopg[binary]", which brings libpq along.',
            id="django_dispatch.E004",
        )
        return
    if pq.__impl__ == "python":
        yield Warning(
            "psycopg runs in its pure Python implementation, several times slower than the compiled one.",
            hint='pip install "psycopg[binary]", or "psycopg[c]" where a compiler is at hand.',
            id="django_dispatch.W002",
        )
