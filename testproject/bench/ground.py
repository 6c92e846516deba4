"""What every scenario stands on: a PostgreSQL of its own, its tables, and how large a measurement is to be."""

from dataclasses import dataclass, field
from typing import Any

import psycopg

from testproject.bench.processes import Dispatcher, wait_for
from testproject.postgres import Server

INSERT = (
    "INSERT INTO django_dispatch_run (task, args, source)"
    " SELECT %s, jsonb_build_array(i), 'app' FROM generate_series(%s::bigint, %s) AS i"
)
WAKE = "SELECT pg_notify('django_dispatch', 'ready:default')"
# Each half reads its own index, so looking costs next to nothing.
HAS_WORK = (
    "SELECT EXISTS (SELECT FROM django_dispatch_run WHERE status = 'READY')"
    " OR EXISTS (SELECT FROM django_dispatch_run WHERE lease_id IS NOT NULL)"
)
DRAINED = (
    "SELECT count(*), extract(epoch FROM max(finished_at) - min(started_at))::float8"
    " FROM django_dispatch_run WHERE finished_at > %s AND status = 'SUCCESSFUL'"
)


@dataclass
class Ground:
    """See the module. ``sql`` is a session in autocommit on the database of ``url``."""

    server: Server
    url: str
    sql: "psycopg.Connection[Any]"
    is_quick: bool
    rounds: int
    processes: int
    known: dict[str, float] = field(default_factory=dict)
    """What one scenario found and another one builds on."""

    def size(self, full: int, quick: int) -> int:
        """Return how many of something to measure."""
        return quick if self.is_quick else full

    def clean(self) -> None:
        """Empty the tables."""
        self.sql.execute("TRUNCATE django_dispatch_run, django_dispatch_lease, django_dispatch_bucket")

    def fill(self, task: str, runs: int) -> None:
        """Put ``runs`` READY runs into the emptied tables."""
        self.clean()
        self.sql.execute(INSERT, [task, 0, runs - 1])
        self.sql.execute("VACUUM ANALYZE django_dispatch_run")

    def add(self, task: str, first: int, last: int) -> None:
        """Enqueue runs with these numbers as arguments, in one statement, and wake the dispatchers."""
        self.sql.execute(INSERT, [task, first, last])
        self.sql.execute(WAKE)

    def wait_until_drained(self) -> None:
        """Return when nothing is READY or RUNNING."""
        wait_for(lambda: self.row(HAS_WORK) == (False,), "the backlog to be drained")

    def burst(self, task: str, runs: int, *options: str) -> float:
        """Have a new dispatcher drain ``runs`` of a task; return runs a second, by the database's clock."""
        self.fill(task, runs)
        (since,) = self.row("SELECT clock_timestamp()")
        code = Dispatcher(self.url, "--burst", *options).wait()
        return drain_rate(self.sql, since, runs, code)

    def row(self, query: str, params: Any = None) -> tuple[Any, ...]:
        """Return the first row."""
        return one_row(self.sql, query, params)


def one_row(sql: "psycopg.Connection[Any]", query: str, params: Any = None) -> tuple[Any, ...]:
    """Return the first row of what there must be one."""
    row = sql.execute(query.encode(), params).fetchone()
    if row is None:
        raise RuntimeError(f"No row: {query}")
    return tuple(row)


def drain_rate(sql: "psycopg.Connection[Any]", since: Any, runs: int, code: int = 0) -> float:
    """Return runs a second from the first claim to the last finish since then; all ``runs`` must have ended well."""
    done, seconds = one_row(sql, DRAINED, [since])
    if code != 0 or done != runs:
        raise RuntimeError(f"The dispatcher ended with {code}, and {done} of {runs} runs were done.")
    return runs / float(seconds)
