"""What the table's wakeup trigger costs 64 clients that insert and commit at once."""

import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial

from testproject import postgres
from testproject.bench import marks, tasks
from testproject.bench.findings import Finding, by_turns
from testproject.bench.ground import Ground
from testproject.bench.processes import wait_for

CLIENTS = 64
DISPATCHERS = 4
LISTENER = 1
INSERT = f"INSERT INTO django_dispatch_run (task, args) VALUES ('{tasks.noop.path}', '[1]')"
AND_NOTIFY = f"WITH i AS ({INSERT} RETURNING queue) SELECT pg_notify('django_dispatch', 'ready:' || queue) FROM i"
# What dispatchers say with each mode of NOTIFY, as the trigger finds it.
NO_WORD = "TRUNCATE django_dispatch_waiter"
A_WORD = (
    "INSERT INTO django_dispatch_waiter (lease_id, queues, is_waiting)"
    f" SELECT gen_random_uuid(), '[\"*\"]', %s FROM generate_series(1, {DISPATCHERS})"
)
MODES = {"always": None, "idle, waiting": True, "idle, busy": False, "off": False}
TRIGGER = "ALTER TABLE django_dispatch_run {} TRIGGER django_dispatch_wake"


def notify(ground: Ground) -> Iterator[Finding]:
    """Single inserts of plain SQL: without the trigger, in each mode of NOTIFY, with a NOTIFY in each. One listens."""
    marks.clear(LISTENER + 1)
    command = [sys.executable, "-m", "testproject.bench.listener", ground.url, "django_dispatch", str(LISTENER)]
    listener = subprocess.Popen(command)
    try:
        wait_for(lambda: marks.marked_at(LISTENER), "the listener")
        found = by_turns(
            ground.rounds,
            {
                "without": lambda: _commits(ground, INSERT, trigger="DISABLE"),
                **{mode: partial(_in_mode, ground, word) for mode, word in MODES.items()},
                "each": lambda: _commits(ground, AND_NOTIFY, trigger="DISABLE"),
            },
        )
    finally:
        ground.sql.execute(TRIGGER.format("ENABLE").encode())
        ground.sql.execute(NO_WORD)
        listener.terminate()
        listener.wait()
    limit = (found["without"], "without a NOTIFY")
    for mode in MODES:
        name, _, state = mode.partition(", ")
        what = f'{CLIENTS} clients insert, NOTIFY "{name}"'
        if state:
            what += f", {'dispatchers wait' if state == 'waiting' else 'all dispatchers are busy'}"
        yield Finding(what, "commits/s", found[mode], *limit)
    yield Finding(f"{CLIENTS} clients insert, a NOTIFY in every commit", "commits/s", found["each"], *limit)


def _in_mode(ground: Ground, is_waiting: bool | None) -> float:
    ground.sql.execute(NO_WORD)
    if is_waiting is not None:
        ground.sql.execute(A_WORD, [is_waiting])
    return _commits(ground, INSERT, trigger="ENABLE")


def _commits(ground: Ground, statement: str, *, trigger: str) -> float:
    ground.clean()
    ground.sql.execute(TRIGGER.format(trigger).encode())
    with tempfile.NamedTemporaryFile("w", suffix=".sql") as script:
        script.write(f"{statement};\n")
        script.flush()
        options = ["-n", "-M", "prepared", f"-c{CLIENTS}", "-j2", f"-t{ground.size(400, 50)}", "-f", script.name]
        command = [str(postgres.embedded_bin_dir() / "pgbench"), *options, ground.url]
        output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    rate = re.search(r"tps = ([\d.]+) \(without", output)
    if rate is None:
        raise RuntimeError(f"pgbench said no rate:\n{output}")
    return float(rate[1])
