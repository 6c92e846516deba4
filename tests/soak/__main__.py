"""``python -m tests.soak``: SOAK is for how many seconds (60), SEED replays a schedule of faults. Exits with 0 or 1."""

import os
import random
import shutil
import sys
import tempfile
from pathlib import Path

import django
import psycopg
from django.core.management import call_command
from django.db import connections

from testproject.postgres import TemporaryServer


def main() -> int:
    """Soak, and say what came of it. On failure the folder of logs and ledger stays."""
    seconds = float(os.environ.get("SOAK", "60"))
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(10**6))
    sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
    print(f"Soak of {seconds:g} s with SEED={seed}")
    folder = Path(tempfile.mkdtemp(prefix="soak-", dir="/tmp"))
    with TemporaryServer() as server:
        prepare(server, folder)
        is_good = soak(server, folder, seed, seconds)
    if is_good:
        shutil.rmtree(folder)
    print(f"{'PASS' if is_good else 'FAIL'}: SEED={seed} SOAK={seconds:g}" + ("" if is_good else f"; see {folder}"))
    return 0 if is_good else 1


def prepare(server: TemporaryServer, folder: Path) -> None:
    """Make the database, which is to remember when transactions were committed, and the tables."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute("ALTER SYSTEM SET track_commit_timestamp = on")
    server.restart()
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DATABASE_URL": server.url,
        "DEBUG": "0",
        "KIT_APPS": "tests.soak",
        "KIT_DIR": str(folder),
    }
    django.setup()
    call_command("migrate", verbosity=0)
    connections.close_all()


def soak(server: TemporaryServer, folder: Path, seed: int, seconds: float) -> bool:
    """Run it, print everything, return whether all was as it must be."""
    # Only now, when apps are ready.
    from .audit import audit
    from .report import counts, violations
    from .soak import Soak
    from .timeline import tally_of

    one = Soak(folder, server, seed, seconds)
    try:
        evidence = one.run()
    finally:
        print("\n".join(one.timeline.lines(one.logs)))
    found = audit(evidence)
    print("\n".join(counts(evidence, one.faults, one.fleet.starts, tally_of(one.logs))))
    print("\n".join(violations(evidence, found)))
    return not found


if __name__ == "__main__":
    sys.exit(main())
