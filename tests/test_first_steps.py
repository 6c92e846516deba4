"""What somebody who has just installed the package runs into."""

import os
import subprocess
import sys
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent


def test_a_dispatcher_on_a_database_without_tables_says_what_to_do_and_waits(database_url: str) -> None:
    url = f"{database_url}?options=-csearch_path%3Dnowhere"
    process = subprocess.Popen(
        [sys.executable, "manage.py", "rundispatcher", "--no-reload", "--processes=1"],
        cwd=BASE_DIR,
        env=os.environ | {"DATABASE_URL": url},
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        line = next((line for line in process.stderr if "migrate" in line), "")
        assert "Trouble with the database" in line
        assert process.poll() is None
    finally:
        process.terminate()
        process.communicate(timeout=30)
    assert process.returncode == 0
