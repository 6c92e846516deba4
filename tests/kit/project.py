"""A project as ``django-admin startproject`` makes it, on its own SQLite, with an app of the test's: work."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .dispatchers import BASE_DIR, Dispatcher

QUEUE = """
DATABASES["queue"] = DATABASES["default"] | {"NAME": BASE_DIR / "queue.sqlite3"}
DATABASE_ROUTERS = ["django_dispatch.routers.DispatchRouter"]
DISPATCH = {"DATABASE": "queue"}
"""
# What a body did is in a file of its run, and not in the database: it is there whatever becomes of the run.
MODELS = """
from django.db import models


class Counter(models.Model):
    value = models.IntegerField(default=0)
"""
TASKS = """
import os
import time
from pathlib import Path

from django.db import connection, models, transaction
from django_dispatch import task

from .models import Counter

FOLDER = Path(__file__).parent.parent


def note(line):
    descriptor = os.open(FOLDER / "ledger", os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, f"{line}\\n".encode())
    os.close(descriptor)


@task
def add(a, b):
    return a + b


@task
async def add_async(a, b):
    return a + b


@task(bind=True)
def hold(context):
    note(f"start {context.run_id} {context.attempt} {os.getpid()}")
    while not (FOLDER / "open").exists():
        time.sleep(0.01)
    note(f"end {context.run_id} {context.attempt} {os.getpid()}")


@task(bind=True)
def count(context):
    # It reads first and writes later.
    with transaction.atomic():
        counter = Counter.objects.get()
        counter.value += 1
        counter.save()
    note(f"{context.run_id}")


@task
def leave_open():
    connection.cursor().execute("BEGIN IMMEDIATE")


@task(bind=True)
def hog(context):
    # It keeps the lock that everybody needs.
    with transaction.atomic():
        Counter.objects.update(value=models.F("value") + 1)
        note(f"start {context.run_id} {context.attempt}")
        while not (FOLDER / "open").exists():
            time.sleep(0.01)


@task(atomic=True)
def count_once(fails):
    counter = Counter.objects.get()
    counter.value += 1
    counter.save()
    if fails:
        raise ValueError("on purpose")
"""


class Project:
    """Its folder, its commands, its dispatchers.

    ``options`` are put into its database's ``OPTIONS``. ``has_queue``: runs are in a file of their own.
    """

    def __init__(self, folder: Path, *, options: Mapping[str, Any] | None = None, has_queue: bool = False) -> None:
        self.folder = folder
        self.runs = folder / ("queue.sqlite3" if has_queue else "db.sqlite3")
        self.dispatchers: list[Dispatcher] = []
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("DJANGO_", "PYTEST_"))},
            **{"PYTHONPATH": str(BASE_DIR), "PYTHONUNBUFFERED": "1", "DJANGO_SETTINGS_MODULE": "mysite.settings"},
        }
        self._run(sys.executable, "-m", "django", "startproject", "mysite", str(folder))
        with (folder / "mysite" / "settings.py").open("a") as settings:
            settings.write('\nINSTALLED_APPS += ["django_dispatch", "work"]\n')
            if options is not None:
                settings.write(f'DATABASES["default"]["OPTIONS"] = {dict(options)!r}\n')
            if has_queue:
                settings.write(QUEUE)
        app = folder / "work"
        app.mkdir()
        (app / "__init__.py").touch()
        (app / "models.py").write_text(MODELS)
        (app / "tasks.py").write_text(TASKS)
        # The driver of PostgreSQL need not be there.
        (folder / "psycopg.py").write_text('raise ImportError("There is no psycopg here.")\n')
        self.manage("migrate", "--run-syncdb", "--verbosity=0")
        if has_queue:
            self.manage("migrate", "django_dispatch", "--database=queue", "--verbosity=0")

    def manage(self, *words: str) -> str:
        """Run a command of the project and return what it said; it must succeed."""
        return self._run(sys.executable, str(self.folder / "manage.py"), *words)

    def shell(self, code: str) -> str:
        """Run code in a process of its own."""
        return self._run(sys.executable, "-c", f"import django; django.setup()\n{code}")

    def start(self, code: str) -> "subprocess.Popen[str]":
        """Run code in a process of its own, and do not wait for it."""
        command = [sys.executable, "-c", f"import django; django.setup()\n{code}"]
        return subprocess.Popen(
            command, cwd=self.folder, env=self._env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        )

    def dispatcher(self, node: str, *words: str) -> Dispatcher:
        """Start ``manage.py rundispatcher`` with these words."""
        command = [sys.executable, str(self.folder / "manage.py"), "rundispatcher", f"--node={node}", *words]
        self.dispatchers.append(Dispatcher(node, command, self._env, self.folder / f"{node}.log"))
        return self.dispatchers[-1]

    def ledger(self) -> list[str]:
        """Return the lines that bodies have written."""
        path = self.folder / "ledger"
        return path.read_text().splitlines() if path.exists() else []

    def close(self) -> None:
        """End all dispatchers; fail if any of their processes outlived its dispatcher."""
        remains = {dispatcher.node: dispatcher.remains() for dispatcher in self.dispatchers}
        assert not any(remains.values()), f"Processes outlived their dispatcher: {remains}"

    def _run(self, *command: str) -> str:
        out = subprocess.PIPE
        done = subprocess.run(
            command, check=False, cwd=self.folder, env=self._env, stdout=out, stderr=subprocess.STDOUT, text=True
        )
        assert done.returncode == 0, done.stdout
        return done.stdout
