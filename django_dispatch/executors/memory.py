"""Whether the kernel killed an executor for want of memory: its own count, of our control group. In the zygote."""

import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path

RECENT_SECONDS = 10.0  # a large process takes a while to die

MEMBERSHIP = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")


class OutOfMemoryKills:
    """The kernel's kills in our control group; each explains one death by SIGKILL that follows soon."""

    def __init__(self) -> None:
        self._seen = _count()
        self._unexplained: deque[float] = deque()

    def look(self) -> None:
        """Note new kills, and forget old ones. To be called about once a second."""
        now, count = time.monotonic(), _count()
        self._unexplained.extend([now] * (count - self._seen))
        self._seen = count
        while self._unexplained and now - self._unexplained[0] > RECENT_SECONDS:
            self._unexplained.popleft()

    def explain_one(self) -> bool:
        """Return whether there was a kill, not used as an explanation before."""
        self.look()
        if not self._unexplained:
            return False
        self._unexplained.popleft()
        return True


def _count() -> int:
    """Return how many processes of our group the kernel has killed for want of memory; 0 where it does not tell."""
    for path in _counters():
        try:
            fields = dict(line.split() for line in path.read_text().splitlines())
            return int(fields["oom_kill"])
        except (OSError, ValueError, KeyError):
            continue
    return 0


def _counters() -> Iterator[Path]:
    """Yield the files that may hold the count: of either version of control groups, by its full path or as the root."""
    try:
        memberships = [line.split(":", 2) for line in MEMBERSHIP.read_text().splitlines()]
    except OSError:
        return
    for number, controllers, group in memberships:
        if number == "0":
            folder, file = GROUPS, "memory.events"
        elif "memory" in controllers.split(","):
            folder, file = GROUPS / "memory", "memory.oom_control"
        else:
            continue
        yield folder / group.lstrip("/") / file
        yield folder / file
