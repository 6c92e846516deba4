"""What systemd, or another service manager that speaks its protocol, is told: ready, alive, how it goes, ending.

On the dispatcher's loop, so that a loop that does not turn says nothing, and the watchdog of the service manager has
the dispatcher restarted. A message is a datagram to the socket that ``NOTIFY_SOCKET`` names, which no child inherits.
"""

import asyncio
import logging
import os
import socket

from .health import Health

BEAT_SECONDS = 1.0
MORE_SECONDS = 30.0  # that the start may take, from each beat on, while the database is waited for

logger = logging.getLogger("django_dispatch.dispatcher")


class ServiceManager:
    """Takes its variables out of the environment when it is made: what we start is not to speak for us."""

    def __init__(self, health: Health) -> None:
        self._health = health
        self._address = _address(os.environ.pop("NOTIFY_SOCKET", ""))
        self._watchdog_seconds = _watchdog_seconds(
            os.environ.pop("WATCHDOG_USEC", ""), os.environ.pop("WATCHDOG_PID", "")
        )
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) if self._address else None
        if self._socket is not None:
            self._socket.setblocking(False)
        self._is_ready = False
        self._status = ""
        self._watchdog_at = 0.0

    async def run(self) -> None:
        """Tell how it goes, for ever, if anybody listens."""
        if self._socket is None:
            return
        seconds = BEAT_SECONDS if self._watchdog_seconds is None else min(BEAT_SECONDS, self._watchdog_seconds / 2)
        while True:
            self._beat(asyncio.get_running_loop().time())
            await asyncio.sleep(seconds)

    def say_stopping(self) -> None:
        """Tell that the end has begun."""
        self._send("STOPPING=1")

    def _beat(self, now: float) -> None:
        is_healthy = not self._health.failing()
        if not self._is_ready and is_healthy:
            if self._health.unready():
                self._send(f"EXTEND_TIMEOUT_USEC={MORE_SECONDS * 1e6:.0f}")
            else:
                self._is_ready = self._send("READY=1")
        status = self._health.status()
        if status != self._status and self._send(f"STATUS={status}"):
            self._status = status
        # At half of the time, give or take a beat that is itself at most half of it: see run().
        if self._watchdog_seconds is not None and is_healthy and now >= self._watchdog_at:
            self._send("WATCHDOG=1")
            self._watchdog_at = now + self._watchdog_seconds / 2 - BEAT_SECONDS

    def _send(self, text: str) -> bool:
        """Send a message; never waits. Returns whether it was taken."""
        if self._socket is None:
            return False
        try:
            self._socket.sendto(text.encode(), self._address)
        except OSError as error:  # nobody is there, or its queue is full
            logger.debug("The service manager was not told %r: %s", text, error)
            return False
        return True


def _address(variable: str) -> str:
    """Return where to send to; empty: nowhere. A name that begins with ``@`` is no file, but an abstract one."""
    if variable.startswith("@"):
        return "\0" + variable[1:]
    if variable and not variable.startswith("/"):
        logger.warning("NOTIFY_SOCKET names a socket of a kind that is not supported: %s", variable)
        return ""
    return variable


def _watchdog_seconds(microseconds: str, pid: str) -> float | None:
    if not microseconds.isdecimal() or int(microseconds) == 0 or (pid and pid != str(os.getpid())):
        return None
    return int(microseconds) / 1e6
