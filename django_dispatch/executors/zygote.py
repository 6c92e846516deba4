"""The zygote: one process that has imported the project, forks executors from it, and kills them when the lease ends.

The dispatcher executes it as a module. It stays single-threaded and holds no connection, so a fork is cheap and clean.
It is the parent of every executor, and of what a dead one leaves: it alone reaps them, so a pid that it signals is
never another process. And it is the dead man's switch: when the deadline on the board passes, or the dispatcher is
gone, it kills every executor with all that it started, whatever the dispatcher does or does not do.

Orders come in as JSON packets (``spawn``, ``signal``, ``kill``), descriptors beside them; news go out as frames:
``ready`` {tasks, broken}, ``spawned`` {executor, pid}, ``exited`` {executor, status, cause, peak_kb, note}.
"""

import contextlib
import ctypes
import gc
import json
import logging
import os
import select
import signal
import socket
import sys
import threading
import traceback
from dataclasses import dataclass
from typing import Any

from django.utils import timezone

from .. import conf, logs, registry, retry
from ..limits import as_document
from ..messages import Kind, News
from . import connections, descendants, last_lines
from .fence import Board, now_ns
from .limits import Lifetime, Limits
from .loop import LoopExecutor
from .memory import OutOfMemoryKills
from .sync import SyncExecutor

PR_SET_PDEATHSIG = 1
# A signal of our own for the parent's death: a service manager's SIGTERM to all must leave the zygote at work.
DEATH_SIGNAL = signal.SIGUSR2
LONGEST_WAIT_SECONDS = 1.0
OVERDUE_MILLISECONDS = 20.0  # between two kills of what the kernel has not ended yet

logger = logging.getLogger("django_dispatch.zygote")


def die_with_parent(parent: int, with_signal: int) -> None:
    """Ask the kernel for ``with_signal`` when the parent dies; exit at once if it has died already. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, with_signal, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


@dataclass(slots=True)
class Child:
    """An executor as the zygote knows it."""

    executor: int
    pid: int
    cause: str = ""


class Zygote:
    """See the module. ``orders`` and ``news`` are the sockets that the dispatcher left us."""

    def __init__(self, config: dict[str, Any], orders: socket.socket, news: socket.socket, board: Board) -> None:
        self._config = config
        self._orders = orders
        self._news = news
        self._board = board
        self._children: dict[int, Child] = {}
        self._out_of_memory = OutOfMemoryKills()
        self._inherited = frozenset(descendants.pids())  # what the project started when it was imported
        self._untold = bytearray()
        self._waker, wakee = socket.socketpair()
        self._wakee = wakee
        for end in (self._waker, wakee):
            end.setblocking(False)

    def serve(self) -> None:
        """Fork, signal, reap and enforce the deadline until the dispatcher is gone; then kill everything."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        for number in (signal.SIGCHLD, DEATH_SIGNAL):
            signal.signal(number, lambda *_: None)  # wakes the poll through the descriptor below
        signal.set_wakeup_fd(self._waker.fileno())
        poll = select.poll()
        poll.register(self._orders, select.POLLIN)
        poll.register(self._wakee, select.POLLIN)
        while True:
            poll.poll(self._milliseconds_to_deadline())
            self._board.turn(self._config["zygote"])
            with contextlib.suppress(BlockingIOError):
                self._wakee.recv(4096)
            if os.getppid() != self._config["dispatcher_pid"]:
                break
            self._enforce_deadline()
            self._reap()
            self._out_of_memory.look()
            self._tell_rest()
            if not self._follow_orders():
                break
        self._kill_all("shutdown")
        descendants.kill_all(seconds=float("inf"))

    # the switch

    def _milliseconds_to_deadline(self) -> float:
        if not self._children:
            return LONGEST_WAIT_SECONDS * 1000
        left = (self._board.deadline_ns() - now_ns()) / 1e6
        return min(left + 0.5, LONGEST_WAIT_SECONDS * 1000) if left > 0 else OVERDUE_MILLISECONDS

    def _enforce_deadline(self) -> None:
        if self._children and now_ns() >= self._board.deadline_ns():
            self._kill_all("lease")

    def _kill_all(self, cause: str) -> None:
        for child in self._children.values():
            self._kill(child, cause)

    @staticmethod
    def _kill(child: Child, cause: str) -> None:
        child.cause = child.cause or cause
        for kill in (os.killpg, os.kill):  # the group may not be there yet: the child makes it itself
            with contextlib.suppress(ProcessLookupError, PermissionError):
                kill(child.pid, signal.SIGKILL)

    # children

    def _reap(self) -> None:
        while True:
            try:
                # Looked at before it is reaped: until then its pid names its group and nobody else's.
                found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
            except ChildProcessError:
                return
            if found is None:
                return
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(found.si_pid, signal.SIGKILL)
            pid, status, usage = os.wait4(found.si_pid, 0)
            child = next((child for child in self._children.values() if child.pid == pid), None)
            if child is not None:
                del self._children[child.executor]
            self._kill_orphans()
            if child is not None:
                code = os.waitstatus_to_exitcode(status)
                facts = {"status": code, "cause": child.cause, "peak_kb": usage.ru_maxrss}
                self.tell("exited", executor=child.executor, note=self._note_on(child, code), **facts)

    def _note_on(self, child: Child, code: int) -> str:
        """Say what the kernel knows of a death that was not ours."""
        is_unexplained = code == -signal.SIGKILL and not child.cause
        return "out of memory" if is_unexplained and self._out_of_memory.explain_one() else ""

    def _kill_orphans(self) -> None:
        """Kill what a dead executor leaves to us: daemons that its bodies started."""
        ours = self._inherited.union(child.pid for child in self._children.values())
        for pid in descendants.pids():
            if pid not in ours:
                descendants.kill(pid)

    def _follow_orders(self) -> bool:
        """Carry out what was ordered. False: the dispatcher is gone."""
        while True:
            try:
                packet, ancillary, _, _ = self._orders.recvmsg(65536, socket.CMSG_SPACE(12), socket.MSG_DONTWAIT)
            except BlockingIOError:
                return True
            if not packet:
                return False
            descriptors = [
                int.from_bytes(data[at : at + 4], sys.byteorder)
                for _, _, data in ancillary
                for at in range(0, len(data) - 3, 4)
            ]
            order = json.loads(packet)
            child = self._children.get(order["executor"])
            if order["order"] == "spawn":
                self._spawn(order, descriptors)
            elif child is not None and order["order"] == "signal":
                os.kill(child.pid, order["signal"])
            elif child is not None:
                self._kill(child, order["cause"])

    def _spawn(self, order: dict[str, Any], descriptors: list[int]) -> None:
        # A signal that comes while the child still has our handlers waits until it has its own.
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        parent = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_executor(order, descriptors, parent)
        signal.pthread_sigmask(signal.SIG_SETMASK, ())
        for descriptor in descriptors:
            os.close(descriptor)
        self._children[order["executor"]] = Child(order["executor"], pid)
        self.tell("spawned", executor=order["executor"], pid=pid)

    def _become_executor(self, order: dict[str, Any], descriptors: list[int], parent: int) -> None:
        """In the new child: shed everything of the zygote's, serve, leave. Never returns."""
        code = 1
        try:
            os.setsid()  # a process group of its own, and no terminal whose Ctrl-C would reach the bodies
            signal.set_wakeup_fd(-1)
            for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD, DEATH_SIGNAL):
                signal.signal(number, signal.SIG_DFL)
            signal.signal(signal.SIGINT, signal.default_int_handler)
            die_with_parent(parent, signal.SIGKILL)
            descendants.adopt_orphans()
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            for end in (self._orders, self._news, self._waker, self._wakee):
                end.close()
            last_lines.keep(self._board.lines(order["slot"]))
            tickets, stream, stacks = descriptors
            self._serve_as(order, socket.socket(fileno=tickets), socket.socket(fileno=stream), stacks)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
                sys.stderr.flush()
            os._exit(code)

    def _serve_as(self, order: dict[str, Any], tickets: socket.socket, stream: socket.socket, stacks: int) -> None:
        common = {
            "name": f"{self._config['node']}:{os.getpid()}",
            "slot": order["slot"],
            "board": self._board,
            "lifetime": Lifetime(Limits(**self._config["limits"])),
            "tickets": tickets,
            "stream": stream,
            "stacks": stacks,
        }
        if order["kind"] == Kind.SYNC:
            SyncExecutor(**common).serve()
        else:
            LoopExecutor(**common, concurrency=self._config["async_concurrency"]).serve()

    def tell(self, event: str, **facts: Any) -> None:
        """Send news to the dispatcher; never waits."""
        self._untold += News(json.dumps({"event": event} | facts)).encode()
        self._tell_rest()

    def _tell_rest(self) -> None:
        """Send what the socket takes. The dispatcher may be stopped: the switch must not wait for it."""
        with contextlib.suppress(OSError):
            while self._untold:
                del self._untold[: self._news.send(self._untold, socket.MSG_DONTWAIT)]


def main() -> None:
    """Import the project, say which tasks it has, serve."""
    with socket.socket(fileno=int(sys.argv[1])) as orders, socket.socket(fileno=int(sys.argv[2])) as news:
        config = json.loads(orders.recv(1 << 20))
        signal.signal(DEATH_SIGNAL, lambda *_: os._exit(1))
        die_with_parent(config["dispatcher_pid"], DEATH_SIGNAL)
        descendants.adopt_orphans()
        board = Board(config["board"], config["slots"])
        sys.path[:] = config["sys_path"]
        del os.environ["PYTHONPATH"]
        if config["PYTHONPATH"] is not None:
            os.environ["PYTHONPATH"] = config["PYTHONPATH"]
        import django

        django.setup()
        logs.configure(config["verbosity"], log_format=config["log_format"], node=config["node"], may_wait=False)
        registry.autodiscover()
        connections.watch_for_our_death(config["connection_check_seconds"], config["connection_silence_seconds"])
        connections.take_turns(conf.current().database)
        connections.close_all()
        connections.distrust_pools()
        if threading.active_count() > 1:
            names = ", ".join(thread.name for thread in threading.enumerate()[1:])
            logger.warning(
                "The project starts threads when it is imported; executors are forked without them: %s.", names
            )
        gc.collect()
        gc.freeze()
        zygote = Zygote(config, orders, news, board)
        board.turn(config["zygote"])
        zygote.tell("ready", tasks=task_facts(), broken=registry.broken_modules())
        zygote.serve()


def task_facts() -> dict[str, dict[str, Any]]:
    """Return what a dispatcher, which imports no task, must know of each."""
    zone = timezone.get_default_timezone_name()
    return {
        path: {
            "kind": Kind.ASYNC if task.is_async else Kind.SYNC,
            "timeout_seconds": task.timeout.total_seconds() if task.timeout else None,
            "max_attempts": task.max_attempts,
            "on_lost": task.on_lost_word,
            "retention": task.retention_text,
            "priority": task.priority,
            "queue": task.queue if isinstance(task.queue, str) else "default",
            "limits": as_document(task.limits, task.signature, task=path, calls=task.calls_of_its_own()),
            "on_start": task.on_start,
            "broadcast": task.broadcast,
            "schedules": [one._asdict() for one in task.declared(zone)],
            "backoff": retry.as_document(task.retries.rule),
            "retry_on_timeout": task.retries.on_timeout,
            "expires_seconds": task.expires.total_seconds() if task.expires else None,
        }
        for path, task in registry.all_tasks().items()
    }


if __name__ == "__main__":
    main()
