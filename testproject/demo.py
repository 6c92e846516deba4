"""``make demo``: the web site, a dispatcher and a stream of orders on the embedded PostgreSQL, until Ctrl-C.

Starts three processes of manage.py, shows their output line by line under a name, starts the dispatcher again when it
dies (kill it!), and at the end stops them in the order in which work flows, PostgreSQL last.
"""

import contextlib
import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

import django
from django.contrib.auth import get_user_model
from django.contrib.auth.hashers import make_password
from django.core.management import call_command
from django.db import connections

from testproject import postgres

BASE_DIR = Path(__file__).resolve().parent.parent
KEPT = Path(os.environ.get("STATE_DIR", BASE_DIR)) / ".demo"
PORT = os.environ.get("DEMO_PORT", "8000")
SITE_URL = f"http://127.0.0.1:{PORT}"
COLOURS = {"demo": 36, "web": 34, "dispatcher": 32, "orders": 33}
METRICS_PORT = os.environ.get("DEMO_METRICS_PORT", "8070")
DISPATCHER = ("rundispatcher", "--no-reload", f"--metrics-port={METRICS_PORT}")
TICK_SECONDS = 0.1
RESTART_SECONDS = 1.0
# A dispatcher lets its runs end first; this is longer than it may take for that.
STOP_SECONDS = 45.0


class Process:
    """One manage.py command whose output is shown under its name. Ctrl-C does not reach it: the demo stops it."""

    def __init__(self, name: str, *arguments: str, env: Mapping[str, str]) -> None:
        self.name = name
        self._popen = subprocess.Popen(
            [sys.executable, "-u", "manage.py", *arguments],
            cwd=BASE_DIR,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.pid = self._popen.pid
        threading.Thread(target=self._show_output, daemon=True).start()

    def has_ended(self) -> bool:
        return self._popen.poll() is not None

    def stop(self) -> None:
        """Ask it to end; insist when it takes too long, or when somebody is in a hurry."""
        self._popen.terminate()
        deadline = time.monotonic() + STOP_SECONDS
        while not self.has_ended():
            if time.monotonic() > deadline or len(_signals) > 1:
                self._popen.kill()
            time.sleep(TICK_SECONDS)

    def _show_output(self) -> None:
        assert self._popen.stdout is not None
        for line in self._popen.stdout:
            say(self.name, line.rstrip())


def main() -> int:
    """Run the demo; the exit code is 0 unless something ended that must not."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: _signals.append(True))
    processes: dict[str, Process] = {}
    try:
        env = prepare()
        watch(processes, env)
    finally:
        say("demo", "stopping; Ctrl-C again to hurry")
        for name in ("orders", "dispatcher", "web"):
            if name in processes:
                processes[name].stop()
        postgres.release_server()
    return 0 if _signals else 1


def prepare() -> dict[str, str]:
    """Start PostgreSQL, migrate, make the superuser; return the environment of the processes."""
    if not os.environ.get("DATABASE_URL"):
        say("demo", "starting PostgreSQL")
        os.environ["DATABASE_URL"] = postgres.ensure_server()
    os.environ |= {"SITE_URL": SITE_URL, "SHOP_SCHEDULES": "1", "DJANGO_SETTINGS_MODULE": "testproject.settings"}
    KEPT.mkdir(parents=True, exist_ok=True)
    django.setup()
    call_command("migrate", verbosity=0)
    account = {"is_staff": True, "is_superuser": True, "password": make_password(_password())}
    get_user_model().objects.update_or_create(username="admin", defaults=account)
    connections.close_all()
    return dict(os.environ)


def watch(processes: dict[str, Process], env: Mapping[str, str]) -> None:
    """Start the processes and keep them going, until a signal or the end of one that must not end."""
    processes["web"] = Process("web", "runserver", "--noreload", PORT, env=env)
    processes["dispatcher"] = Process("dispatcher", *DISPATCHER, env=env)
    processes["orders"] = Process("orders", "demo_orders", env=env)
    _greet(processes["dispatcher"].pid)
    while not _signals:
        time.sleep(TICK_SECONDS)
        for name in ("web", "orders"):
            if processes[name].has_ended():
                say("demo", f"{name} has ended unexpectedly")
                return
        if processes["dispatcher"].has_ended() and not _signals:
            time.sleep(RESTART_SECONDS)
            processes["dispatcher"] = Process("dispatcher", *DISPATCHER, env=env)
            say("demo", f"the dispatcher died, a new one takes over; again: kill -9 {processes['dispatcher'].pid}")


def say(name: str, line: str) -> None:
    """Print a line under the name of the process that it comes from."""
    label = f"{name:>10} |"
    if sys.stdout.isatty():
        label = f"\x1b[{COLOURS[name]}m{label}\x1b[0m"
    # The terminal may be gone, and stopping in order matters more than saying so.
    with contextlib.suppress(OSError):
        print(label, line, flush=True)


def _greet(pid: int) -> None:
    lines = [
        "",
        f"  The shop          {SITE_URL}/",
        f"  The admin         {SITE_URL}/admin/",
        f"  user, password    admin  {_password()}",
        f"  Metrics           http://127.0.0.1:{METRICS_PORT}/metrics",
        "",
        f"  The dispatcher has pid {pid}. Nothing gets lost:",
        "",
        f"      kill -9 {pid}",
        "",
        "  and watch. Ctrl-C stops everything.",
        "",
    ]
    for line in lines:
        say("demo", line)


def _password() -> str:
    file = KEPT / "password"
    if not file.exists():
        file.touch(mode=0o600)
        file.write_text(secrets.token_urlsafe(9))
    return file.read_text()


# Ctrl-C, SIGTERM and closed terminals so far. A handler that raised could cut the orderly end short.
_signals: list[bool] = []

if __name__ == "__main__":
    sys.exit(main())
