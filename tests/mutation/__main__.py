"""Run the tests of each mutant on a copy of the tree; print who noticed it. Exit code 1: one survived, or is no more.

``python -m tests.mutation [--quick] [WORD …]`` runs those whose file, text or tests have one of the words; ``--quick``:
whose tests start no dispatcher and are over soon. Two at a time, on one server.
"""

import os
import queue
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from importlib.util import cache_from_source
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

    def pytest(self, selection: Sequence[str], *, is_kept: bool = True) -> subprocess.CompletedProcess[str]:
        # As little as can be: what starts is started a hundred times.
        options = [
            "-xq",
            "--tb=line",
            "--assert=plain",
            *(["--reuse-db"] if is_kept else []),
            "-p",
            "no:cacheprovider",
            "-p",
            "no:hypothesispytest",
        ]
        command = [sys.executable, "-m", "pytest", *options, *selection]
        url = urlsplit(self._server_url)._replace(path=f"/{self._database}").geturl()
        env = os.environ | {"DATABASE_URL": url, "STORE_UNSHRUNK": "1"}
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
        _write(file, text.replace(mutant.old, mutant.new))
        try:
            # What a migration made is in the database, which is made anew then, and not kept.
            result = self.pytest(mutant.tests, is_kept="/migrations/" not in mutant.file)
        except subprocess.TimeoutExpired:
            return False, f"its tests took longer than {PATIENCE_SECONDS} s"
        finally:
            _write(file, text)
        if result.returncode == 0:
            return False, f"SURVIVED {' '.join(mutant.tests)}"
        if "syntax error" in result.stdout:
            return False, "it is not SQL: adapt tests/mutation/mutants.py"
        noticed = re.search(r"^(?:FAILED|ERROR) (\S+)", result.stdout, re.MULTILINE)
        if result.returncode != 1 or noticed is None:
            return False, f"its tests did not run:\n{result.stdout[-2000:]}{result.stderr[-2000:]}"
        return True, noticed[1]


def _write(file: Path, text: str) -> None:
    """Write a module, and have nothing of the former one be found: its time and size may be the same."""
    file.write_text(text)
    Path(cache_from_source(file)).unlink(missing_ok=True)


def main(arguments: Sequence[str]) -> int:
    words = [argument for argument in arguments if argument != "--quick"]
    chosen = [m for m in MUTANTS if not words or any(word in f"{m.file} {m.old} {m.tests}" for word in words)]
    if "--quick" in arguments:
        chosen = [m for m in chosen if m.is_quick]
    server_url = postgres.ensure_server()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder, ThreadPoolExecutor(AT_ONCE) as threads:
        trees: queue.Queue[Tree] = queue.Queue()
        for number in range(AT_ONCE):
            trees.put(Tree(Path(folder) / str(number), server_url))

        @contextmanager
        def one_tree() -> Iterator[Tree]:
            tree = trees.get()
            try:
                yield tree
            finally:
                trees.put(tree)

        def judge(mutant: Mutant) -> tuple[bool, str]:
            with one_tree() as tree:
                began = time.monotonic()
                is_noticed, what = tree.judge(mutant)
                return is_noticed, f"{what} ({time.monotonic() - began:.1f} s)"

        def be_healthy(tests: Sequence[str]) -> subprocess.CompletedProcess[str]:
            with one_tree() as tree:
                return tree.pytest(tests)

        tests = sorted({test for mutant in chosen for test in mutant.tests})
        parts = [part for number in range(AT_ONCE) if (part := tests[number::AT_ONCE])]
        for result in threads.map(be_healthy, parts):
            if result.returncode:
                print(f"The tests fail without a mutant, too:\n{result.stdout[-4000:]}")
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
