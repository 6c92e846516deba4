"""Which implementation a database has, by its vendor: chosen here and nowhere else. In any process.

Each is imported when it is wanted: a project on SQLite needs no driver of PostgreSQL.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Protocol
from uuid import UUID

from django.db import connections

from .base import Exchanger, Store
from .prunable import Prunable
from .values import CancelledRun, NewRun, Recorded

if TYPE_CHECKING:
    from django_dispatch.models import Run

VENDORS = ("postgresql", "sqlite")


class Callers(Protocol):
    """What an application does with runs, on Django's connection: in its transaction, if there is one."""

    def enqueue(self, using: str, new: NewRun) -> Recorded:
        """Record one run."""

    def enqueue_and_wake(
        self, using: str, new: NewRun, channel: str, payload: str, awaited: Sequence[str | None] = ()
    ) -> tuple[Recorded, bool]:
        """Record one run that is due, and notify in the same commit, if awaited; return whether no more is to do.

        ``awaited`` is a queue, or None for any: unless some dispatcher waits for its runs, nobody is notified.
        """

    def enqueue_many(self, using: str, news: Iterable[NewRun]) -> Sequence[Recorded]:
        """Record runs, all or none; the answers and the ids are in the order given."""

    def enqueue_unique(self, using: str, news: Sequence[NewRun]) -> list[Recorded]:
        """Record each run, or find the one that is there in its place; all or none, answers in the order given."""

    def active_dispatchers(self, using: str) -> list[tuple[UUID, list[str]]]:
        """Return the lease of each live dispatcher that claims runs, and which queues it serves."""

    def cancel(self, using: str, ids: Collection[int]) -> list[CancelledRun]:
        """End the waiting ones of these runs, ask the running ones to stop; those that do not exist are left out."""

    def rerun(self, using: str, run_id: int, *, limited_queues: Collection[str] = ()) -> "Run | None":
        """Record a copy of a run that has ended; None if there is no such run or it has not ended."""

    def finish(self, using: str, token: tuple[int, int], lease: bytes, result: str | None) -> bool:
        """See ``atomic.finish()``."""

    def pause(
        self,
        using: str,
        name: str,
        *,
        reason: str,
        by: str,
        until: datetime | None = None,
        seconds: float | None = None,
    ) -> None:
        """Have nothing claimed from the queue, until then, for so long, or until it is resumed."""

    def resume(self, using: str, name: str) -> bool:
        """Have the queue claimed from again; return whether it was paused until now."""

    def count_prunable(self, using: str, prunable: Prunable) -> int:
        """Return how many such runs there are."""

    def prune(self, using: str, prunable: Prunable, *, limit: int) -> Iterator[int]:
        """Delete such runs in batches, and yield how many went with each."""


def callers(using: str) -> Callers:
    """Return what applications do, for the database of this alias."""
    if connections[using].vendor == "sqlite":
        from . import sqlite_callers

        return sqlite_callers
    from . import postgres_callers

    return postgres_callers


def open_store(alias: str, role: str, *, statement_timeout_seconds: float) -> Store:
    """Return a store on a session of its own; nothing is connected yet. ``role`` is seen in pg_stat_activity."""
    if connections[alias].vendor == "sqlite":
        from . import sqlite

        return sqlite.open_store(alias, role, statement_timeout_seconds=statement_timeout_seconds)
    from . import postgres

    return postgres.open_store(alias, role, statement_timeout_seconds=statement_timeout_seconds)


def open_exchangers(
    alias: str, role: str, *, statement_timeout_seconds: float, deadline_seconds: float
) -> Sequence[Exchanger]:
    """Return exchangers, each on a session of its own: as many as are of use at once. Nothing is connected yet."""
    seconds = {"statement_timeout_seconds": statement_timeout_seconds, "deadline_seconds": deadline_seconds}
    if connections[alias].vendor == "sqlite":
        from . import sqlite

        return [sqlite.open_exchanger(alias, role, **seconds)]  # it has one writer at a time
    from . import postgres

    return [postgres.open_exchanger(alias, role, **seconds) for _ in range(2)]
