"""Starting the dispatcher afresh when the project's code changes: a supervisor that runs it as a child.

Django's own reloader runs the command on a thread; a dispatcher needs the main thread, for signals and for its
children's lives. So the supervisor only watches files, with Django's list of them, and the child is the dispatcher.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from django.apps import apps
from django.utils import autoreload

from ..executors.zygote import die_with_parent

SUPERVISED = "DJANGO_DISPATCH_SUPERVISOR"
LOOK_SECONDS = 1.0


def is_supervised() -> bool:
    """Return whether this process is the child."""
    return SUPERVISED in os.environ


def end_with_supervisor() -> None:
    """In the child: drain when the supervisor dies."""
    die_with_parent(int(os.environ.pop(SUPERVISED)), signal.SIGTERM)


def supervise() -> int:
    """Run this command as a child; end it and start it again when a file changes. Returns its last exit code."""
    child: subprocess.Popen[bytes] | None = None
    ending: list[int] = []

    def pass_on(number: int, frame: FrameType | None) -> None:
        ending.append(number)
        if child is not None:
            child.send_signal(number)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, pass_on)
    while True:
        seen = _times()
        environment = os.environ | {SUPERVISED: str(os.getpid())}
        # In a process group of its own: Ctrl-C reaches it once, through pass_on, and not twice.
        child = subprocess.Popen(autoreload.get_child_arguments(), env=environment, process_group=0)
        if ending:
            child.send_signal(ending[-1])
        has_changed = _watch(child, seen)
        code = child.wait()
        if ending or (code == 0 and not has_changed):
            return code
        if not has_changed:
            sys.stderr.write(f"The dispatcher ended with code {code}; it starts again when the code changes.\n")
            while not ending and not _has_changed(seen):
                time.sleep(LOOK_SECONDS)


def _watch(child: subprocess.Popen[bytes], seen: dict[Path, float]) -> bool:
    """Wait until the child exits or a file changes, which ends the child; return whether one did."""
    while True:
        try:
            child.wait(timeout=LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            if _has_changed(seen):
                child.send_signal(signal.SIGTERM)
                return True
        else:
            return False


def _has_changed(seen: dict[Path, float]) -> bool:
    changed = next((path for path, changed_at in _times().items() if seen.get(path) != changed_at), None)
    if changed is not None:
        sys.stderr.write(f"{changed} has changed; the dispatcher starts afresh.\n")
    return changed is not None


def _times() -> dict[Path, float]:
    """When each file of the project last changed: modules imported here, and every module of the installed apps."""
    times = {}
    for path in {*autoreload.iter_all_python_module_files(), *_app_files()}:
        try:
            times[path] = path.stat().st_mtime
        except OSError:
            continue
    return times


def _app_files() -> Iterator[Path]:
    for config in apps.get_app_configs():
        if "site-packages" not in config.path:
            yield from Path(config.path).rglob("*.py")
