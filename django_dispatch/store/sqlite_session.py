"""Transactions on SQLite, the dispatcher's and the caller's: each takes the write lock when it begins.

SQLite has one writer at a time. Who begins IMMEDIATE waits for its turn, at most as long as it is patient, and from
then on nothing changes but by its own statements: what it reads holds until it commits, and no row is ever busy. Who
reads first and writes later, in a DEFERRED transaction, is refused at once if somebody has written meanwhile, however
long the timeout is.

The clock is this host's, read when the lock is held. Times are texts in UTC, as Django stores them: they sort as such.
"""

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any, TypeAlias, TypeVar

from django.db import Error as DatabaseError
from django.db import OperationalError, connections, transaction
from django.db.backends.base.base import BaseDatabaseWrapper
from django.utils import timezone

Row: TypeAlias = tuple[Any, ...]
T = TypeVar("T")

# For how long a call of the application waits for its turn: the web's timeout may be no more than five seconds.
CALLER_SECONDS = 30.0
# SQLite tries again ever more rarely, up to ten times a second; a dispatcher begins anew after so long, for others may
# give the lock to each other in between.
TURN_SECONDS = 0.05
TAKE_THE_LOCK = "DELETE FROM django_dispatch_bucket WHERE 0"  # whoever may delete a row is the writer


def stamp(moment: datetime) -> str:
    """Return a moment as it is stored; a naive one is in the project's time zone."""
    return str((timezone.make_aware(moment) if timezone.is_naive(moment) else moment).astimezone(UTC))[:-6]


def moment(stored: Any) -> datetime | None:
    """Return a stored moment; Django's converter may have read it already. Raises ValueError."""
    found = datetime.fromisoformat(stored) if isinstance(stored, str) else stored
    return None if found is None else found.replace(tzinfo=found.tzinfo or UTC)


def seconds_ago(seconds: float) -> str:
    """Return the moment so many seconds ago, as it is stored."""
    return stamp(datetime.now(UTC) - timedelta(seconds=seconds))


def interval(seconds: float | None) -> int | None:
    """Return a duration as it is stored."""
    return None if seconds is None else round(seconds * 1_000_000)


class Transaction:
    """A transaction that holds the write lock since ``now``.

    Statements have named parameters; a list is a JSON text.
    """

    def __init__(self, connection: BaseDatabaseWrapper) -> None:
        self._connection = connection
        self.now = datetime.now(UTC)

    def rows(self, statement: str, **params: Any) -> list[Row]:
        """Return what the statement finds. ``%(now)s`` is now."""
        with self._connection.cursor() as cursor:
            cursor.execute(statement, {"now": self.at(0), **params})
            return [tuple(row) for row in cursor.fetchall()]

    def change(self, statement: str, **params: Any) -> int:
        """Return how many rows the statement has changed."""
        with self._connection.cursor() as cursor:
            cursor.execute(statement, {"now": self.at(0), **params})
            return int(cursor.rowcount)

    def insert(self, table: str, row: dict[str, Any]) -> int | None:
        """Insert a row and return its id; None: another one is there that has a key of it."""
        names = ", ".join(row)
        values = ", ".join(f"%({name})s" for name in row)
        found = self.rows(f"INSERT INTO {table} ({names}) VALUES ({values}) ON CONFLICT DO NOTHING RETURNING id", **row)
        return found[0][0] if found else None

    def at(self, seconds: float) -> str:
        """Return the moment so many seconds from now, as it is stored."""
        return stamp(self.now + timedelta(seconds=seconds))

    def since(self, stored: Any) -> float:
        """Return how many seconds ago a stored moment was."""
        found = moment(stored)
        return 0.0 if found is None else (self.now - found).total_seconds()


class Session:
    """One connection of the dispatcher's, opened when first used and again after an error. For one thread at a time.

    ``patience_seconds`` is how long it waits for a lock.
    """

    def __init__(self, alias: str, *, patience_seconds: float) -> None:
        self._alias = alias
        self._patience_seconds = patience_seconds
        self._is_aborted = False
        self._connection: BaseDatabaseWrapper | None = None

    @contextlib.contextmanager
    def transaction(self) -> Iterator[Transaction]:
        """Begin, and commit in the end. Raises ``django.db.Error``; the next call reconnects then."""
        with self._use() as connection:
            self._wait_for(lambda: _execute(connection, "BEGIN IMMEDIATE"))
            try:
                yield Transaction(connection)
                self._wait_for(lambda: _execute(connection, "COMMIT"))
            except BaseException:
                with contextlib.suppress(DatabaseError):
                    _execute(connection, "ROLLBACK")
                raise

    def rows(self, statement: str, **params: Any) -> list[Row]:
        """Return what the statement finds now. It takes no lock that a writer would wait for, and writes nothing."""
        with self._use() as connection:
            return self._wait_for(lambda: Transaction(connection).rows(statement, **params))

    def abort(self) -> None:
        """Interrupt a statement that takes too long, or waits. May be called from any thread."""
        self._is_aborted = True
        raw = None if self._connection is None else self._connection.connection
        if raw is not None:
            with contextlib.suppress(sqlite3.ProgrammingError):  # it was closed a moment ago
                raw.interrupt()

    def close(self) -> None:
        """Close the connection, if any."""
        connection, self._connection = self._connection, None
        if connection is not None:
            with contextlib.suppress(DatabaseError):
                connection.close()

    @contextlib.contextmanager
    def _use(self) -> Iterator[BaseDatabaseWrapper]:
        self._is_aborted = False
        try:
            yield self._connection or self._wait_for(self._connect)
        except OperationalError:
            self.close()
            raise

    def _connect(self) -> BaseDatabaseWrapper:
        connection = connections.create_connection(self._alias)
        options = {**connection.settings_dict.get("OPTIONS", {}), "timeout": TURN_SECONDS}
        connection.settings_dict = {**connection.settings_dict, "OPTIONS": options, "AUTOCOMMIT": True}
        connection.inc_thread_sharing()
        connection.ensure_connection()
        self._connection = connection
        if "journal_mode" not in str(options.get("init_command")):
            # Then who reads waits for nobody, and nobody for him. It lasts in the file, but has to wait once until
            # nobody else is in it; where it cannot be had, in memory say, all goes on without.
            with contextlib.suppress(OperationalError):
                self._wait_for(lambda: _execute(connection, "PRAGMA journal_mode = WAL"))
        return connection

    def _wait_for(self, call: Callable[[], T]) -> T:
        return _patiently(call, self._patience_seconds, may_go_on=lambda: not self._is_aborted)


@contextlib.contextmanager
def callers_transaction(using: str) -> Iterator[Transaction]:
    """Join the caller's transaction; without one, begin one that holds the write lock, and commit it in the end."""
    connection = connections[using]
    with contextlib.ExitStack() as stack:
        if connection.in_atomic_block or not connection.get_autocommit():
            _take_the_lock(connection)
            stack.enter_context(transaction.atomic(using=using))
        else:
            _patiently(lambda: stack.enter_context(_immediate(connection)), CALLER_SECONDS)
        yield Transaction(connection)


def list_of(values: Iterable[Any]) -> str:
    """Return a list as statements take one: ``IN (SELECT value FROM json_each(…))``."""
    return json.dumps(list(values))


@contextlib.contextmanager
def _immediate(connection: BaseDatabaseWrapper) -> Iterator[None]:
    mode = connection.transaction_mode  # type: ignore[attr-defined]
    connection.transaction_mode = "IMMEDIATE"  # type: ignore[attr-defined]
    try:
        with transaction.atomic(using=connection.alias):
            yield
    finally:
        connection.transaction_mode = mode  # type: ignore[attr-defined]


def _take_the_lock(connection: BaseDatabaseWrapper) -> None:
    """Wait for the lock in a transaction that is under way.

    Not without WAL: there somebody may wait for us to have done with reading.
    """
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode")
        is_patient = cursor.fetchone() == ("wal",)
    _patiently(lambda: _execute(connection, TAKE_THE_LOCK), CALLER_SECONDS if is_patient else 0.0)


def _patiently(call: Callable[[], T], seconds: float, *, may_go_on: Callable[[], bool] = lambda: True) -> T:
    """Make the call, and again while another one holds the lock that it needs."""
    give_up_at = time.monotonic() + seconds
    while True:
        try:
            return call()
        except OperationalError as error:
            if not _may_pass(error) or time.monotonic() >= give_up_at or not may_go_on():
                raise


def _may_pass(error: OperationalError) -> bool:
    """Whether another one holds the lock; who writes after what he has read was changed would be refused for ever."""
    is_too_late = getattr(error.__cause__, "sqlite_errorcode", None) == sqlite3.SQLITE_BUSY_SNAPSHOT
    return "locked" in str(error) and not is_too_late


def _execute(connection: BaseDatabaseWrapper, statement: str) -> None:
    with connection.cursor() as cursor:
        cursor.execute(statement)
