"""One soak: work and faults for so long, then healing, draining, ending, and the evidence of what was."""

import contextlib
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
from django.db import connections

from testproject.postgres import Server
from tests.kit.relay import Relay

from . import ledger
from .database import Database
from .evidence import Evidence
from .faults import Faults
from .fleet import Fleet, remains
from .plan import FLEET, Fault, plan
from .steering import Steering
from .timeline import Timeline
from .writers import Writer

WRITERS = 3
MOST_WAITING = 120
TICK_SECONDS = 0.05
LOOK_SECONDS = 0.5
# Retries wait for 8 s at most, a lease for its expiry and a sweep: who does nothing for so long will never go on.
STALLED_SECONDS = 60.0
START_SECONDS = 120.0
GONE_SECONDS = 10.0


class Soak:
    """Wires the parts. ``run()`` returns the evidence."""

    def __init__(self, folder: Path, server: Server, seed: int, seconds: float) -> None:
        self._folder = folder
        self._server = server
        self._seed = seed
        self._seconds = seconds
        self.faults: list[Fault] = list(plan(seed, seconds))
        self.timeline = Timeline()
        self._relay = Relay(server.url)
        self._database = Database(server.url)
        self.fleet = Fleet(folder, server.url, self._relay, self.timeline.say)
        self._steering = Steering(seed)
        self._has_room = threading.Event()
        self._writers = [Writer(f"w{n}", seed, server.url, self._has_room.is_set) for n in range(WRITERS)]
        ledger.make(folder / "ledger")
        logger = logging.getLogger("django_dispatch")
        logger.addHandler(self.timeline)
        logger.propagate = False

    @property
    def logs(self) -> list[Path]:
        return [dispatcher.log_path for dispatcher in self.fleet.all]

    def run(self) -> Evidence:
        """Do it all; leaves nothing running, whatever happens."""
        try:
            self._start()
            with self._at_work():
                self._make_trouble()
            self.timeline.say("all is healed, and nothing new is enqueued")
            left = self._drain()
            self.fleet.look_for_leaks()
            self.timeline.say("everybody is told to end")
            self.fleet.end()
            left += self._left_behind()
            return self._evidence([*self.fleet.problems, *left])
        finally:
            for dispatcher in self.fleet.all:
                dispatcher.remains()
            self._relay.close()

    def _start(self) -> None:
        for name in FLEET:
            self.fleet.start(name)
        deadline = time.monotonic() + START_SECONDS
        while not all("Ready:" in dispatcher.log for dispatcher in self.fleet.all):
            if time.monotonic() > deadline:
                raise TimeoutError(f"The dispatchers did not start within {START_SECONDS:g} s.")
            time.sleep(TICK_SECONDS)
        self.timeline.say("everybody is at work")

    @contextlib.contextmanager
    def _at_work(self) -> Iterator[None]:
        threads: list[Writer | Steering] = [*self._writers, self._steering]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            for thread in threads:
                thread.stop()
        problems = [thread.problem for thread in threads if thread.problem is not None]
        if problems:
            raise problems[0]

    def _make_trouble(self) -> None:
        faults = Faults(self.faults, self.fleet, self._relay, self._server, self.timeline.say)
        ends_at = time.monotonic() + self._seconds
        look_at = 0.0
        while (now := time.monotonic()) < ends_at:
            faults.do_due()
            self.fleet.supervise()
            if now >= look_at:
                look_at = now + LOOK_SECONDS
                self._look_for_room()
                self.fleet.note_descriptors()
            time.sleep(TICK_SECONDS)
        faults.heal()

    def _look_for_room(self) -> None:
        with contextlib.suppress(psycopg.Error):
            if self._database.unfinished() < MOST_WAITING:
                self._has_room.set()
            else:
                self._has_room.clear()

    def _drain(self) -> list[str]:
        """Wait until every run has ended and each lease is one of ours; return what does not come to that."""
        newest, moved_at = 0, time.monotonic()
        while True:
            self.fleet.supervise()
            unfinished, leases = self._database.unfinished(), self._database.leases()
            latest = self._database.newest_change()
            if not unfinished and sorted(lease.split()[0] for lease in leases) == sorted(FLEET):
                return []
            if latest != newest:
                newest, moved_at = latest, time.monotonic()
            if time.monotonic() - moved_at > STALLED_SECONDS:
                return [f"after {STALLED_SECONDS:g} s without a change, {unfinished} runs to end and leases {leases}"]
            time.sleep(LOOK_SECONDS)

    def _left_behind(self) -> list[str]:
        """Return what is there that should be gone by now: sessions of the dead may take a moment."""
        connections.close_all()
        deadline = time.monotonic() + GONE_SECONDS
        while time.monotonic() < deadline and (self._database.sessions() or remains(self._folder)):
            time.sleep(TICK_SECONDS)
        return [
            *remains(self._folder),
            *(f"session {session}" for session in self._database.sessions()),
            *(f"lease {lease}" for lease in self._database.leases()),
        ]

    def _evidence(self, left: list[str]) -> Evidence:
        return Evidence(
            enqueues=[enqueue for writer in self._writers for enqueue in writer.enqueues],
            starts=ledger.read(self._folder / "ledger"),
            changes=self._database.changes(),
            effects=self._database.effects(),
            frozen=self.fleet.frozen,
            asked=self._steering.asked,
            rows=self._database.rows(),
            left_behind=left,
            ended_at=time.time(),
        )
