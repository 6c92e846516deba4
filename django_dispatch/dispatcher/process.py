"""Which process a lease belongs to, and whether it still lives: only knowable on its own host."""

import contextlib
import os
import signal
import socket
from collections.abc import Container, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

BOOT_MARK = "DJANGO_DISPATCH_BOOT"  # in the environment of the zygote and of all that descends from it


def host_name() -> str:
    """Return the name under which leases of this host are found."""
    return socket.gethostname()


def identity(boot_mark: str) -> dict[str, Any]:
    """Describe this dispatcher, so that a neighbour can tell whether it and its executors live. Linux only; else {}."""
    place = _place()
    if not place:
        return {}
    return {
        **place,
        "uid": os.geteuid(),
        "dispatcher": [os.getpid(), start_time(os.getpid())],
        "mark": boot_mark,
    }


def is_dead(process: Mapping[str, Any]) -> bool:
    """Return whether a dispatcher is surely dead, with its zygote and every executor. False also means: cannot tell."""
    place = _place()
    if not place or any(process.get(key) != value for key, value in place.items()):
        return False
    if os.geteuid() not in (0, process.get("uid")):
        return False  # we could not look into its executors
    try:
        pid, started = process["dispatcher"]
        if start_time(pid) == started:
            return False
        mark = f"{BOOT_MARK}={process['mark']}".encode()
    except (KeyError, TypeError, ValueError):
        return False
    return not any(mark in environment for environment in _environments())


def kill_group(leader: int) -> None:
    """Kill the process group of an executor that has died, or is about to, a moment ago."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, signal.SIGKILL)


def reap_adopted(besides: Container[int]) -> None:
    """As process 1, reap what the kernel has made our child because its parent died; not those ``besides``."""
    if os.getpid() != 1:
        return
    with contextlib.suppress(ChildProcessError):
        # Looked at before it is reaped: the exit status of those besides is somebody else's to fetch.
        while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and found.si_pid not in besides:
            os.waitpid(found.si_pid, 0)


def start_time(pid: int) -> int:
    """Return when a process started, in clock ticks since boot; 0 if there is none, or a dead one not yet reaped."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return 0
    fields = stat[stat.rindex(b")") + 2 :].split()
    return 0 if fields[0] in b"ZX" else int(fields[19])


@cache
def _place() -> Mapping[str, str]:
    """Where pids mean the same processes: this boot of this kernel, this namespace. It never changes for a process."""
    try:
        return {
            "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
            "pid_namespace": os.readlink("/proc/self/ns/pid"),
        }
    except OSError:
        return {}


def _environments() -> list[bytes]:
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found.append((entry / "environ").read_bytes())
            except OSError:
                continue  # gone, or another user's
    return found


def package_version() -> str:
    """Return the version of django-dispatch; 0 where it is not installed."""
    try:
        return version("django-dispatch")
    except PackageNotFoundError:
        return "0"
