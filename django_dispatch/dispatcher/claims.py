"""Claim and finish: one statement, one commit, as often as there is something to write or room for more.

Batches form by themselves: whatever ended while the last statement was under way goes into the next one. When that has
become a batch by itself, a second session sends it beside the first: the database works on while we read an answer and
feed executors. What the lease holds is compared with what is here only when neither is under way, for the runs of a
statement are known to nobody until it is answered. On the dispatcher's loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple
from uuid import UUID

from django.db import Error as DatabaseError

from ..finish import settle
from ..messages import Outcome, Verdict
from ..store.base import Exchanger
from ..store.values import ClaimedRun, Exchange, Wanted
from .backoff import Backoff
from .busy import LONGEST_BUSY_SECONDS, Busy, Ended
from .executor import Flight, Token
from .pace import Pace
from .pool import Pool
from .queues import Queues
from .room import Room
from .run_log import tell, tell_ended
from .sender import Sender
from .stats import Stats
from .store_thread import StoreThread
from .trouble import Trouble

LARGEST_BATCH = 500
LEAST_BESIDE = 64  # outcomes that are worth a statement of their own, and its commit, while another is under way
IDLE_SECONDS = 5.0  # so often a loop that has nothing to do says that it is well

logger = logging.getLogger("django_dispatch.dispatcher")


def _nobody(*_: object) -> None: ...


@dataclass(frozen=True, slots=True)
class Hooks:
    """Whom the claims loop tells."""

    quiet: Callable[[], None] = _nobody
    """A look found nothing, or no more runs are wanted."""
    scheduled: Callable[[], None] = _nobody
    """A run that ended here is to be tried again later."""
    freed: Callable[[Sequence[ClaimedRun]], None] = _nobody
    """These runs are not held here any more."""
    looked: Callable[[bool], None] = _nobody
    """After each look: whether it found less than there was room for."""


class Delivery(NamedTuple):
    """Claimed runs on their way to the pool; they were asked for then, by the loop's clock."""

    runs: Sequence[ClaimedRun]
    asked_at: float


class Claims:
    """The loop between store and pool.

    The first of ``exchangers`` sends whatever there is, the others beside it when outcomes pile up.
    """

    def __init__(
        self,
        exchangers: Sequence[Exchanger],
        store: StoreThread,
        pool: Pool,
        *,
        queues: Queues,
        max_interruptions: int,
        max_runs: int | None,
        hooks: Hooks,
        trouble: Trouble,
        stats: Stats,
    ) -> None:
        self._first, *self._others = [Sender(each, max_interruptions=max_interruptions) for each in exchangers]
        self._store = store
        self._pool = pool
        self._queues = queues
        self._max_interruptions = max_interruptions
        self._max_runs = max_runs
        self._tell = hooks
        self._trouble = trouble
        self._stats = stats
        stats.expect("claims", IDLE_SECONDS)
        trouble.on_relief(self.reconcile_soon)  # what a failover has undone, any connection may be the first to meet
        self._loop = asyncio.get_running_loop()
        self._unwritten: deque[Ended] = deque()
        self._busy = Busy(self._retry)
        self._resent: set[Token] = set()
        self._pace = Pace(look=self.look, wake=self._first.event.set)
        self._should_look = False
        self._must_reconcile = False
        self._is_comparing = False
        self._is_waiting = False
        self._under_way = 0
        self._asked_for = 0
        self._undelivered: deque[Delivery] = deque()
        self.lease_id: UUID | None = None
        self._lease = b""
        self.is_claiming = False

    # what wakes the loop

    def look(self) -> None:
        """Look for READY runs as soon as there is room for one."""
        self._should_look = True
        self._first.event.set()

    def on_room(self) -> None:
        """A slot is free: look again, for what there was no room before."""
        self._first.event.set()

    def reconcile_soon(self) -> None:
        """A connection broke: see whether what the database holds for us is what is here."""
        self._must_reconcile = True
        self._first.event.set()

    def on_outcome(self, flight: Flight, outcome: Outcome, progress: str | None) -> None:
        """Write what a run has come to, and its last progress; what belongs to a lost lease does not count."""
        if flight.lease != self._lease:
            tell(logging.WARNING, flight.run, "its lease was lost; the outcome is dropped.")
            self._stats.outcomes_dropped += 1
            return
        facts = self._pool.facts.get(flight.run.task)
        settlement = settle(flight.run, outcome, facts, max_interruptions=self._max_interruptions)
        if progress is not None:
            settlement = settlement._replace(progress=progress)
        self._unwritten.append(Ended(flight, outcome, settlement))
        self._first.event.set()
        if self._under_way and len(self._unwritten) >= LEAST_BESIDE:
            for sender in self._others:
                sender.event.set()

    # the lease

    def begin(self, lease_id: UUID) -> None:
        """Work under a new lease."""
        self.lease_id, self._lease = lease_id, lease_id.bytes
        self.look()

    def lose(self) -> int:
        """Forget all that belongs to the lease, which is lost; return how many outcomes were dropped."""
        dropped = len(self._unwritten) + len(self._busy)
        self.lease_id, self._lease = None, b""
        self._unwritten.clear()
        self._busy.clear()
        self._undelivered.clear()
        self._resent.clear()
        return dropped

    # the loop

    async def run(self) -> None:
        """Exchange outcomes for runs, for ever."""
        async with asyncio.TaskGroup() as senders:
            senders.create_task(self._serve())
            for sender in self._others:
                senders.create_task(self._help(sender))

    async def _serve(self) -> None:
        """Send, by the first session, whatever there is."""
        sender, backoff = self._first, Backoff()
        self._tick()
        while True:
            self._is_waiting = True
            await sender.event.wait()
            self._is_waiting = False
            sender.event.clear()
            try:
                while self.lease_id is not None and await self._step(sender, self.lease_id):
                    pass
                backoff.reset()
                self._stats.succeed("claims")
            except DatabaseError as error:
                self._note_trouble(error)
                await self._trouble.pause(backoff.next_seconds())
                sender.event.set()

    def _tick(self) -> None:
        """A loop that waits because there is nothing to do is well; one that waits for an answer has yet to show it."""
        if self._is_waiting:
            self._stats.succeed("claims")
        self._loop.call_later(IDLE_SECONDS, self._tick)

    async def _help(self, sender: Sender) -> None:
        """Send beside a statement that is under way, by a session that is open while there is so much to write."""
        backoff = Backoff(first_seconds=1.0, longest_seconds=60.0)  # it can be done without
        while True:
            try:
                async with asyncio.timeout(IDLE_SECONDS):
                    await sender.event.wait()
            except TimeoutError:
                await sender.close()
                continue
            sender.event.clear()
            try:
                while self.lease_id is not None and await self._step(sender, self.lease_id):
                    backoff.reset()
                self._first.event.set()  # it may have waited for our end
            except DatabaseError as error:
                self._note_trouble(error)
                await asyncio.sleep(backoff.next_seconds())

    def _note_trouble(self, error: DatabaseError) -> None:
        self.reconcile_soon()
        # A statement goes on in the database when its connection breaks: look again when it must have ended.
        self._loop.call_later(self._store.deadline_seconds, self.reconcile_soon)
        self._trouble.failed("claims", error)

    @property
    def is_under_way(self) -> bool:
        """Whether a statement is out, or its runs are on their way to the pool."""
        return self._under_way > 0 or bool(self._undelivered)

    def has_claimed_enough(self) -> bool:
        """Return whether as many runs were claimed as this dispatcher is to run at all."""
        return self._max_runs is not None and self._stats.runs_claimed >= self._max_runs

    def is_settled(self) -> bool:
        """Return whether every outcome so far is written."""
        return not (self._unwritten or self._busy or self.is_under_way)

    def is_idle(self) -> bool:
        """Return whether there is nothing to write, and the last look, at everything, found nothing."""
        return self.is_settled() and not (self._should_look or self._must_reconcile or self._pace.has_rest)

    def _may_send(self, sender: Sender) -> bool:
        if not self._under_way:
            return sender is self._first
        may_more_be_sent = not (self._is_comparing or self._must_reconcile)
        return may_more_be_sent and len(self._unwritten) >= LEAST_BESIDE

    async def _step(self, sender: Sender, lease_id: UUID) -> bool:
        """Make one exchange if there is a reason to; return whether to go on at once."""
        if not self._may_send(sender):
            return False
        if self._must_reconcile:
            self._must_reconcile = False  # who asks for it from here on wants another one
            await self._compare(lease_id)
            self._trouble.succeeded("claims")
            return True
        room = self._room()
        limit = room.limit
        batch = [self._unwritten.popleft() for _ in range(min(len(self._unwritten), LARGEST_BATCH))]
        if not batch and not (limit and self._should_look and self._pace.may_look()):
            return False
        if limit:
            self._should_look = False
        began = self._loop.time()
        try:
            exchange = await self._send(sender, lease_id, batch, room)
        except DatabaseError:
            if self.lease_id == lease_id:
                self._unwritten.extendleft(reversed(batch))
                self._resent.update(ended.flight.token for ended in batch)
            self._should_look = True
            raise
        seconds, is_ours = self._loop.time() - began, self.lease_id == lease_id
        if is_ours:
            self._take(exchange, limit, began)
        self._trouble.succeeded("claims")
        self._stats.count_exchange(seconds, len(exchange.claimed) if limit else None)
        if batch:
            self._note_answers(batch, exchange)
        if is_ours:
            self._tell_of_look(exchange, room, began, has_written=bool(batch))
        return bool(self._unwritten or self._should_look)

    async def _send(self, sender: Sender, lease_id: UUID, batch: Sequence[Ended], room: Room) -> Exchange:
        wanted: Wanted = {
            "queues": self._queues.names() if room.limit else (),
            "limit": room.limit,
            "excluded_tasks": room.excluded,
            "at_most_once_tasks": [path for path, facts in self._pool.facts.items() if facts.on_lost == "fail"],
        }
        self._under_way += 1
        self._asked_for += room.limit
        try:
            return await sender.send(lease_id, batch, wanted)
        finally:
            self._under_way -= 1
            self._asked_for -= room.limit

    def _tell_of_look(self, exchange: Exchange, room: Room, began: float, *, has_written: bool) -> None:
        found, is_whole = len(exchange.claimed), exchange.rest_seconds is None
        if room.limit:
            self._tell.looked(found < room.limit)
        found_nothing = room.limit > 0 and not found
        if found_nothing and not has_written:
            self._pace.found_nothing()
        if room.excluded and found < room.limit:
            self._pace.picked(began)
        is_over = (found_nothing and is_whole) or self.has_claimed_enough()
        if found_nothing and self._under_way:
            self._should_look = True  # what the other statement brings is not known yet
        elif is_over and not (room.is_partial or self._unwritten or self.is_under_way):
            self._tell.quiet()

    def _note_answers(self, batch: Sequence[Ended], exchange: Exchange) -> None:
        batch = self._busy.sort_out(batch, exchange.busy)
        if exchange.cancelled:
            cancelled = set(exchange.cancelled)
            batch = [ended.as_written(cancelled) for ended in batch]
        self._note_written(batch, exchange)
        if any(ended.settlement.delay_seconds is not None for ended in batch):
            self._tell.scheduled()
        self._tell.freed([ended.flight.run for ended in batch])

    def _room(self) -> Room:
        if not self.is_claiming:
            return Room(0)
        room = self._pool.room([run for delivery in self._undelivered for run in delivery.runs], self._asked_for)
        if room.excluded and not self._pace.may_pick():
            return Room(0)
        if self._max_runs is not None:
            room = room._replace(limit=min(room.limit, self._max_runs - self._stats.runs_claimed - self._asked_for))
        return room

    def _take(self, exchange: Exchange, limit: int, asked_at: float) -> None:
        self._stats.runs_claimed += len(exchange.claimed)
        if exchange.claimed:
            self._undelivered.append(Delivery(exchange.claimed, asked_at))
        if limit and len(exchange.claimed) == limit:
            # There is more: executors are given theirs when the next statement is out, while the database works.
            self._should_look = True
            self._loop.call_soon(self._deliver)
        elif exchange.claimed:
            self._deliver()
            self._pace.found_all()
        self._queues.note_claimed(run.queue for run in exchange.claimed)
        if exchange.rest_seconds is not None:
            self._pace.look_at_rest(exchange.rest_seconds)

    def _deliver(self) -> None:
        while self._undelivered and self.lease_id is not None:
            runs, asked_at = self._undelivered.popleft()
            self._pool.take(runs, self.lease_id, asked_at)
        if self._should_look:
            self._first.event.set()  # there may be room that these were thought to need

    def _retry(self, ended: Sequence[Ended]) -> None:
        """Send outcomes again whose runs another transaction held."""
        if self.lease_id is not None:
            self._unwritten.extend(ended)
        self._first.event.set()

    def _note_written(self, batch: Sequence[Ended], exchange: Exchange) -> None:
        # What a body has committed itself is not to be written again.
        refused = set(exchange.refused) - {e.settlement.run_id for e in batch if e.outcome.verdict is Verdict.COMMITTED}
        for ended in batch:
            if ended.settlement.run_id not in refused:
                ended.flight.tally.count_finished(ended.settlement.status)
        if not refused and not self._resent and not logger.isEnabledFor(logging.INFO):
            batch = [ended for ended in batch if ended.settlement.error is not None]
        for ended in batch:
            run = ended.flight.run
            was_resent = ended.flight.token in self._resent
            self._resent.discard(ended.flight.token)
            if run.id not in refused:
                tell_ended(run, ended.outcome, ended.settlement)
            elif was_resent:
                tell(logging.INFO, run, "its outcome was written before the connection broke.")
            else:
                tell(logging.WARNING, run, "lease lost; its outcome is dropped.")
                self._stats.outcomes_dropped += 1

    async def _compare(self, lease_id: UUID) -> None:
        """After trouble, compare what the database holds under our lease with what is here."""
        self._under_way += 1
        self._is_comparing = True
        try:
            held = set(await self._store.call(self._store.store.held, lease_id))
            if self.lease_id != lease_id:  # it was lost: what is not known any more may have run
                return
            # All at one moment: what lands while a release is written is ours all the same.
            ours = {ended.flight.token for ended in (*self._unwritten, *self._busy)}
            unknown = sorted(token for token in held if token not in ours and not self._pool.knows(token))
            for executor in list(self._pool.executors.values()):
                if any(flight.token not in held for flight in executor.flights.values()):
                    logger.error("Executor %s runs what is not ours any more; it is killed.", executor.pid)
                    self._pool.kill(executor, "its run is not ours any more")
            for run_id, epoch in unknown:
                text = "Run %s was claimed, but the answer was lost; it is released."
                logger.warning(text, run_id, extra={"run_id": run_id})
                if (await self._first.release(lease_id, run_id, epoch)).busy:
                    self._loop.call_later(LONGEST_BUSY_SECONDS, self.reconcile_soon)
        finally:
            self._under_way -= 1
            self._is_comparing = False
