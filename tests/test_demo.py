"""``make demo`` as a newcomer sees it: a banner, a site, work that survives ``kill -9``, and no leftovers."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import psutil
import psycopg
import pytest

from testproject import postgres

pytestmark = pytest.mark.slow
BASE_DIR = Path(postgres.__file__).resolve().parent.parent
PATIENCE_SECONDS = 60


class Demo:
    """A running demo. Its output is its clock: the stream of orders makes it speak several times a second."""

    def __init__(self, state_dir: Path, port: int) -> None:
        self.site = f"http://127.0.0.1:{port}"
        env = {key: value for key, value in os.environ.items() if key != "DATABASE_URL"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "testproject.demo"],
            cwd=BASE_DIR,
            env=env
            | {"STATE_DIR": str(state_dir), "DEMO_PORT": str(port), "DEMO_METRICS_PORT": str(postgres.free_port())},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self.said: list[str] = []

    def wait_for(self, pattern: str) -> re.Match[str]:
        """Read on until a line matches."""
        self.wait_until(lambda line: re.search(pattern, line) is not None)
        match = re.search(pattern, self.said[-1])
        assert match
        return match

    def wait_until(self, is_it: Callable[[str], bool]) -> None:
        """Read on until it is so; asked again with each line."""
        assert self.process.stdout is not None
        deadline = time.monotonic() + PATIENCE_SECONDS
        for line in self.process.stdout:
            self.said.append(line)
            if is_it(line):
                return
            if time.monotonic() > deadline:
                break
        pytest.fail("The demo never got there:\n" + "".join(self.said))

    def stop(self) -> int:
        """Ask it to end as Ctrl-C in a shell without job control would, and return its exit code."""
        self.process.send_signal(signal.SIGTERM)
        self.said.append(self.process.communicate(timeout=PATIENCE_SECONDS)[0])
        return self.process.returncode


@pytest.fixture
def state_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.setenv("STATE_DIR", str(tmp_path))
    yield tmp_path
    postgres.stop_server()
    shutil.rmtree(postgres.project_server().home, ignore_errors=True)


@pytest.fixture
def demo(state_dir: Path) -> Iterator[Demo]:
    demo = Demo(state_dir, postgres.free_port())
    yield demo
    if demo.process.poll() is None:
        demo.stop()


def test_the_demo_from_banner_to_ctrl_c(demo: Demo, state_dir: Path) -> None:
    password = demo.wait_for(r"user, password +admin +(\S+)")[1]
    metrics = demo.wait_for(r"Metrics +(\S+)")[1]
    dispatcher = psutil.Process(int(demo.wait_for(r"kill -9 (\d+)")[1]))
    demo.wait_until(lambda _: any((state_dir / "sent_mail").glob("*")))
    assert can_log_in(demo.site, password)
    assert "django_dispatch_runs_finished_total{" in httpx.get(metrics).text

    executors = dispatcher.children(recursive=True)
    dispatcher.kill()
    successor = int(demo.wait_for(r"a new one takes over; again: kill -9 (\d+)")[1])
    assert not any(map(is_alive, psutil.wait_procs(executors, timeout=1)[1]))
    with psycopg.connect(postgres.project_server().url, autocommit=True) as connection:
        (newest,) = connection.execute("SELECT max(id) FROM django_dispatch_run").fetchone() or (0,)
        unfinished = "SELECT 1 FROM django_dispatch_run WHERE id <= %s AND finished_at IS NULL"
        demo.wait_until(lambda _: connection.execute(unfinished, [newest]).fetchone() is None)
        unsent = "SELECT count(*) FROM shop_order o JOIN django_dispatch_run r ON r.args = jsonb_build_array(o.id)"
        where = "WHERE r.id <= %s AND r.task LIKE '%%send_receipt' AND o.receipt_sent_at IS NULL"
        assert connection.execute(f"{unsent} {where}", [newest]).fetchone() == (0,)

    family = psutil.Process(demo.process.pid).children(recursive=True)
    assert successor in [process.pid for process in family]
    assert demo.stop() == 0
    assert not any(map(is_alive, family))
    assert not postgres.project_server().is_running()


def is_alive(process: psutil.Process) -> bool:
    """Whether it runs; one that only waits to be reaped by whoever inherited it does not."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def can_log_in(site: str, password: str) -> bool:
    with httpx.Client(base_url=site, follow_redirects=True) as client:
        client.get("/admin/login/")
        form = {"username": "admin", "password": password, "csrfmiddlewaretoken": client.cookies["csrftoken"]}
        answer = client.post("/admin/login/?next=/admin/", data=form, headers={"Referer": site})
        return "Site administration" in answer.text
