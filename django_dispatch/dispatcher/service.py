"""The dispatcher: wires the parts, runs them, and ends so that nothing is left behind.

zygote and pool start executors; the LeaseKeeper holds the lease; wakeups and polls make the claims loop look; the
watch stops bodies; housekeeping serves all dispatchers. The lease's word counts: without one nothing is claimed.
"""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from uuid import UUID

from django.db import Error as DatabaseError

from ..conf import MAX_SLOTS, DispatchSettings
from ..executors.fence import Board, now_ns
from ..messages import Outcome
from ..patterns import private_queue
from ..store.values import ClaimedRun
from . import process
from .agenda import Agenda
from .answering import Answering
from .backlogs import Backlogs
from .children import Children
from .claims import Claims, Hooks
from .ears import Ears
from .executor import Flight
from .health import Health
from .housekeeping import Housekeeping
from .http import HttpServer
from .lease import LeaseKeeper, open_keeper
from .looks import Looks
from .own_tasks import OwnTasks
from .pool import Pool
from .progress import ProgressNotes
from .queues import Queues
from .scheduler import Scheduler
from .scrapes import PATH, Scrapes
from .service_manager import ServiceManager
from .sessions import Sessions
from .shutdown import drain, surrender
from .stacks import Stacks
from .stats import Stats
from .trouble import Trouble
from .waiting import Waiting
from .watch import Watch

RARELY = 20_000  # objects between two looks of the garbage collector: a batch of runs is gone by then without it

logger = logging.getLogger("django_dispatch.dispatcher")


@dataclass(frozen=True, slots=True)
class Mode:
    """How this dispatcher is to live: for ever, until nothing is due, or for so many runs; and how loud."""

    is_burst: bool = False
    max_runs: int | None = None
    verbosity: int = 1


class Dispatcher:
    """One dispatcher. ``await run()`` serves until a signal, or the mode, ends it, and returns the exit code."""

    def __init__(self, settings: DispatchSettings, mode: Mode) -> None:
        self.settings = settings
        self.mode = mode
        self._loop = asyncio.get_running_loop()
        self.tasks = OwnTasks(lambda: self.end("internal error"))
        self._ending = asyncio.Event()
        self._hurry = asyncio.Event()
        self._is_ending = False
        self._is_paused = False
        self._is_grounding = False
        self.version = process.package_version()
        self.stats = Stats()
        self.stats.expect("lease", settings.renew_seconds)
        self.queues = Queues(settings.queues, settings.queue_weights)
        self.board = Board.create(slots=2 * MAX_SLOTS + 4)
        self.trouble = Trouble()
        self.ears = Ears(self)
        self.sessions = Sessions(settings)
        self.store = self.sessions.store
        self.pool = self._make_pool()
        self.children = self._make_children()
        self.claims = self._make_claims()
        self.progress = ProgressNotes(self.store, lambda: self.claims.lease_id)
        self.looks = self._make_looks()
        self.keeper = self._make_keeper()
        self.watch = self._make_watch()
        self.housekeeping = self._make_housekeeping()
        self.waiting = self._make_waiting()
        self.scheduler = self._make_scheduler()
        self.stacks = Stacks(self.pool)
        self.answering = Answering(self, self.sessions.line)
        self.pool.on_aside = self.answering.on_aside
        self.ears.open()
        self.backlogs = Backlogs(self.store, self.tasks.soon)
        self.health = Health(self)
        self.service_manager = ServiceManager(self.health)
        self.http = HttpServer(settings.metrics_host, settings.metrics_port)
        self.http.routes |= {PATH: Scrapes(self).answer, **self.health.routes()}

    # the parts

    def _make_pool(self) -> Pool:
        return Pool(
            self.settings,
            self.board,
            on_outcome=self._on_outcome,
            on_progress=lambda flight, text: self.progress.note(flight.token, text),
            on_room=self._on_room,
            is_writing=lambda: self.claims.is_under_way,
            stats=self.stats,
        )

    def _make_children(self) -> Children:
        return Children(
            self.settings,
            self.board,
            self.pool,
            verbosity=self.mode.verbosity,
            soon=self.tasks.soon,
            may_fill=lambda: self.claims.lease_id is not None,
            on_known=self._on_known,
        )

    def _make_claims(self) -> Claims:
        return Claims(
            self.sessions.exchangers,
            self.store,
            self.pool,
            queues=self.queues,
            max_interruptions=self.settings.max_interruptions,
            max_runs=self.mode.max_runs,
            hooks=Hooks(self._on_quiet, self._on_scheduled, self._on_freed, self._on_look),
            trouble=self.trouble,
            stats=self.stats,
        )

    def _make_looks(self) -> Looks:
        return Looks(
            self.queues,
            self.claims,
            self.store,
            self.trouble,
            poll_seconds=self.settings.poll_interval_seconds,
            is_burst=self.mode.is_burst,
            may_claim=self._may_claim,
            is_listening=lambda: self.ears.is_listening() and self.waiting.is_told,
        )

    def _make_keeper(self) -> LeaseKeeper:
        return open_keeper(
            self.settings,
            self.board,
            self.trouble,
            boot_mark=self.children.boot_mark,
            version=self.version,
            on_acquired=lambda lease_id: self._from_thread(self._on_lease_acquired, lease_id),
            on_lost=lambda lease_id: self._from_thread(self._on_lease_lost, lease_id),
        )

    def _make_watch(self) -> Watch:
        return Watch(
            self.pool,
            self.board,
            grace_seconds=self.settings.cancel_grace_seconds,
            ready_timeout_seconds=self.settings.executor_ready_timeout_seconds,
        )

    def _make_housekeeping(self) -> Housekeeping:
        return Housekeeping(
            self.store,
            ttl_seconds=self.settings.lease_ttl_seconds,
            poll_pause=self.looks.pause,
            max_interruptions=self.settings.max_interruptions,
            retention=self.settings.retention,
            queue_limits=self.settings.queue_limits,
            aging_seconds=self.settings.priority_aging_seconds,
            own_lease=lambda: self.claims.lease_id,
            on_ready=self.ears.on_ready,
            is_listening=self.ears.is_listening,
            trouble=self.trouble,
            stats=self.stats,
        )

    def _make_waiting(self) -> Waiting:
        return Waiting(
            self.store,
            self.settings,
            own_lease=lambda: self.claims.lease_id,
            look=self.ears.look_at_all,
            hurry=self.housekeeping.waiting_soon,
            trouble=self.trouble,
        )

    def _make_scheduler(self) -> Scheduler:
        return Scheduler(
            self.store,
            facts=lambda: self.pool.facts,
            queues=self.settings.queues,
            node=self.settings.node,
            announce=self.housekeeping.announce,
            on_blocked=self.housekeeping.admission.admit_soon,
            limited_queues=self.housekeeping.admission.limited_queues,
            poll_pause=self.looks.pause,
        )

    # the life

    async def run(self) -> int:
        """Serve; return 0 if nothing was left behind."""
        sys.setswitchinterval(0.0005)  # the keeper and store threads wait for the interpreter no longer than that
        gc.collect()
        gc.freeze()  # what the project has imported is not looked through again while runs go by
        gc.set_threshold(RARELY)
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.add_signal_handler(number, self.end, signal.Signals(number).name)
        self.keeper.start()
        self.children.start()
        self.tasks.own("claims", self.claims.run())
        self.tasks.own("watch", self.watch.run())
        self.tasks.own("progress", self.progress.run())
        self.tasks.own("messages", self.answering.submissions.run())
        steps = self._own_steps() | Agenda(self).steps() | self.housekeeping.steps() | self.scheduler.steps()
        for name, (seconds, step) in steps.items():
            self.tasks.own(name, self.housekeeping.repeat(name, seconds, step))
        for name, task in self.ears.tasks().items():
            self.tasks.own(name, task)
        if self.settings.metrics_port:
            self.tasks.own("http", self.http.run())
        self.tasks.own("service manager", self.service_manager.run())
        await self._ending.wait()
        return await self._end()

    @property
    def state(self) -> str:
        """``draining``, ``paused``, ``grounded`` (it has no lease) or ``active``."""
        if self._is_ending:
            return "draining"
        if self._is_paused:
            return "paused"
        return "active" if self.claims.lease_id is not None else "grounded"

    def pause(self) -> None:
        """Claim nothing until resume(); what is here goes on."""
        logger.info("Paused: no new runs.")
        self._is_paused = True
        self.claims.is_claiming = False

    def resume(self) -> None:
        """Claim again."""
        logger.info("Resumed.")
        self._is_paused = False
        self.claims.is_claiming = self._may_claim()
        self.claims.look()

    def _may_claim(self) -> bool:
        return not (self._is_ending or self._is_paused)

    def end(self, why: str) -> None:
        """End gracefully; a second call makes haste."""
        if not self._is_ending:
            self._is_ending = True
            logger.info(
                "Draining (%s): no new runs; up to %g s for those that run.",
                why,
                self.settings.shutdown_timeout_seconds,
            )
            self._ending.set()
        else:
            logger.warning("Hurrying (%s): runs are stopped and handed back now.", why)
            self._hurry.set()

    def _from_thread(self, callback: Any, lease_id: UUID) -> None:
        self._loop.call_soon_threadsafe(callback, lease_id)

    # the lease

    def _on_lease_acquired(self, lease_id: UUID) -> None:
        logger.info("Lease %s acquired.", lease_id)
        self.queues.private = private_queue(lease_id)
        self.claims.begin(lease_id)
        self.housekeeping.waiting_soon()
        self.children.fill()

    def _on_lease_lost(self, lease_id: UUID) -> None:
        self.stats.leases_lost += 1
        self.stats.outcomes_dropped += self.claims.lose()
        self._is_grounding = True
        self.tasks.soon("ground", self._ground(lease_id))

    async def _ground(self, lease_id: UUID) -> None:
        """Make sure that no body of the lost lease is alive; take the next lease, and give back the old one's runs."""
        await self.pool.kill_all("lease")
        self.housekeeping.lost_leases.add(lease_id)
        self._is_grounding = False
        self.keeper.acquire_again()
        await self.housekeeping.reclaim()

    def _on_known(self) -> None:
        self.housekeeping.declare_soon()
        self.housekeeping.schedules_soon()

    def _on_scheduled(self) -> None:
        self.housekeeping.promote_soon()

    def _on_look(self, is_short: bool) -> None:
        self.waiting.on_look(is_short)

    def _on_freed(self, runs: Sequence[ClaimedRun]) -> None:
        self.housekeeping.admission.on_freed(runs)

    def _own_steps(self) -> dict[str, Any]:
        return {
            "poll": (self.settings.poll_interval_seconds, self.looks.poll),
            "cancellations": (self.settings.poll_interval_seconds, self.look_for_cancellations),
            "fence": (self.children.look_seconds, self._look_at_fence),
            **self.waiting.steps(),
        }

    async def _look_at_fence(self) -> None:
        """See that who renews the lease, and who enforces its deadline, are not stuck."""
        self.keeper.break_off_if_stuck()
        self.children.look_at_zygotes()
        if self.claims.lease_id is not None and self.board.deadline_ns() > now_ns():
            self.stats.succeed("lease")

    async def look_for_cancellations(self) -> None:
        lease_id = self.claims.lease_id
        if lease_id is None or not self.pool.flights():
            return
        try:
            tokens = await self.store.call(self.store.store.cancellations, lease_id)
        except DatabaseError:
            self.claims.reconcile_soon()  # with every slot taken, no claim would notice
            raise
        for token in tokens:
            found = self.pool.find(token)
            if found is not None:
                self.watch.cancel(*found, self._loop.time())

    # outcomes and progress

    def _on_outcome(self, flight: Flight, outcome: Outcome) -> None:
        self.claims.on_outcome(flight, outcome, self.progress.take(flight.token))

    def _on_room(self) -> None:
        self.claims.on_room()

    # the end

    def _on_quiet(self) -> None:
        """Nothing was found, or no more is wanted: is that the end of a burst, or of the last run?"""
        if self._is_ending or self.pool.flights() or self.pool.waiting:
            return
        if self.claims.has_claimed_enough():
            self.end(f"{self.stats.runs_claimed} runs were run")
        elif self.mode.is_burst:
            self.tasks.soon("burst", self._end_burst())

    async def _end_burst(self) -> None:
        await self.housekeeping.promote()
        await self.housekeeping.expire()
        await self.scheduler.fire()
        await self.housekeeping.admission.settle()
        is_empty = self.claims.is_idle() and not self.pool.flights() and not self.pool.waiting
        if is_empty and not self._is_ending:
            self.end("nothing is due")

    async def _end(self) -> int:
        self.service_manager.say_stopping()
        self.keeper.drain()
        await drain(
            self.pool,
            self.watch,
            self.claims,
            patience_seconds=self.settings.shutdown_timeout_seconds,
            hurry=self._hurry,
        )
        has_left_nothing = await surrender(self.claims, self.keeper, self.store)
        await self.answering.close()
        if self._is_grounding or self.housekeeping.lost_leases:
            has_left_nothing = False
        await self.tasks.cancel()
        self.keeper.stop()
        await self.children.close()
        await self.sessions.close()
        logger.info(
            "Ended; %s.", "nothing was left behind" if has_left_nothing else "some runs are left to be reclaimed"
        )
        return 0 if has_left_nothing else 1
