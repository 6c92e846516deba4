"""What is written for a run: rows, and bytes of the write-ahead log."""

import time
from collections.abc import Iterator

import psycopg
from django.db import connection

from testproject.bench import tasks
from testproject.bench.findings import Finding, Target
from testproject.bench.ground import Ground, one_row
from testproject.bench.processes import Dispatcher

ROWS = (
    "SELECT n_tup_ins, n_tup_upd, n_tup_hot_upd, n_tup_del"
    " FROM pg_stat_user_tables WHERE relname = 'django_dispatch_run'"
)
FLUSH = "SELECT pg_stat_force_next_flush()"
WAL = "SELECT pg_wal_lsn_diff(pg_current_wal_lsn(), '0/0')::float8"
# Statistics of sessions that ended are in after this long at the latest.
STATISTICS_SECONDS = 1.5


def writes(ground: Ground) -> Iterator[Finding]:
    """Enqueued in bulk after a checkpoint, drained by a dispatcher that starts and ends."""
    runs = ground.size(50_000, 10_000)
    ground.clean()
    ground.sql.execute("VACUUM django_dispatch_run")
    ground.sql.execute("CHECKPOINT")
    rows, wal = _rows(ground), ground.row(WAL)[0]
    tasks.noop.delay_many((index,) for index in range(runs))
    enqueued = ground.row(WAL)[0]
    if Dispatcher(ground.url, "--burst", f"--processes={ground.processes}").wait() != 0:
        raise RuntimeError("The dispatcher left something behind.")
    finished = ground.row(WAL)[0]
    inserted, updated, hot, deleted = ((new - old) / runs for new, old in zip(_rows(ground), rows, strict=True))
    yield Finding("rows inserted a run", "rows", [inserted], target=Target("at most", 1.001, "value"))
    note = f"heap-only {hot:.2f}, deleted {deleted:.2f}"
    yield Finding("rows updated a run", "rows", [updated], target=Target("at most", 2.001, "value"), note=note)
    note = f"enqueue {(enqueued - wal) / runs:,.0f}, claim and finish {(finished - enqueued) / runs:,.0f}"
    yield Finding("WAL a run", "bytes", [(finished - wal) / runs], target=Target("at most", 1300, "value"), note=note)


def _rows(ground: Ground) -> tuple[int, ...]:
    # Of those that go on, each keeps what it has counted to itself for a while, be it of the scenario before.
    ground.sql.execute(FLUSH)
    with connection.cursor() as cursor:
        cursor.execute(FLUSH)
    time.sleep(STATISTICS_SECONDS)
    with psycopg.connect(ground.url, autocommit=True) as fresh:
        return tuple(int(count) for count in one_row(fresh, ROWS))
