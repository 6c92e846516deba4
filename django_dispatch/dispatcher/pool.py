"""The pool: which executor starts which run, and what is known when one ends or dies. On the dispatcher's loop."""

import asyncio
import logging
import signal
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from ..conf import DispatchSettings
from ..documents import error_document
from ..executors import last_lines
from ..executors.fence import Board
from ..finish import TaskFacts
from ..messages import Aside, Kind, Outcome, Plan, Progress, Ready, Retiring, Said, Started, Stop, Verdict
from ..store.values import ClaimedRun
from .death import Death, cause_of, outcome_of
from .durations import Durations
from .executor import Executor, Flight, Token, Zygote
from .filling import Filling
from .quarantine import Quarantine
from .room import Room, is_soon_free, least_busy, room_in
from .stats import Stats

# An executor with so many runs before it needs no answer for each: its reports are read by the millisecond.
BUSY = 8
READ_SECONDS = 0.001
CLAIMS_AHEAD = 3  # of what a claim brings at most, one lot starts while the next two are on their way
ALONE_SECONDS = 5.0  # so much longer a run that has to run alone may wait for an executor of its own,
PUT_OFF_SECONDS = 1.0  # and so long it is put off when all of these are in use
CUT_SECONDS = 2.0  # an executor that has ended is reported sooner than that after its stream has

logger = logging.getLogger("django_dispatch.dispatcher")


class Pool:
    """Executors by lane (sync, async), and the flights in them.

    ``on_outcome`` gets every flight that ended with its outcome, once. ``on_room`` is called when a run could start.
    ``is_writing`` says whether outcomes would have to wait anyway.
    """

    def __init__(
        self,
        settings: DispatchSettings,
        board: Board,
        *,
        on_outcome: Callable[[Flight, Outcome], None],
        on_progress: Callable[[Flight, str], None],
        on_room: Callable[[], None],
        is_writing: Callable[[], bool],
        stats: Stats,
    ) -> None:
        self._settings = settings
        self._board = board
        self.processes = settings.processes
        self._on_outcome = on_outcome
        self._on_progress = on_progress
        self._on_room = on_room
        self._is_writing = is_writing
        self._stats = stats
        self.on_aside: Callable[[Executor, Aside], None] = lambda executor, aside: None
        """Gets what executors say of something else than outcomes."""
        self._unread: list[Executor] = []
        self._loop = asyncio.get_running_loop()
        self._exited = asyncio.Event()
        self.facts: Mapping[str, TaskFacts] = {}
        self.executors: dict[int, Executor] = {}
        self.durations = Durations()
        self.filling = Filling(
            board,
            self.executors,
            async_concurrency=settings.async_concurrency,
            wanted=self.wanted,
            on_readable=self._read,
            stats=stats,
        )
        self._quarantine = Quarantine(self.filling.spawn_apart)
        self.waiting: deque[Flight] = deque()
        """Claimed, but every executor of their lane is busy: soon started, or given back."""
        self.stirred = asyncio.Event()
        """Set when there are runs to watch."""

    # what is there

    def lane(self, kind: Kind) -> list[Executor]:
        return [executor for executor in self.executors.values() if executor.kind == kind]

    def flights(self) -> list[Flight]:
        """Return every run that an executor has, started or not."""
        return [flight for executor in self.executors.values() for flight in executor.flights.values()]

    def children_of(self, zygote: Zygote) -> list[Executor]:
        return [executor for executor in self.executors.values() if executor.zygote is zygote]

    def find(self, token: Token) -> tuple[Executor, Flight] | None:
        for executor in self.executors.values():
            if token in executor.flights:
                return executor, executor.flights[token]
        return None

    def knows(self, token: Token) -> bool:
        return self.find(token) is not None or any(flight.token == token for flight in self.waiting)

    def is_quiet(self) -> bool:
        """Whether there is nothing to watch: no run here, and every executor ready."""
        return not self.waiting and all(e.is_ready and not e.flights for e in self.executors.values())

    def has_queues(self) -> bool:
        """Whether runs wait in executors for the end of others."""
        return any(executor.unstarted for executor in self.executors.values())

    def room(self, undelivered: Sequence[ClaimedRun] = (), asked_for: int = 0) -> Room:
        """Return how many runs may be claimed now, besides these and as many as are ``asked_for``; of which tasks none.

        For each synchronous slot that will soon be free, one more may wait here.
        """
        now, all_ahead = self._loop.time(), self._ahead()
        rooms = dict.fromkeys(Kind, 0)
        for executor in self.executors.values():
            if executor.is_open:
                ahead = all_ahead[executor.kind]
                behind = 0 if executor.is_slow and executor.flights else ahead
                rooms[executor.kind] += max(0, executor.capacity + behind - len(executor.flights))
                rooms[executor.kind] += not ahead and is_soon_free(executor, self.durations, now)
        for flight in self.waiting:
            rooms[flight.facts.kind] -= 1
        for run in undelivered:
            if facts := self.facts.get(run.task):
                rooms[facts.kind] -= 1
        return room_in(rooms, self._settings.claim_limit, self.facts, self.wanted, asked_for)

    # runs

    def take(self, runs: Sequence[ClaimedRun], lease_id: UUID, asked_at: float) -> None:
        """Start claimed runs as soon as executors are free; they were asked for then, by the loop's clock."""
        now, lease, ahead = self._loop.time(), lease_id.bytes, self._ahead()
        for run in runs:
            facts = self.facts.get(run.task)
            if facts is None:
                self._refuse(run, lease, now)
                continue
            tally, token = self._stats.tally(run), (run.id, run.epoch)
            timeout_seconds = run.timeout_seconds or facts.timeout_seconds or self._settings.default_timeout_seconds
            flight = Flight(run, token, facts, lease, tally, now, timeout_seconds, asked_at - run.due_seconds)
            if self.waiting or not self._assign(flight, ahead):
                self.waiting.append(flight)
        self.stirred.set()
        self._flush()

    def _refuse(self, run: ClaimedRun, lease: bytes, now: float) -> None:
        """There is no such task here: whoever deploys it may be about to."""
        tally = self._stats.tally(run, is_known=False)
        flight = Flight(run, (run.id, run.epoch), TaskFacts(Kind.SYNC), lease, tally, now)
        message = f"This dispatcher has no task {run.task!r}."
        node = self._settings.node
        text = error_document("unknown_task", message, attempt=run.attempt, executor=node)
        self._on_outcome(flight, Outcome(*flight.token, Verdict.UNKNOWN_TASK, text=text))

    def _assign(self, flight: Flight, ahead: Mapping[Kind, int]) -> bool:
        """Put a run to the least busy executor of its lane: an idle one, or ahead of time if it is known to be tiny."""
        if self._quarantine.holds(flight) and flight.facts.kind is Kind.ASYNC:
            return self._quarantine.assign(flight, self.executors.values())
        is_tiny = self.durations.is_tiny(flight.run.task)
        kind = flight.facts.kind
        best = least_busy(self.executors.values(), kind, ahead[kind] if is_tiny else 0)
        if best is None:
            return False
        if not best.flights:
            best.is_slow = best.kind is Kind.SYNC and not is_tiny
        best.assign(flight)
        return True

    def _ahead(self) -> Mapping[Kind, int]:
        """How many runs may wait in an executor of each lane."""
        most, capacity = CLAIMS_AHEAD * self._settings.claim_limit, self._settings.async_concurrency
        return {Kind.SYNC: self.durations.ahead(most), Kind.ASYNC: self.durations.ahead(most, capacity)}

    def assign_waiting(self) -> None:
        """Start runs that wait, in order, one lane not holding up the other."""
        if self.waiting:
            ahead = self._ahead()
            for _ in range(len(self.waiting)):
                flight = self.waiting.popleft()
                if not self._assign(flight, ahead):
                    self.waiting.append(flight)
            self._flush()

    def _flush(self) -> None:
        for executor in self.executors.values():
            executor.flush()

    def take_back_from(self, executor: Executor) -> None:
        """Let other executors have what this one has not started."""
        self.waiting.extendleft(reversed(executor.take_back()))

    def recall(self, executor: Executor, flight: Flight) -> None:
        """Give back one run that was assigned, if it has not started; others behind it go on elsewhere."""
        self.take_back_from(executor)
        if flight in self.waiting:
            self.waiting.remove(flight)
            self._on_outcome(flight, Outcome(*flight.token, Verdict.UNSTARTED))
        self.assign_waiting()

    def is_moving(self, kind: Kind, now: float) -> bool:
        """Whether a slot of this lane will be free in a moment."""
        return any(is_soon_free(executor, self.durations, now) for executor in self.lane(kind))

    def release_waiting(self, kind: Kind, older_than: float) -> None:
        """Give back claimed runs of a lane that have waited since before ``older_than``, by the loop's clock."""
        # Who has to run alone may wait for its executor to be forked, which takes a while on a busy machine.
        given_up = [
            flight
            for flight in self.waiting
            if flight.facts.kind is kind
            and flight.claimed_at < older_than - (ALONE_SECONDS if self._quarantine.holds(flight) else 0.0)
        ]
        for flight in given_up:
            self.waiting.remove(flight)
            plan = Plan(delay_seconds=PUT_OFF_SECONDS) if self._quarantine.holds(flight) else None
            self._on_outcome(flight, Outcome(*flight.token, Verdict.UNSTARTED, plan=plan))

    # reports

    def _read(self, executor: Executor) -> None:
        had_outcome = False
        now = self._loop.time()
        for message in executor.read():
            if isinstance(message, Outcome):
                had_outcome = True
                self._land(executor, message)
            elif isinstance(message, Started):
                if flight := executor.mark_started(message, now):
                    flight.tally.count_started(now - flight.due_at)
            elif isinstance(message, Said):
                self._hear(executor, message)
            elif isinstance(message, Ready):
                executor.is_ready = had_outcome = True
                self.filling.note_ready()
            elif isinstance(message, Retiring):
                executor.is_doomed = True
                self.take_back_from(executor)
                self.filling.fill()
        if had_outcome:
            self.end_idle(executor)
            self.assign_waiting()
            self._on_room()
        if executor.is_cut:
            self._cut_off(executor)
        elif executor.unstarted >= BUSY and self._is_writing() and executor.id in self.executors:
            if not self._unread:
                self._loop.call_later(READ_SECONDS, self._read_unread)
            self._loop.remove_reader(executor.stream)
            self._unread.append(executor)

    def _hear(self, executor: Executor, message: Said) -> None:
        """Pass on what is said while bodies run."""
        if isinstance(message, Aside):
            self.on_aside(executor, message)
        elif not isinstance(message, Progress):
            self._stats.count_enqueued(*message)
        elif flight := executor.flights.get((message.run_id, message.epoch)):
            self._on_progress(flight, message.text)

    def _land(self, executor: Executor, outcome: Outcome) -> None:
        flight = executor.land((outcome.run_id, outcome.epoch))
        if flight is not None:
            if executor.is_apart:
                self._quarantine.acquit(flight)
            if flight.started_at is not None:
                executor.finished += 1
                self.durations.learn(flight.run.task, outcome.duration_seconds)
                flight.tally.count_ended(outcome.duration_seconds)
            self._on_outcome(flight, outcome)

    def _cut_off(self, executor: Executor) -> None:
        """Nothing more comes of an executor: it has ended, which its exit will say, or it never reports again."""
        self._loop.remove_reader(executor.stream)
        if executor.id in self.executors:
            executor.is_doomed = True
            self.take_back_from(executor)
            self._loop.call_later(CUT_SECONDS, self._end_if_it_lives, executor)

    def _end_if_it_lives(self, executor: Executor) -> None:
        if executor.id in self.executors:
            executor.fault = "closed or spoiled its connection to the dispatcher"
            logger.error("Executor %s %s; it is killed.", executor.pid, executor.fault)
            self.kill(executor, "")

    def _read_unread(self) -> None:
        unread, self._unread = self._unread, []
        for executor in unread:
            if executor.id in self.executors:
                # By its number: asyncio looks a socket up by what it prints as, which asks the kernel twice.
                self._loop.add_reader(executor.stream.fileno(), self._read, executor)
                self._read(executor)

    # executors

    def fill(self, zygote: Zygote) -> None:
        """Start what is missing, now and whenever an executor dies, through this zygote."""
        self.filling.begin(zygote)

    def wanted(self, kind: Kind) -> int:
        """Return how many executors of a kind there are to be."""
        if kind == Kind.SYNC:
            return self.processes
        return int(
            self._settings.async_concurrency > 0 and any(facts.kind == Kind.ASYNC for facts in self.facts.values())
        )

    def kill(self, executor: Executor, cause: str) -> None:
        """Kill an executor; what it had not started goes to others, the rest is settled when it is dead."""
        executor.is_doomed = executor.is_killed = True
        self.take_back_from(executor)
        executor.zygote.kill(executor.id, cause)

    def stop(self, executor: Executor, flight: Flight, reason: Stop) -> None:
        """Tell a body to end: by a signal that names its attempt, or by an order to its event loop."""
        flight.stop = reason
        if executor.kind == Kind.ASYNC:
            executor.order_stop(flight, reason)
        else:
            self._board.order_stop(executor.slot, flight.token, reason)
            executor.zygote.signal(executor.id, signal.SIGUSR1)

    def scale(self, processes: int) -> None:
        """Have so many executors for synchronous tasks: start what is missing, or let the least busy ones go."""
        self.processes = processes
        here = [executor for executor in self.lane(Kind.SYNC) if not executor.is_doomed]
        for executor in sorted(here, key=lambda executor: len(executor.flights))[: max(0, len(here) - processes)]:
            self.let_go(executor)
        self.assign_waiting()
        self.filling.fill()
        self._on_room()

    def let_go(self, executor: Executor) -> None:
        """Give an executor nothing more; it ends when it has ended what it has."""
        executor.is_doomed = executor.is_let_go = True
        self.take_back_from(executor)
        self.end_idle(executor)

    def end_idle(self, executor: Executor) -> None:
        """End an executor that was let go, if it has nothing left."""
        if executor.is_let_go and not executor.flights:
            executor.is_let_go = False
            self.kill(executor, "let go")

    def on_spawned(self, executor_id: int, pid: int) -> None:
        if executor_id in self.executors:
            self.executors[executor_id].pid = pid

    def on_exited(self, executor_id: int, status: int, cause: str, peak_kb: int, note: str = "") -> None:
        """Settle what a dead executor had, and start another one."""
        executor = self.executors.get(executor_id)
        if executor is None:
            return
        self._read(executor)
        self._loop.remove_reader(executor.stream)
        self._stats.executors_exited[cause_of(cause)] += 1
        del self.executors[executor_id]
        self.take_back_from(executor)
        who = f"{self._settings.node}:{executor.pid}"
        now, log = self._loop.time(), last_lines.read(self._board.lines(executor.slot))
        death = Death(who, status, cause, peak_kb, note, executor.fault, log)
        flights = list(executor.flights.values())
        if len(flights) > 1 and not cause:
            self._quarantine.suspect(flights)
        for flight in flights:
            executor.land(flight.token)
            if flight.started_at is not None:
                flight.tally.count_ended(now - flight.started_at)
            self._on_outcome(flight, outcome_of(flight, death, now, is_alone=len(flights) == 1))
        executor.close()
        if not executor.is_ready and not cause:
            logger.error("Executor %s died before it was ready (%s).", executor.pid, death.how)
        self._exited.set()
        self.filling.fill_soon(at_once=executor.is_ready)
        self.assign_waiting()
        self._on_room()

    def zygote_died(self, zygote: Zygote) -> None:
        """Settle what its executors had: the kernel has killed them with it."""
        self.filling.zygote_died(zygote)
        for executor in self.children_of(zygote):
            self.on_exited(executor.id, -signal.SIGKILL, "", 0, "with its zygote")

    async def kill_all(self, cause: str) -> None:
        """Kill every executor there is, drop what they had, and return when all are dead."""
        self.filling.stop()
        doomed = list(self.executors.values())
        for executor in doomed:
            self.kill(executor, cause)
            executor.flights.clear()
            executor.unstarted = 0
        self.waiting.clear()
        while any(executor.id in self.executors for executor in doomed):
            self._exited.clear()
            await self._exited.wait()
