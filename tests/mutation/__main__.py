"""Run the tests of each mutant on a copy of the tree; print who noticed it. Exit code 1: one survived, or is no more.

``python -m tests.mutation [WORD …]`` runs those whose file or text has one of the words. Two at a time, on one server.
"""

import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import psycopg

from testproject import postgres

from .mutants import MUTANTS, Mutant

BASE_DIR = Path(__file__).resolve().parent.parent.parent
AT_ONCE = 2
PATIENCE_SECONDS = 600


class Tree:
    """A copy of the project, with a database of its own that is made once."""

    def __init__(self, folder: Path, server_url: str) -> None:
        self.folder = folder
        self._server_url = server_url
        self._database = f"mutants_{os.getpid()}_{folder.name}"
        listed = subprocess.run(
            ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
            cwd=BASE_DIR, check=True, capture_output=True, text=True,
        )  # fmt: skip
        for name in filter(None, listed.stdout.split("\0")):
            if (BASE_DIR / name).is_file():
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(BASE_DIR / name, folder / name)

    def pytest(self, selection: Sequence[str]) -> subprocess.CompletedProcess[str]:
        command = [
            sys.executable,
            "-m",
            "pytest",
            "-xq",
            "--tb=line",
            "-p",
            "no:cacheprovider",
            "--reuse-db",
            *selection,
        ]
        url = urlsplit(self._server_url)._replace(path=f"/{self._database}").geturl()
        env = os.environ | {"DATABASE_URL": url, "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=PATIENCE_SECONDS, check=False
        )

    def close(self) -> None:
        with psycopg.connect(self._server_url, autocommit=True) as server:
            server.execute(f"DROP DATABASE IF EXISTS test_{self._database} WITH (FORCE)")

    def judge(self, mutant: Mutant) -> tuple[bool, str]:
        """Return whether the mutant was noticed, and by what; or what is wrong with it."""
        file = self.folder / mutant.file
        text = file.read_text()
        if text.count(mutant.old) != 1:
            return False, f"its text is there {text.count(mutant.old)} times: adapt tests/mutation/mutants.py"
        file.write_text(text.replace(mutant.old, mutant.new))
        try:
            result = self.pytest(mutant.tests)
        except subprocess.TimeoutExpired:
            return False, f"its tests took longer than {PATIENCE_SECONDS} s"
        finally:
            file.write_text(text)
        if result.returncode == 0:
            return False, f"SURVIVED {' '.join(mutant.tests)}"
        if "syntax error" in result.stdout:
            return False, "it is not SQL: adapt tests/mutation/mutants.py"
        noticed = re.search(r"^(?:FAILED|ERROR) (\S+)", result.stdout, re.MULTILINE)
        if result.returncode != 1 or noticed is None:
            return False, f"its tests did not run:\n{result.stdout[-2000:]}{result.stderr[-2000:]}"
        return True, noticed[1]


def main(words: Sequence[str]) -> int:
    chosen = [m for m in MUTANTS if not words or any(word in f"{m.file} {m.old}" for word in words)]
    server_url = postgres.ensure_server()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(AT_ONCE) as threads:
        trees: queue.Queue[Tree] = queue.Queue()
        for number in range(AT_ONCE):
            trees.put(Tree(Path(folder) / str(number), server_url))

        def judge(mutant: Mutant) -> tuple[bool, str]:
            tree = trees.get()
            try:
                return tree.judge(mutant)
            finally:
                trees.put(tree)

        tree = trees.get()
        healthy = tree.pytest(sorted({test for mutant in chosen for test in mutant.tests}))
        trees.put(tree)
        if healthy.returncode:
            print(f"The tests fail without a mutant, too:\n{healthy.stdout[-4000:]}")
            return 1
        missed = 0
        for mutant, (is_noticed, what) in zip(chosen, threads.map(judge, chosen), strict=True):
            missed += not is_noticed
            print(f"{'noticed' if is_noticed else 'MISSED '}  {mutant}\n         by {what}", flush=True)
        while not trees.empty():
            trees.get().close()
    postgres.release_server()
    print(f"{len(chosen) - missed} of {len(chosen)} mutants noticed")
    return 1 if missed or not chosen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
