"""What PostgreSQL itself can do: the smallest runs table, claimed and finished by one client in one statement."""

import time
from concurrent.futures import ThreadPoolExecutor

import psycopg

BATCH = 100
TABLE = """
DROP TABLE IF EXISTS bench_raw;
CREATE TABLE bench_raw (
  id bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, queue text NOT NULL DEFAULT 'default',
  priority smallint NOT NULL DEFAULT 0, status smallint NOT NULL DEFAULT 0, args jsonb NOT NULL,
  attempt smallint NOT NULL DEFAULT 0, lease_id bigint, created_at timestamptz NOT NULL DEFAULT now(),
  started_at timestamptz, finished_at timestamptz);
CREATE INDEX bench_raw_ready ON bench_raw (queue, priority DESC, id) WHERE status = 0;
"""
EXCHANGE = """
WITH finished AS (UPDATE bench_raw SET status = 2, finished_at = now() WHERE id = ANY(%s))
UPDATE bench_raw SET status = 1, attempt = attempt + 1, lease_id = 1, started_at = now()
WHERE id = ANY(ARRAY(SELECT id FROM bench_raw WHERE status = 0 AND queue = 'default'
                     ORDER BY priority DESC, id FOR UPDATE SKIP LOCKED LIMIT %s))
RETURNING id, args
"""


def drain_rate(url: str, runs: int, *, connections: int = 1) -> float:
    """Claim and finish ``runs`` rows, 100 at a time on each connection; return rows a second."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLE)
        connection.execute(
            "INSERT INTO bench_raw (args) SELECT jsonb_build_array(i) FROM generate_series(1, %s) AS i", [runs]
        )
        connection.execute("VACUUM ANALYZE bench_raw")
    clients = [psycopg.connect(url, autocommit=True, prepare_threshold=0) for _ in range(connections)]
    try:
        with ThreadPoolExecutor(connections) as threads:
            began = time.perf_counter()
            done = sum(threads.map(_drain, clients))
            seconds = time.perf_counter() - began
    finally:
        for client in clients:
            client.close()
    if done != runs:
        raise RuntimeError(f"{done} of {runs} rows were claimed.")
    return runs / seconds


def _drain(connection: psycopg.Connection) -> int:
    done = 0
    ids: list[int] = []
    while ids := [row[0] for row in connection.execute(EXCHANGE, [ids, BATCH])]:
        done += len(ids)
    return done
