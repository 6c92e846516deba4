"""The zygote as the dispatcher sees it: started, given orders, listened to. Its own side is executors/zygote.py."""

import array
import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Sequence
from typing import Any

from ..executors.fence import Board
from ..messages import FrameReader, Kind, News
from .process import BOOT_MARK

SEND_BUFFER = 1 << 20
LARGEST_READ = 1 << 18

logger = logging.getLogger("django_dispatch.dispatcher")


class ZygoteProcess:
    """One zygote. ``on_news`` gets each event with its facts; ``on_gone`` the exit status, once.

    ``number`` is that of its cell on the board: no other that is alive has it.
    """

    def __init__(
        self,
        config: dict[str, Any],
        board: Board,
        number: int,
        boot_mark: str,
        *,
        on_news: Callable[[str, dict[str, Any]], None],
        on_gone: Callable[[int], None],
    ) -> None:
        self.number = number
        self.is_ready = False
        """It has imported the project, and is to live."""
        self.looks_at_same_turn = 0
        self._board = board
        self._last_turn_ns = 0
        self._on_news = on_news
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self._frames = FrameReader()
        self._orders, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._news, their_news = socket.socketpair()
        with theirs, their_news:
            descriptors = (theirs.fileno(), their_news.fileno(), board.descriptor)
            arguments = [sys.executable, "-m", "django_dispatch.executors.zygote", *map(str, descriptors[:2])]
            # PYTHONPATH only lets it find this package; then it takes our sys.path, and the variable as it was.
            path = os.pathsep.join(place or os.getcwd() for place in sys.path)
            imports = {"sys_path": sys.path, "PYTHONPATH": os.environ.get("PYTHONPATH")}
            # In a session of its own: Ctrl-C at the terminal is the dispatcher's to answer.
            self._process = subprocess.Popen(
                arguments,
                pass_fds=descriptors,
                env=os.environ | {"PYTHONPATH": path, BOOT_MARK: boot_mark},
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self._orders.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER)
        self._orders.send(json.dumps(config | imports | {"zygote": number}).encode())
        self._news.setblocking(False)
        self._loop.add_reader(self._news, self._read)

    @property
    def pid(self) -> int:
        return self._process.pid

    def spawn(self, executor: int, *, kind: Kind, slot: int, descriptors: tuple[int, int, int]) -> None:
        """Fork an executor: it takes tickets from the first descriptor, talks on the second, dumps to the third."""
        order = {"order": "spawn", "executor": executor, "kind": kind, "slot": slot}
        self._order(order, [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))])

    def signal(self, executor: int, number: int) -> None:
        """Send a signal to an executor, if it still lives."""
        self._order({"order": "signal", "executor": executor, "signal": number})

    def kill(self, executor: int, cause: str) -> None:
        """Kill an executor and all that it started. Its exit is reported with this cause, if it was the first."""
        self._order({"order": "kill", "executor": executor, "cause": cause})

    def look(self) -> int:
        """Return when it last turned; how many looks have seen that same turn is in ``looks_at_same_turn``."""
        turned = self._board.last_turn_ns(self.number)
        self.looks_at_same_turn = self.looks_at_same_turn + 1 if turned == self._last_turn_ns else 0
        self._last_turn_ns = turned
        return turned

    def close(self) -> None:
        """Let go: the zygote kills what is left and exits. ``on_gone`` follows."""
        self.is_ready = False
        self._orders.close()

    def destroy(self) -> None:
        """Kill the zygote itself; the kernel then kills its executors."""
        self.is_ready = False
        self._process.kill()

    def _order(self, order: dict[str, Any], ancillary: Sequence[tuple[int, int, Any]] = ()) -> None:
        """Send an order; if the zygote is dead, its executors are settled when that is seen."""
        try:
            self._orders.sendmsg([json.dumps(order).encode()], ancillary)
        except OSError as error:
            logger.warning("The zygote does not take orders: %s", error)

    def _read(self) -> None:
        try:
            data = self._news.recv(LARGEST_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if data:
            for message in self._frames.feed(data):
                if isinstance(message, News):
                    facts = json.loads(message.text)
                    self._on_news(facts.pop("event"), facts)
            return
        self._loop.remove_reader(self._news)
        self._news.close()
        self._orders.close()
        self._on_gone(self._process.wait())
