"""Outcomes that wait because another transaction holds their runs. On the dispatcher's loop."""

import asyncio
import logging
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import NamedTuple

from ..messages import Outcome
from ..store.values import Settlement
from .backoff import Backoff
from .executor import Flight
from .run_log import tell

LONGEST_BUSY_SECONDS = 1.0  # between two tries to write an outcome whose run another transaction holds
# Tries in vain before it is worth a word, a third of a second at least: claims, ours beside this one too, lock for as
# long as they take what they find taken already.
SILENT_TRIES = 5


class Ended(NamedTuple):
    """A flight that has landed, and the write that it waits for; so often, another transaction held its run."""

    flight: Flight
    outcome: Outcome
    settlement: Settlement
    times_busy: int = 0

    def as_written(self, cancelled_ids: Collection[int]) -> "Ended":
        """Return it with the settlement that the database wrote: a cancel wins over another attempt."""
        if self.settlement.run_id not in cancelled_ids:
            return self
        return self._replace(settlement=self.settlement._replace(status="CANCELLED", delay_seconds=None))


class Busy:
    """Keeps such outcomes; ``again`` gets all of them, to be sent again, after pauses that grow."""

    def __init__(self, again: Callable[[Sequence[Ended]], None]) -> None:
        self._again = again
        self._waiting: list[Ended] = []
        self._retry: asyncio.TimerHandle | None = None
        self._backoff = Backoff(first_seconds=0.02, longest_seconds=LONGEST_BUSY_SECONDS)

    def __iter__(self) -> Iterator[Ended]:
        return iter(self._waiting)

    def __len__(self) -> int:
        return len(self._waiting)

    def clear(self) -> None:
        """Forget them."""
        self._waiting.clear()

    def sort_out(self, batch: Sequence[Ended], busy_ids: Sequence[int]) -> Sequence[Ended]:
        """Keep those of a batch that was sent whose runs were answered as busy; return the others."""
        if not busy_ids:
            if not self._waiting:
                self._backoff.reset()
            return batch
        busy = set(busy_ids)
        for ended in batch:
            run = ended.flight.run
            if run.id in busy:
                if ended.times_busy == SILENT_TRIES:
                    tell(logging.WARNING, run, "a transaction holds its row; its outcome waits.")
                self._waiting.append(ended._replace(times_busy=ended.times_busy + 1))
        if self._retry is None:
            loop = asyncio.get_running_loop()
            self._retry = loop.call_later(self._backoff.next_seconds(), self._send_again)
        return [ended for ended in batch if ended.flight.run.id not in busy]

    def _send_again(self) -> None:
        waiting, self._waiting, self._retry = self._waiting, [], None
        self._again(waiting)
