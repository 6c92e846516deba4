"""Freeze processes as a debugger, a hypervisor or a full disk would: they are alive and do nothing."""

import signal

import psutil

from .waiting import wait_for


class Freeze:
    """``freeze(pid, …)`` stops processes and returns when they stand still; thaw_all() at the end is sure."""

    def __init__(self) -> None:
        self._frozen: dict[int, psutil.Process] = {}

    def __call__(self, *pids: int) -> None:
        for pid in pids:
            process = psutil.Process(pid)
            self._frozen[pid] = process
            process.send_signal(signal.SIGSTOP)
            wait_for(lambda p=process: p.status() == psutil.STATUS_STOPPED, what=f"process {pid} stopped")  # type: ignore[misc]

    def thaw(self, *pids: int) -> None:
        """Let processes go on."""
        for pid in pids:
            process = self._frozen.pop(pid, None)
            if process is not None and process.is_running():
                process.send_signal(signal.SIGCONT)

    def thaw_all(self) -> None:
        """Let everybody go on."""
        self.thaw(*list(self._frozen))
