"""What all bodies of a process share, put back after each as it was before the first. In executors.

Only what costs next to nothing to look at, and would hurt an innocent body: a signal handler or an alarm of somebody
else's, a changed directory or environment. Whatever else a body changes stays until its executor is replaced.
"""

import faulthandler
import gc
import os
import signal
import sys
import time

# The public functions make enum members of handlers and signals, which takes up to ten times as long.
from _signal import getsignal, pthread_sigmask  # type: ignore[import-not-found, unused-ignore]

LOOK_SECONDS = 0.03  # of bodies between two looks at everything, which takes up to 0.15 ms: caches are cold by then
_STANDARD_SIGNALS = [number for number in range(1, 32) if number not in (signal.SIGKILL, signal.SIGSTOP)]


class ProcessState:
    """The state of this process at the time when the object is made."""

    def __init__(self) -> None:
        self._handlers = list(map(getsignal, _STANDARD_SIGNALS))
        self._directory = _open_directory()
        self._umask = os.umask(0)
        os.umask(self._umask)
        self._environ = os.environ
        self._variables = dict(os.environ._data)  # type: ignore[attr-defined]  # encoded: compared without decoding
        self._streams = sys.stdout, sys.stderr
        self._files = _files_of_streams()
        self._nice = os.getpriority(os.PRIO_PROCESS, 0)
        self._recursion_limit = sys.getrecursionlimit()
        self._collects = gc.isenabled()
        self._unlooked_seconds = 0.0

    def is_due(self, body_seconds: float) -> bool:
        """Return whether bodies have taken long enough, with this one, to look at everything."""
        self._unlooked_seconds += body_seconds
        if self._unlooked_seconds < LOOK_SECONDS:
            return False
        self._unlooked_seconds = 0.0
        return True

    def restore(self, *, everything: bool) -> bool:
        """Put everything back; return False if something cannot be, so that this process is not to be used again.

        Without ``everything`` the dearer half of the looks is left out.
        """
        signal.alarm(0)
        if list(map(getsignal, _STANDARD_SIGNALS)) != self._handlers:
            self._restore_handlers()
        if sys.getrecursionlimit() != self._recursion_limit:
            sys.setrecursionlimit(self._recursion_limit)
        if gc.isenabled() != self._collects:
            (gc.enable if self._collects else gc.disable)()
        os.umask(self._umask)
        if os.environ is not self._environ or os.environ._data != self._variables:  # type: ignore[attr-defined]
            self._restore_environment()
        sys.stdout, sys.stderr = self._streams
        is_whole = self._restore_directory()
        return self._restore_rest() and is_whole if everything else is_whole

    def _restore_rest(self) -> bool:
        for timer in (signal.ITIMER_VIRTUAL, signal.ITIMER_PROF):
            signal.setitimer(timer, 0)
        faulthandler.cancel_dump_traceback_later()
        if pthread_sigmask(signal.SIG_BLOCK, ()):
            self._unblock()
        is_open = not any(stream is not None and stream.closed for stream in self._streams)
        has_nice = os.getpriority(os.PRIO_PROCESS, 0) == self._nice
        return is_open and has_nice and _files_of_streams() == self._files

    def _restore_handlers(self) -> None:
        for number, handler in zip(_STANDARD_SIGNALS, self._handlers, strict=True):
            if handler is not None and getsignal(number) != handler:
                signal.signal(number, handler)

    def _unblock(self) -> None:
        """Let signals in again. Those that have waited were meant for the body that is gone."""
        for number in signal.sigpending():
            handler = getsignal(number)
            signal.signal(number, signal.SIG_IGN)
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())

    def _restore_environment(self) -> None:
        os.environ = self._environ  # noqa: B003  # a body may have put another object there
        wanted = {os.fsdecode(name): os.fsdecode(value) for name, value in self._variables.items()}
        for name in os.environ.keys() - wanted.keys():
            del os.environ[name]
        os.environ.update(wanted)
        time.tzset()

    def _restore_directory(self) -> bool:
        """Go back, which costs less than to ask where we are."""
        if self._directory is not None:
            try:
                os.fchdir(self._directory)
            except OSError:
                return False
        return True


def _open_directory() -> int | None:
    """The working directory, be it deleted by now as that of an older release may be; None if we may not enter it."""
    try:
        directory = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        os.fchdir(directory)
    except OSError:
        return None
    return directory


def _files_of_streams() -> list[tuple[int, int] | None]:
    """Which files the standard descriptors lead to."""
    files: list[tuple[int, int] | None] = []
    for descriptor in (0, 1, 2):
        try:
            status = os.fstat(descriptor)
        except OSError:
            files.append(None)
        else:
            files.append((status.st_dev, status.st_ino))
    return files
