"""Do what the plan says: each fault by its kind, and what undoes it when its time is over. In the main thread."""

import heapq
import itertools
import signal
import time
from collections.abc import Callable, Sequence

import psycopg

from testproject.postgres import Server
from tests.kit.cut import Cut
from tests.kit.relay import Relay

from .fleet import Fleet, stop
from .plan import Fault

MODES = {"fast": "fast", "immediately": "immediate"}


class Faults:
    """The faults that are still to come, by their time. ``say`` takes each as it is done."""

    def __init__(
        self, plan: Sequence[Fault], fleet: Fleet, relay: Relay, server: Server, say: Callable[[str], None]
    ) -> None:
        self._fleet = fleet
        self._relay = relay
        self._server = server
        self._say = say
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, str, Callable[[], object]]] = []
        self._began_at = time.monotonic()
        for fault in plan:
            self._later(fault.at, str(fault), lambda fault=fault: self._do(fault))  # type: ignore[misc]

    def do_due(self) -> None:
        """Do what is due by now."""
        while self._due and self._due[0][0] <= time.monotonic() - self._began_at:
            _, _, words, action = heapq.heappop(self._due)
            answer = action()
            self._say(words if answer is None else f"{words}: {answer}")

    def heal(self) -> None:
        """Undo everything, whatever the plan says."""
        self._due.clear()
        self._server.start()
        self._relay.forward()
        self._relay.cut()
        self._fleet.thaw_all()

    def _later(self, at: float, words: str, action: Callable[[], object]) -> None:
        heapq.heappush(self._due, (at, next(self._numbers), words, action))

    def _undo(self, fault: Fault, words: str, action: Callable[[], object]) -> None:
        self._later(time.monotonic() - self._began_at + fault.seconds, words, action)

    def _do(self, fault: Fault) -> object:
        match fault.kind.split():
            case ["kill" | "freeze" as verb, whom]:
                return self._hit(fault, verb, whom)
            case ["cut", role]:
                return self._cut(role)
            case ["relay", verb]:
                self._disturb_relay(fault, verb)
            case ["database", "restarts", how]:
                self._server.stop(MODES[how])
                self._undo(fault, "database starts", self._start_database)
            case [verb]:
                signals = 2 if verb == "hurry" else 1
                for _ in range(signals):
                    self._fleet.terminate(fault.target)
                    time.sleep(0.1)
        return None

    def _hit(self, fault: Fault, verb: str, whom: str) -> object:
        dispatcher = self._fleet.by_name[fault.target]
        if dispatcher.poll() is not None:
            return "had ended already"
        match whom:
            case "dispatcher":
                pids = [dispatcher.pid]
            case "zygote":
                pids = [pid for pid in [dispatcher.zygote_pid] if pid]
            case "executor":
                executors = dispatcher.executor_pids
                pids = executors and [executors[int(fault.pick * len(executors))]]
            case _:
                pids = self._fleet.freeze(fault.target)
        if verb == "kill":
            stop(pids, signal.SIGKILL)
        elif whom == "family":
            self._undo(fault, f"thaw family {fault.target}", lambda: self._fleet.thaw(fault.target))
        else:
            stop(pids, signal.SIGSTOP)
            self._undo(fault, f"thaw {whom} {fault.target}", lambda: stop(pids, signal.SIGCONT))
        return f"pid {', '.join(map(str, pids))}" if pids else "there was none"

    def _cut(self, role: str) -> object:
        try:
            with psycopg.connect(self._server.url, autocommit=True, application_name="soak") as connection:
                return f"{Cut(connection)(role)} sessions"
        except psycopg.OperationalError:
            return "the database was away"

    def _disturb_relay(self, fault: Fault, verb: str) -> None:
        {"swallows": self._relay.swallow, "holds": self._relay.hold, "refuses": self._relay.refuse}[verb]()
        self._undo(fault, "relay forwards", lambda: self._forward(verb))

    def _forward(self, after: str) -> None:
        self._relay.forward()
        if after == "swallows":
            self._relay.cut()  # its links would stay deaf; what was held comes late, and goes on

    def _start_database(self) -> None:
        self._server.start()
