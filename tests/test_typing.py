"""What a type checker says about a project that uses django-dispatch."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

CASES = Path(__file__).parent / "typing"


def lines_with_errors(case: Path, cache: Path) -> tuple[set[int], str]:
    command = [sys.executable, "-m", "mypy", "--config-file", "mypy.ini", "--cache-dir", str(cache), case.name]
    # The plugin imports the settings module of the cases, not the one of this test run.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(CASES), str(CASES.parent.parent)])}
    environment.pop("DJANGO_SETTINGS_MODULE", None)
    done = subprocess.run(command, cwd=CASES, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stdout + done.stderr
    pattern = rf"^{re.escape(case.name)}:(\d+): error:"
    return {int(line) for line in re.findall(pattern, done.stdout, re.MULTILINE)}, done.stdout


@pytest.mark.slow
def test_a_type_checker_accepts_right_uses_and_refuses_wrong_ones(tmp_path: Path) -> None:
    errors, output = lines_with_errors(CASES / "correct.py", tmp_path)
    assert errors == set(), output
    wrong = CASES / "wrong.py"
    marked = {n for n, line in enumerate(wrong.read_text().splitlines(), 1) if line.endswith("# error")}
    assert marked
    errors, output = lines_with_errors(wrong, tmp_path)
    assert errors == marked, output
