"""What bodies have started: it cannot leave the family, and is killed when its time is over. In zygote and executors.

Linux makes a process the parent of its orphaned descendants if it asks for that (a *subreaper*). So whoever has no
child has left nothing behind, and to kill children until there is none reaches daemons too, wherever they hid.
"""

import contextlib
import ctypes
import logging
import os
import signal
import sys
from time import monotonic, sleep

from ..messages import Assignment

PR_SET_CHILD_SUBREAPER = 36
LOOK_SECONDS = 0.001
LONGEST_SECONDS = 1.0

# After each body, that there is no child is what it says: with os.waitpid that is an exception, at four times the cost.
_waitpid = ctypes.CDLL(None).waitpid

logger = logging.getLogger("django_dispatch.executor")


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent dies. A fork does not inherit this. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def is_none_left(assignment: Assignment) -> bool:
    """Kill what a body that has ended left running; return whether there was nothing."""
    if not reap():
        return True
    logger.info(
        "Run %s (%s) left %s processes behind: they are killed, and its executor is replaced.",
        assignment.run_id,
        assignment.task,
        kill_all(seconds=LONGEST_SECONDS),
    )
    return False


def reap() -> bool:
    """Reap the children that have ended; return whether any lives on."""
    while (pid := _waitpid(-1, None, os.WNOHANG)) > 0:
        pass
    return bool(pid == 0)


def pids() -> list[int]:
    """Return the children of this process. Where the kernel keeps no such list: none."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError), open(f"/proc/self/task/{thread}/children") as children:
                found += map(int, children.read().split())
    return found


def kill_all(*, seconds: float) -> int:
    """Kill every child, and those that become ours by that, until there is none; return how many there were."""
    killed: set[int] = set()
    deadline = monotonic() + seconds
    while reap() and monotonic() < deadline:
        for pid in pids():
            kill(pid)
            killed.add(pid)
        sleep(LOOK_SECONDS)
    return len(killed)


def kill(pid: int) -> None:
    """Kill a child, unless it is gone or another user's."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, signal.SIGKILL)
