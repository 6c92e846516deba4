"""The database connections of an executor: none inherited, none dead, none left inside a transaction. In executors."""

import logging
import select
from typing import Any

from django.db import connections, reset_queries
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.backends.signals import connection_created

TURN_SECONDS = 20.0  # SQLite's own five are little where many write

logger = logging.getLogger("django_dispatch.executor")


# Aliases that this executor has ever opened. Bodies that need no database pay nothing for those that do.
_in_use: set[str] = set()


def are_in_use() -> bool:
    """Return whether any body here has used the database."""
    return bool(_in_use)


def close_all() -> None:
    """Close every connection and pool of this process: before a fork, none may be open."""
    _in_use.clear()
    for connection in connections.all(initialized_only=True):
        connection.close()
        close_pool = getattr(connection, "close_pool", None)
        if close_pool is not None:
            close_pool()


def distrust_pools() -> None:
    """Have pools look at a connection before they lend it: what died in a pool is not seen by drop_broken()."""
    for alias in connections:
        settings = connections.settings[alias]
        if settings.get("OPTIONS", {}).get("pool"):
            settings["CONN_HEALTH_CHECKS"] = True


def take_turns(alias: str) -> None:
    """On SQLite, have transactions of bodies wait for their turn to write when they begin, if nothing else is set.

    One that reads first is refused when it writes, if somebody else has written meanwhile: its timeout does not count.
    """
    if connections[alias].vendor == "sqlite":
        connections.settings[alias].setdefault("OPTIONS", {}).setdefault("transaction_mode", "IMMEDIATE")
        connections.settings[alias]["OPTIONS"].setdefault("timeout", TURN_SECONDS)


def watch_for_our_death(check_interval_seconds: float, silence_seconds: float) -> None:
    """Make PostgreSQL end the session of an executor that was killed: a dead body must not commit beside its successor.

    The kernel there is told of a death within ``check_interval_seconds``; if the network is cut, too, nothing comes,
    and ``silence_seconds`` must be enough. (A unix socket ignores that.)
    """
    values = {
        "client_connection_check_interval": max(1, int(check_interval_seconds * 1000)),
        "tcp_keepalives_idle": max(1, int(silence_seconds / 2)),
        "tcp_keepalives_interval": 1,
        "tcp_user_timeout": max(1000, int(silence_seconds * 1000)),
        "application_name": "django_dispatch executor",
    }
    statement = "SELECT " + ", ".join(f"set_config('{name}', '{value}', false)" for name, value in values.items())

    def set_up(connection: BaseDatabaseWrapper, **_: Any) -> None:
        _in_use.add(connection.alias)
        is_pooled = connection.settings_dict.get("DISABLE_SERVER_SIDE_CURSORS")
        if connection.vendor != "postgresql" or is_pooled:  # the settings would stay behind for whoever is next there
            return
        import psycopg

        try:
            connection.connection.execute(statement)
        except psycopg.Error as error:
            logger.warning("The session settings of executors are not to be had on %s: %s", connection.alias, error)

    connection_created.connect(set_up, weak=False, dispatch_uid="django_dispatch.executor")


def drop_broken() -> None:
    """Before a body: drop connections that died while we waited, whatever CONN_MAX_AGE says."""
    if not _in_use:
        return
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None and _is_broken(connection):
            connection.close()


def tidy() -> None:
    """After a body: roll back what it left open, close what is too old, forget its query log."""
    if not _in_use:
        return
    reset_queries()
    for connection in connections.all(initialized_only=True):
        if connection.connection is None:
            continue
        if _is_in_transaction(connection):
            logger.warning("A body left a transaction open on %s; it is rolled back.", connection.alias)
            _discard(connection)
        else:
            connection.close_if_unusable_or_obsolete()


def discard_all() -> None:
    """After a body that was stopped half-way: close everything, whatever state it is in."""
    for connection in connections.all(initialized_only=True):
        if connection.connection is not None:
            _discard(connection)


def _is_broken(connection: BaseDatabaseWrapper) -> bool:
    """Whether an idle connection has something to say: that can only be its end."""
    if connection.vendor != "postgresql":
        return False
    raw = connection.connection
    if raw.closed:
        return True
    poll = select.poll()
    poll.register(raw.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _is_in_transaction(connection: BaseDatabaseWrapper) -> bool:
    if connection.in_atomic_block or not connection.get_autocommit():
        return True
    if connection.vendor == "sqlite":
        return bool(connection.connection.in_transaction)
    if connection.vendor != "postgresql" or connection.connection.closed:
        return False
    from psycopg.pq import TransactionStatus

    return bool(connection.connection.info.transaction_status != TransactionStatus.IDLE)


def _discard(connection: BaseDatabaseWrapper) -> None:
    """Close the connection and forget its wrapper, whose idea of a transaction may be anything."""
    try:
        connection.connection.close()
    except Exception as error:
        logger.warning("Closing a connection of %s failed: %s", connection.alias, error)
    del connections[connection.alias]
