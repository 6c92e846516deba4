"""Claims beside runs that wait at a limit or for their time, or take turns; beside the same in a table without."""

import time
from collections.abc import Iterator

from django_dispatch.store.postgres_enqueue import enqueue
from django_dispatch.store.values import NewRun
from testproject.bench import raw, tasks
from testproject.bench.claimer import Claimer
from testproject.bench.findings import Finding, Target, by_turns
from testproject.bench.ground import INSERT, Ground
from testproject.bench.second import second_database

ALIAS, TURNS = "waiting", "turns"
MANY = 100_000
WAITING = (
    "INSERT INTO django_dispatch_run (task, args, source, status, concurrency_key, concurrency_limit)"
    " SELECT %s, jsonb_build_array(i), 'app', 'BLOCKED', 'bench', 1 FROM generate_series(1::bigint, %s) AS i"
)
LATER = (
    "INSERT INTO django_dispatch_run (task, args, source, status, run_after)"
    " SELECT %s, jsonb_build_array(i), 'app', 'SCHEDULED', now() + (3600 + i %% 86400) * interval '1 s'"
    " FROM generate_series(1::bigint, %s) AS i"
)
FLOOD = (
    "INSERT INTO django_dispatch_run (task, args, source, fair_key)"
    " SELECT %s, jsonb_build_array(i), 'app', 'tenant-1' FROM generate_series(1::bigint, %s) AS i"
)


def limits(ground: Ground) -> Iterator[Finding]:
    """By turns in two databases of one server: in one of them nobody waits, or nobody has a key."""
    yield from beside_those_who_wait(ground)
    yield from amid_a_flood(ground)


def beside_those_who_wait(ground: Ground) -> Iterator[Finding]:
    """Claims and admissions."""
    many, claims = ground.size(MANY, MANY // 10), ground.size(300, 60)
    ground.fill(tasks.noop.path, claims * raw.BATCH)
    with second_database(ground, ALIAS) as (_, sql), Claimer.on("default") as empty, Claimer.on(ALIAS) as waiting:
        sql.execute(WAITING, [tasks.noop.path, many])
        sql.execute(LATER, [tasks.noop.path, many])
        sql.execute(INSERT, [tasks.noop.path, 0, claims * raw.BATCH - 1])
        sql.execute("VACUUM ANALYZE django_dispatch_run")
        sql.execute("CHECKPOINT")
        times = by_turns(
            claims, {"empty": lambda: empty.exchange(raw.BATCH), "waiting": lambda: waiting.exchange(raw.BATCH)}
        )
        ground.sql.execute(WAITING, [tasks.noop.path, claims])
        admissions = by_turns(claims, {"few": lambda: empty.admit("bench"), "many": lambda: waiting.admit("bench")})
    what = f"with {many:,} blocked on one key, {many:,} SCHEDULED"
    yield Finding(
        f"finish + claim of {raw.BATCH} {what}, p95",
        "ms",
        times["waiting"],
        times["empty"],
        "empty table, p95",
        at=0.95,
        target=Target("at most", 2.0),
    )
    yield Finding(
        f"admission {what}, p95",
        "ms",
        admissions["many"],
        admissions["few"],
        "few blocked, p95",
        at=0.95,
        target=Target("at most", 2.0),
    )


def amid_a_flood(ground: Ground) -> Iterator[Finding]:
    """Claims from the flood of one fair key, and enqueues of another one."""
    many, claims = ground.size(MANY, MANY // 10), ground.size(300, 60)
    ground.fill(tasks.noop.path, claims * raw.BATCH)
    with second_database(ground, TURNS) as (_, sql), Claimer.on("default") as plain, Claimer.on(TURNS) as flooded:
        sql.execute(FLOOD, [tasks.noop.path, many + claims * raw.BATCH])
        sql.execute("VACUUM ANALYZE django_dispatch_run")
        sql.execute("CHECKPOINT")
        times = by_turns(
            claims, {"plain": lambda: plain.exchange(raw.BATCH), "flooded": lambda: flooded.exchange(raw.BATCH)}
        )
        enqueues = by_turns(
            claims,
            {
                "plain": lambda: _enqueue("default", NewRun(tasks.noop.path)),
                "fair": lambda: _enqueue(TURNS, NewRun(tasks.noop.path, fair_key="tenant-2")),
            },
        )
    what = f"amid {many:,} runs of one fair key"
    yield Finding(
        f"finish + claim of {raw.BATCH} {what}, p95",
        "ms",
        times["flooded"],
        times["plain"],
        "no keys, p95",
        at=0.95,
        target=Target("at most", 2.0),
    )
    yield Finding(
        f"enqueue of another key {what}, p95",
        "ms",
        enqueues["fair"],
        enqueues["plain"],
        "no keys, p95",
        at=0.95,
        target=Target("at most", 2.0),
    )


def _enqueue(using: str, new: NewRun) -> float:
    began = time.perf_counter()
    enqueue(using, new)
    return (time.perf_counter() - began) * 1000
