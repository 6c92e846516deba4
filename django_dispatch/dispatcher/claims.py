"""Claim and finish: one statement, one commit, as often as there is something to write or room for more.

Batches form by themselves: whatever ended while the last statement was under way goes into the next one. On the
dispatcher's loop.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar
from uuid import UUID

from django.db import Error as DatabaseError

from ..documents import error_document
from ..finish import settle
from ..messages import Outcome, Verdict
from ..store.base import Exchanger
from ..store.values import ClaimedRun, Exchange, Settlement
from .backoff import Backoff
from .busy import LONGEST_BUSY_SECONDS, Busy, Ended
from .executor import Flight, Token
from .pace import Pace
from .pool import Pool
from .queues import Queues
from .room import Room
from .run_log import tell, tell_ended
from .stats import Stats
from .store_thread import StoreThread
from .trouble import Trouble, is_unstorable, text_of

LARGEST_BATCH = 500
IDLE_SECONDS = 5.0  # so often a loop that has nothing to do says that it is well

T = TypeVar("T")

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


class Claims:
    """The loop between store and pool."""

    def __init__(
        self,
        exchanger: Exchanger,
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
        self._exchanger = exchanger
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
        self._event = asyncio.Event()
        self._backoff = Backoff()
        self._unwritten: deque[Ended] = deque()
        self._busy = Busy(self._retry)
        self._resent: set[Token] = set()
        self._pace = Pace(look=self.look, wake=self._event.set)
        self._should_look = False
        self._must_reconcile = False
        self._is_asking = False
        self._undelivered: list[ClaimedRun] = []
        self._undelivered_asked_at = 0.0
        self.lease_id: UUID | None = None
        self._lease = b""
        self.is_claiming = False

    # what wakes the loop

    def look(self) -> None:
        """Look for READY runs as soon as there is room for one."""
        self._should_look = True
        self._event.set()

    def on_room(self) -> None:
        """A slot is free: look again, for what there was no room before."""
        self._event.set()

    def reconcile_soon(self) -> None:
        """A connection broke: see whether what the database holds for us is what is here."""
        self._must_reconcile = True
        self._event.set()

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
        self._event.set()

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
        while True:
            try:
                async with asyncio.timeout(IDLE_SECONDS):
                    await self._event.wait()
            except TimeoutError:  # there was nothing to do
                self._stats.succeed("claims")
                continue
            self._event.clear()
            try:
                while self.lease_id is not None and await self._step(self.lease_id):
                    pass
                self._backoff.reset()
                self._stats.succeed("claims")
            except DatabaseError as error:
                self.reconcile_soon()
                # A statement goes on in the database when its connection breaks: look again when it must have ended.
                self._loop.call_later(self._store.deadline_seconds, self.reconcile_soon)
                self._trouble.failed("claims", error)
                await self._trouble.pause(self._backoff.next_seconds())
                self._event.set()

    @property
    def claimed_total(self) -> int:
        """How many runs were claimed so far."""
        return self._stats.runs_claimed

    @property
    def is_under_way(self) -> bool:
        """Whether a statement is out, or its runs are on their way to the pool."""
        return self._is_asking or bool(self._undelivered)

    def has_claimed_enough(self) -> bool:
        """Return whether as many runs were claimed as this dispatcher is to run at all."""
        return self._max_runs is not None and self.claimed_total >= self._max_runs

    def is_settled(self) -> bool:
        """Return whether every outcome so far is written."""
        return not (self._unwritten or self._busy or self.is_under_way)

    def is_idle(self) -> bool:
        """Return whether there is nothing to write, and the last look found nothing."""
        return self.is_settled() and not self._should_look and not self._must_reconcile

    async def _step(self, lease_id: UUID) -> bool:
        """Make one exchange if there is a reason to; return whether to go on at once."""
        if self._must_reconcile:
            self._must_reconcile = False  # who asks for it from here on wants another one
            await self._ask(self._reconcile(lease_id))
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
            exchange = await self._ask(self._exchange(lease_id, batch, limit, room.excluded))
        except DatabaseError:
            if self.lease_id == lease_id:
                self._unwritten.extendleft(reversed(batch))
                self._resent.update(ended.flight.token for ended in batch)
            self._should_look = True
            raise
        self._trouble.succeeded("claims")
        self._stats.claim_seconds.observe(self._loop.time() - began)
        if limit:
            self._stats.claim_runs.observe(len(exchange.claimed))
        self._note_answers(batch, exchange)
        if self.lease_id == lease_id:
            self._take(exchange, limit, lease_id, began)
            self._tell_of_look(exchange, room, began, has_written=bool(batch))
        return bool(self._unwritten or self._should_look)

    async def _ask(self, statement: Awaitable[T]) -> T:
        self._is_asking = True
        try:
            return await statement
        finally:
            self._is_asking = False

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
        if is_over and not (room.is_partial or self._unwritten or self._undelivered):
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
        room = self._pool.room(self._undelivered)
        if room.excluded and not self._pace.may_pick():
            return Room(0)
        if self._max_runs is not None:
            room = room._replace(limit=min(room.limit, self._max_runs - self.claimed_total))
        return room

    async def _exchange(self, lease_id: UUID, batch: Sequence[Ended], limit: int, excluded: Sequence[str]) -> Exchange:
        try:
            return await self._exchanger.exchange(
                lease_id,
                [ended.settlement for ended in batch],
                queues=self._queues.names() if limit else (),
                limit=limit,
                excluded_tasks=excluded,
                at_most_once_tasks=[path for path, facts in self._pool.facts.items() if facts.on_lost == "fail"],
            )
        except DatabaseError as error:
            if not batch or not is_unstorable(error):
                raise
            return await self._exchange_piecemeal(lease_id, batch, error)

    async def _exchange_piecemeal(self, lease_id: UUID, batch: Sequence[Ended], error: DatabaseError) -> Exchange:
        """One outcome of the batch cannot be stored: find it by halves, and store that it cannot be."""
        if len(batch) == 1:
            ended = batch[0]
            message = f"The database cannot store what the body returned: {text_of(error)}"
            text = error_document("result", message, attempt=ended.flight.run.attempt)
            outcome = Outcome(*ended.flight.token, Verdict.UNSTORABLE, ended.outcome.duration_seconds, text)
            settlement = settle(ended.flight.run, outcome, None, max_interruptions=self._max_interruptions)
            return await self._exchanger.exchange(lease_id, [settlement], queues=(), limit=0)
        middle = len(batch) // 2
        halves = [await self._exchange(lease_id, half, 0, ()) for half in (batch[:middle], batch[middle:])]
        refused = [run_id for half in halves for run_id in half.refused]
        busy = [run_id for half in halves for run_id in half.busy]
        return Exchange((), refused, busy, [run_id for half in halves for run_id in half.cancelled])

    def _take(self, exchange: Exchange, limit: int, lease_id: UUID, asked_at: float) -> None:
        self._stats.runs_claimed += len(exchange.claimed)
        self._queues.note_claimed(run.queue for run in exchange.claimed)
        self._undelivered, self._undelivered_asked_at = list(exchange.claimed), asked_at
        if limit and len(exchange.claimed) == limit:
            # There is more: executors are given theirs when the next statement is out, while the database works.
            self._should_look = True
            self._loop.call_soon(self._deliver, lease_id)
        elif exchange.claimed:
            self._deliver(lease_id)
            self._pace.found_all()
        if exchange.rest_seconds is not None:
            self._pace.look_at_rest(exchange.rest_seconds)

    def _deliver(self, lease_id: UUID) -> None:
        runs, self._undelivered = self._undelivered, []
        if self.lease_id == lease_id:
            self._pool.take(runs, lease_id, self._undelivered_asked_at)
        if self._should_look:
            self._event.set()  # there may be room that these were thought to need

    def _retry(self, ended: Sequence[Ended]) -> None:
        """Send outcomes again whose runs another transaction held."""
        if self.lease_id is not None:
            self._unwritten.extend(ended)
        self._event.set()

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

    async def _reconcile(self, lease_id: UUID) -> None:
        """After trouble, compare what the database holds under our lease with what is here."""
        held = set(await self._store.call(self._store.store.held, lease_id))
        if self.lease_id != lease_id:  # it was lost: what is not known any more may have run
            return
        ours = {ended.flight.token for ended in (*self._unwritten, *self._busy)}
        # All at one moment: what lands while a release is written is ours all the same.
        unknown = sorted(token for token in held if token not in ours and not self._pool.knows(token))
        for executor in list(self._pool.executors.values()):
            if any(flight.token not in held for flight in executor.flights.values()):
                logger.error("Executor %s runs what is not ours any more; it is killed.", executor.pid)
                self._pool.kill(executor, "its run is not ours any more")
        for run_id, epoch in unknown:
            text = "Run %s was claimed, but the answer was lost; it is released."
            logger.warning(text, run_id, extra={"run_id": run_id})
            release = Settlement(run_id, epoch, "READY", was_started=False)
            exchange = await self._exchanger.exchange(lease_id, [release], queues=(), limit=0)
            if exchange.busy:
                self._loop.call_later(LONGEST_BUSY_SECONDS, self.reconcile_soon)
