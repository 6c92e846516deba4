"""Drain rate and claims beside millions of waiting and finished runs, beside the same in an empty table."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import psycopg

from testproject.bench import raw, tasks
from testproject.bench.claimer import Claimer
from testproject.bench.findings import Finding, Target, by_turns
from testproject.bench.ground import INSERT, Ground, drain_rate, one_row
from testproject.bench.processes import Dispatcher
from testproject.bench.second import second_database

ALIAS = "grown"
MILLION = 1_000_000
SCHEDULED = (
    "INSERT INTO django_dispatch_run (task, args, source, status, run_after)"
    " SELECT %s, jsonb_build_array(i), 'app', 'SCHEDULED', now() + (3600 + i %% 86400) * interval '1 s'"
    " FROM generate_series(1::bigint, %s) AS i"
)
FINISHED = (
    "INSERT INTO django_dispatch_run (task, args, source, status, epoch, attempt, started_at, finished_at)"
    " SELECT %s, jsonb_build_array(i), 'app', 'SUCCESSFUL', 1, 1, t, t"
    " FROM generate_series(1::bigint, %s) AS i, LATERAL (SELECT now() - i %% 3600 * interval '1 s' AS t)"
)


def growth(ground: Ground) -> Iterator[Finding]:
    """By turns in two databases of one server: one holds nothing but what is drained."""
    million = ground.size(MILLION, MILLION // 20)
    runs, claims = ground.size(100_000, 5_000), ground.size(200, 40)
    with _grown(ground, million) as (url, sql):
        ground.fill(tasks.noop.path, claims * raw.BATCH)
        with Claimer.on("default") as empty, Claimer.on(ALIAS) as grown:
            times = by_turns(
                claims, {"empty": lambda: empty.exchange(raw.BATCH), "grown": lambda: grown.exchange(raw.BATCH)}
            )
        found = by_turns(
            ground.rounds,
            {
                "empty": lambda: _drain_some(ground.url, ground.sql, runs, lambda: ground.fill(tasks.noop.path, runs)),
                "grown": lambda: _drain_some(url, sql, runs, lambda: None),
            },
        )
    what = f"with {million:,} READY, {million:,} SCHEDULED, {5 * million:,} finished"
    yield Finding(
        f"drain {what}", "runs/s", found["grown"], found["empty"], "empty table", target=Target("at least", 0.8)
    )
    yield Finding(
        f"finish + claim of {raw.BATCH} {what}, p95",
        "ms",
        times["grown"],
        times["empty"],
        "empty table, p95",
        at=0.95,
        target=Target("at most", 1.2),
    )


def _drain_some(url: str, sql: "psycopg.Connection[Any]", runs: int, fill: Callable[[], None]) -> float:
    fill()
    (since,) = one_row(sql, "SELECT clock_timestamp()")
    code = Dispatcher(url, "--processes=2", f"--max-runs={runs}").wait()
    return drain_rate(sql, since, runs, code)


@contextlib.contextmanager
def _grown(ground: Ground, million: int) -> Iterator[tuple[str, "psycopg.Connection[Any]"]]:
    """A second database, filled; dropped in the end."""
    with second_database(ground, ALIAS) as (url, sql):
        sql.execute("ALTER TABLE django_dispatch_run DISABLE TRIGGER USER")
        sql.execute(FINISHED, [tasks.noop.path, 5 * million])
        sql.execute(SCHEDULED, [tasks.noop.path, million])
        sql.execute(INSERT, [tasks.noop.path, 1, million])
        sql.execute("ALTER TABLE django_dispatch_run ENABLE TRIGGER USER")
        sql.execute("VACUUM ANALYZE django_dispatch_run")
        sql.execute("CHECKPOINT")
        yield url, sql
