"""The ledger: one row for each start of a body, written over a connection of its own, in autocommit, as it happens.

The only honest answer to "did it run twice?": a run's own row shows just the attempt that won.
"""

import asyncio
import itertools
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psycopg
from psycopg.rows import class_row

from django_dispatch.context import TaskContext
from django_dispatch.models import Run

from .gate import Gate

SEE_SECONDS = 0.01


@dataclass(frozen=True)
class Row:
    """One start of a body. ``seen_at`` is the last sign of life; ``ended_at`` stays empty when the body was killed."""

    id: int
    run_id: int
    epoch: int
    attempt: int
    pid: int
    backend_pid: int | None
    started_at: datetime
    seen_at: datetime
    ended_at: datetime | None
    note: str

    @property
    def last_seen_at(self) -> datetime:
        return self.ended_at or self.seen_at


class Ledger:
    """The ledger as a test reads it."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        self._connection = connection

    def rows(self, run: Run | None = None) -> list[Row]:
        """Return the starts of a run, or all, in their order."""
        with self._connection.cursor(row_factory=class_row(Row)) as cursor:
            query = "SELECT * FROM kit_ledger WHERE run_id = coalesce(%s, run_id) ORDER BY id"
            return cursor.execute(query, [run and run.pk]).fetchall()

    def starts(self, run: Run) -> int:
        """Return how often the run's body was started."""
        return len(self.rows(run))

    def overlaps(self, run: Run) -> list[tuple[Row, Row]]:
        """Return the pairs of attempts of a run that were alive at once; there must never be one."""
        rows = self.rows(run)
        return [(a, b) for i, a in enumerate(rows) for b in rows[i + 1 :] if b.started_at < a.last_seen_at]


def most_at_once(rows: Iterable[Row]) -> int:
    """Return how many of these bodies were alive at one moment, at most."""
    changes = sorted(
        change for row in rows for change in ((row.started_at, 1), (max(row.started_at, row.last_seen_at), -1))
    )
    return max(itertools.accumulate(change for _, change in changes), default=0)


class Entry:
    """A body's own row of the ledger: ``with Entry(context) as entry: …``."""

    def __init__(self, context: TaskContext, *, backend_pid: int | None = None, note: str = "") -> None:
        self._context = context
        self._backend_pid = backend_pid
        self._note = note
        self._gate = Gate(Path(os.environ["KIT_DIR"]))

    def __enter__(self) -> Self:
        self._connection = self._connect()
        ctx = self._context
        values = [ctx.run_id, ctx.epoch, ctx.attempt, os.getpid(), self._backend_pid, self._note]
        row = self._connection.execute(
            "INSERT INTO kit_ledger (run_id, epoch, attempt, pid, backend_pid, note)"
            " VALUES (%s, %s, %s, %s, %s, %s) RETURNING id",
            values,
        ).fetchone()
        assert row
        self._id = row[0]
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None) -> None:
        try:
            with self._connection:
                self._end(self._connection)
        except psycopg.Error:  # it was stopped in the middle of a statement, say
            with suppress(psycopg.Error), self._connect() as fresh:
                self._end(fresh)

    def _connect(self) -> psycopg.Connection[Any]:
        return psycopg.connect(os.environ["KIT_DATABASE_URL"], autocommit=True, application_name="kit ledger")

    def _end(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute("UPDATE kit_ledger SET ended_at = clock_timestamp() WHERE id = %s", [self._id])

    def see(self) -> None:
        """Give a sign of life."""
        self._connection.execute("UPDATE kit_ledger SET seen_at = clock_timestamp() WHERE id = %s", [self._id])

    def wait_at(self, gate: str) -> None:
        """Wait until the test opens the gate, giving signs of life. ``{attempt}`` in its name is filled in."""
        name = self.arrive(gate)
        while not self._gate.is_open(name):
            self.see()
            time.sleep(SEE_SECONDS)

    async def await_at(self, gate: str) -> None:
        """See wait_at()."""
        name = self.arrive(gate)
        while not self._gate.is_open(name):
            self.see()
            await asyncio.sleep(SEE_SECONDS)

    def arrive(self, gate: str) -> str:
        """Say that this attempt has come to a gate, and go on; returns the gate's name."""
        name = gate.format(attempt=self._context.attempt)
        self._gate.arrive(name, f"{self._context.run_id}-{self._context.epoch}")
        return name
