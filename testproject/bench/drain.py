"""How fast a dispatcher drains a backlog of empty bodies."""

import os
import subprocess
import sys

import psycopg


def manage(url: str, *arguments: str) -> "subprocess.Popen[bytes]":
    """Start a management command on this database."""
    return subprocess.Popen(
        [sys.executable, "manage.py", *arguments], env=os.environ | {"DATABASE_URL": url, "DEBUG": ""}
    )


def fill(connection: psycopg.Connection, task: str, runs: int) -> None:
    """Put ``runs`` READY runs into an otherwise empty table."""
    connection.execute("TRUNCATE django_dispatch_run")
    connection.execute(
        "INSERT INTO django_dispatch_run (task, args, source)"
        " SELECT %s, jsonb_build_array(i), 'app' FROM generate_series(1, %s) AS i",
        [task, runs],
    )
    connection.execute("VACUUM ANALYZE django_dispatch_run")


def drain_rate(url: str, runs: int, task: str, processes: int) -> float:
    """Have a new dispatcher drain ``runs``; return runs a second, from the first claim to the last durable finish."""
    with psycopg.connect(url, autocommit=True) as connection:
        fill(connection, task, runs)
        code = manage(url, "rundispatcher", "--burst", "-v0", f"--processes={processes}").wait()
        done, seconds = connection.execute(
            "SELECT count(*) FILTER (WHERE status = 'SUCCESSFUL'),"
            " extract(epoch FROM max(finished_at) - min(started_at))::float8 FROM django_dispatch_run"
        ).fetchone() or (0, 0.0)
    if code != 0 or done != runs:
        raise RuntimeError(f"The dispatcher ended with {code} and {done} of {runs} runs done.")
    return runs / float(seconds)
