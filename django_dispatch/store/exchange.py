"""Finish and claim, the hot path: one statement made and read here, whoever waits for it, a thread or an event loop."""

import json
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Unpack
from uuid import UUID

from .base import Exchanger
from .session import AsyncSession, Row
from .statements import CLAIM, CLAIM_FURTHER_ON, EXCHANGE, EXCHANGE_FURTHER_ON, TAIL
from .values import ClaimedRun, Exchange, Settlement, Wanted
from .walks import Walk, Walks

# What a settlement has after id, epoch, status and result when its body just returned.
NOTHING_ELSE = Settlement(0, 0, "")[4:]


class AsyncExchanger(Exchanger):
    """See Exchanger. No thread has to be woken."""

    def __init__(self, session: AsyncSession) -> None:
        self._session = session
        self._walks = Walks()

    async def exchange(
        self,
        lease_id: UUID,
        settlements: Sequence[Settlement],
        **wanted: Unpack[Wanted],
    ) -> Exchange:
        """See Store.exchange()."""
        walk = self._walks.begin(wanted)
        if walk.wants_tail:
            walk.set_tail(await self._session.execute(TAIL, {}))
        call = Call(lease_id, settlements, wanted, walk)
        return call.answer(await self._session.execute(call.statement, call.params, is_busy=bool(settlements)))

    async def close(self) -> None:
        """Close the connection."""
        await self._session.close()


class Call:
    """One exchange: the statement to execute, and what its rows say."""

    def __init__(self, lease_id: UUID, settlements: Sequence[Settlement], wanted: Wanted, walk: Walk) -> None:
        self._settlements = settlements
        self._wanted = wanted
        self._walk = walk
        self.params: dict[str, Any] = {
            "lease": lease_id,
            "settlements": _document(settlements),
            "queues": _array(wanted["queues"]),
            "limit": wanted["limit"],
            "excluded": _array(wanted.get("excluded_tasks", ())),
            "at_most_once": _array(wanted.get("at_most_once_tasks", ())),
        }
        if not walk.is_whole:
            self.params |= walk.params(wanted["queues"])

    @property
    def statement(self) -> str:
        """The statement that finishes and claims, or that only claims when there is nothing to finish."""
        if self._walk.is_whole:
            return EXCHANGE if self._settlements else CLAIM
        return EXCHANGE_FURTHER_ON if self._settlements else CLAIM_FURTHER_ON

    def answer(self, rows: Iterable[Row]) -> Exchange:
        """Return what its rows say."""
        exchange = read_exchange(rows, self._wanted["queues"])
        return self._walk.end(exchange, limit=self._wanted["limit"], finished=len(self._settlements))


def read_exchange(rows: Iterable[Row], queues: Sequence[str]) -> Exchange:
    """Return what the rows of any of these statements say."""
    claimed: list[ClaimedRun] = []
    by_answer: dict[str | None, list[int]] = {None: [], "busy": [], "cancelled": []}
    for row in rows:
        if row[1] is not None:
            claimed.append(ClaimedRun._make(row))
        else:
            by_answer[row[2]].append(row[0])
    # RETURNING promises no order. The statement took the queues in their order, each by priority, then place.
    order = {queue: index for index, queue in enumerate(queues)}
    claimed.sort(key=lambda run: (order[run.queue], -run.priority, run.place, run.id))
    return Exchange(claimed, by_answer[None], by_answer["busy"], by_answer["cancelled"])


def _array(texts: Iterable[str]) -> str:
    """An array of texts as PostgreSQL writes one: of a list psycopg makes that in Python, by a dozen calls."""
    return "{" + ",".join(['"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"' for text in texts]) + "}"


def _document(settlements: Sequence[Settlement]) -> str:
    """One JSON document for all: PostgreSQL reads it 2 to 3 times faster than arrays. Payloads pass as they are.

    In the order of the ids, in which an application's cancels lock runs too.
    """
    return f"[{','.join(_items(settlements))}]"


def _items(settlements: Sequence[Settlement]) -> Iterator[str]:
    for s in sorted(settlements, key=_run_id):
        item = f'{{"id":{s.run_id},"epoch":{s.epoch},"status":"{s.status}"'
        if s.result is not None:
            item += f',"result":{s.result}'
        if s[4:] != NOTHING_ELSE:
            item += _rest(s)
        yield item + "}"


def _rest(s: Settlement) -> str:
    """What most settlements do not have."""
    rest = f',"failed":{s.has_failed:d},"interrupted":{s.was_interrupted:d},"started":{s.was_started:d}'
    if s.error is not None:
        rest += f',"error":{s.error}'
    if s.progress is not None:
        rest += f',"progress":{s.progress}'
    if s.delay_seconds is not None:
        rest += f',"delay":{s.delay_seconds!r}'
    if s.queue is not None:
        rest += f',"queue":{json.dumps(s.queue)}'
    if s.priority is not None:
        rest += f',"priority":{s.priority}'
    return rest


def _run_id(settlement: Settlement) -> int:
    return settlement.run_id
