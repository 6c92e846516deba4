"""What bodies did, in files: a line the moment it happens, which outlives the body, its process and the database.

The kit's ledger is a table; the soak takes the database down under running bodies, and asks how long they lived. All
processes are on one machine, so a file of each run serves: an attempt that starts finds the earlier ones there, and
looks whether the processes of those that never ended are dead. In executors, and in the soak.
"""

import functools
import json
import os
import time
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

from django_dispatch import TaskContext

from .evidence import Start

T = TypeVar("T")
FOLDERS = 256
SIGKILL_BIT = 1 << 8
PF_EXITING = 0x4


class Entry:
    """One attempt's lines. ``value`` is what its body is about to return."""

    def __init__(self, context: TaskContext) -> None:
        assert context.run_id is not None
        self.context = context
        self.run_id, self.epoch, self.attempt = context.run_id, context.epoch, context.attempt
        self.value: Any = None
        self._file = -1

    def begin(self) -> None:
        """Say that the body begins; say so too if an earlier one has not ended."""
        self._file = os.open(path_of(folder(), self.run_id), os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self._write(event="start", attempt=self.attempt, pid=os.getpid(), born=born(os.getpid()))
        for other in unended(os.pread(self._file, 1 << 20, 0)):
            if other["epoch"] != self.epoch and not is_dead(other["pid"], other["born"]):
                self._write(event="overlap", other=other["epoch"])

    def beat(self) -> None:
        """Give a sign of life."""
        self._write(event="beat")

    def note(self, event: str) -> None:
        """Say something else."""
        self._write(event=event)

    def end(self, how: str) -> None:
        """Say how the body ends; a stop that comes in between changes nothing."""
        if self._file < 0:
            return
        line = {"event": "end", "how": how} | ({"value": self.value} if how == "returned" else {})
        try:
            self._write(**line)
        except BaseException:
            self._write(**line)
            raise
        finally:
            os.close(self._file)

    def _write(self, **facts: Any) -> None:
        os.write(
            self._file, json.dumps({"epoch": self.epoch, "at": time.time()} | facts, default=repr).encode() + b"\n"
        )


def recorded(body: Callable[..., T]) -> Callable[..., T]:
    """Make a body of a task with ``bind=True`` write the ledger; it gets its entry in place of the context."""

    @functools.wraps(body)
    def wrapper(context: TaskContext, *args: Any, **kwargs: Any) -> T:
        entry, how = Entry(context), "raised"
        try:
            entry.begin()
            entry.value = value = body(entry, *args, **kwargs)
            how = "returned"
        finally:
            entry.end(how)
        return value

    return wrapper


def arecorded(body: Callable[..., Coroutine[Any, Any, T]]) -> Callable[..., Coroutine[Any, Any, T]]:
    """See recorded()."""

    @functools.wraps(body)
    async def wrapper(context: TaskContext, *args: Any, **kwargs: Any) -> T:
        entry, how = Entry(context), "raised"
        try:
            entry.begin()
            entry.value = value = await body(entry, *args, **kwargs)
            how = "returned"
        finally:
            entry.end(how)
        return value

    return wrapper


def folder() -> Path:
    """Return the ledger's folder, which the soak has told everybody."""
    return Path(os.environ["KIT_DIR"]) / "ledger"


def make(place: Path) -> None:
    """Make the ledger's folders."""
    for number in range(FOLDERS):
        (place / f"{number:02x}").mkdir(parents=True)


def path_of(place: Path, run_id: int) -> Path:
    return place / f"{run_id % FOLDERS:02x}" / f"{run_id}.jsonl"


def read(place: Path) -> list[Start]:
    """Return every start of every body, by run, in the order of the starts."""
    return [start for path in place.glob("*/*.jsonl") for start in starts_of(int(path.stem), path.read_bytes())]


def starts_of(run_id: int, text: bytes) -> Iterator[Start]:
    """Read one run's file."""
    found: dict[int, dict[str, Any]] = {}
    doubled = []
    for line in map(json.loads, text.splitlines()):
        epoch = line["epoch"]
        if epoch not in found and line["event"] != "start":
            continue  # it was told to stop before its first line
        match line["event"]:
            case "start":
                facts = {"run_id": run_id, "epoch": epoch, "attempt": line["attempt"], "pid": line["pid"]}
                facts |= {"at": line["at"], "seen_at": line["at"], "notes": ()}
                if epoch in found:
                    doubled.append(found[epoch])
                found[epoch] = facts
            case "overlap":
                found[epoch]["overlaps"] = (*found[epoch].get("overlaps", ()), line["other"])
            case "beat":
                found[epoch]["seen_at"] = line["at"]
            case "end":
                found[epoch] |= {"seen_at": line["at"], "how": line["how"], "value": line.get("value")}
            case other:
                found[epoch]["notes"] = (*found[epoch]["notes"], other)
    yield from (Start(**facts) for facts in sorted([*doubled, *found.values()], key=lambda facts: facts["at"]))


def unended(text: bytes) -> list[dict[str, Any]]:
    """Return the starts in a run's file that have no end."""
    lines = [json.loads(line) for line in text.splitlines()]
    ended = {line["epoch"] for line in lines if line["event"] == "end"}
    return [line for line in lines if line["event"] == "start" and line["epoch"] not in ended]


def born(pid: int) -> int:
    """Return when a process started, in ticks since boot; 0 if there is none."""
    fields = _stat(pid)
    return int(fields[19]) if fields else 0


def is_dead(pid: int, born_at: int) -> bool:
    """Return whether no code of a process can run any more: gone, a zombie, exiting, or with SIGKILL on its way."""
    fields = _stat(pid)
    if not fields or int(fields[19]) != born_at or fields[0] in "ZX" or int(fields[6]) & PF_EXITING:
        return True
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    pending = [int(line.split()[1], 16) for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:"))]
    return any(mask & SIGKILL_BIT for mask in pending)


def _stat(pid: int) -> list[str]:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return []
    return text[text.rindex(")") + 2 :].split()
