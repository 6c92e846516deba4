"""Where a body is, said from inside its executor, whatever the body does. In executors.

The standard library's faulthandler writes the stacks of all threads from within the signal handler, in C: it waits
neither for the interpreter nor for a call into C that holds it. Only a process that takes no signals (it is stopped,
or waits for a disk) does not answer, or one whose body has taken the signal for itself.
"""

import asyncio
import faulthandler
import signal
import traceback
from collections.abc import Iterator
from types import FrameType
from typing import Any

# The last real-time signal: SIGUSR1 stops bodies, and projects like to have SIGUSR2 for themselves.
STACK_SIGNAL: int = getattr(signal, "SIGRTMAX", signal.SIGUSR2)


def answer_signals(descriptor: int) -> None:
    """From now on, write all stacks to this descriptor when the signal comes, whatever a body has made of it."""
    signal.signal(STACK_SIGNAL, signal.SIG_IGN)  # what it is without us: by default it would end the process
    faulthandler.unregister(STACK_SIGNAL)
    faulthandler.register(STACK_SIGNAL, file=descriptor, all_threads=True, chain=False)


def of_task(task: asyncio.Task[Any], limit: int | None = None) -> str:
    """Return the stack of a task that waits, down to what it awaits; the innermost ``limit`` frames, and not ours."""
    frames = [frame for frame in _frames(task.get_coro()) if not _is_ours(frame)]
    if limit is not None:
        frames = frames[-limit:]
    return "".join(traceback.StackSummary.extract((frame, frame.f_lineno) for frame in frames).format())


def _frames(awaited: Any) -> Iterator[FrameType]:
    """The frames of a coroutine and of all that it awaits; Task.get_stack() has only the first."""
    while awaited is not None:
        frame = getattr(awaited, "cr_frame", None) or getattr(awaited, "gi_frame", None)
        if frame is not None:
            yield frame
        awaited = getattr(awaited, "cr_await", None) or getattr(awaited, "gi_yieldfrom", None)


def _is_ours(frame: FrameType) -> bool:
    return str(frame.f_globals.get("__name__")).startswith("django_dispatch.executors.")
