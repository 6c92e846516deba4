"""Limits on SQLite: who waits at them, and who may pass. In the dispatcher, on its store thread."""

import json
from collections.abc import Mapping, Sequence
from math import floor
from typing import Any, NamedTuple

from .sqlite_claims import RUN
from .sqlite_session import Row, Session, Transaction, list_of, seconds_ago
from .sqlite_turns import IN_LINE, IN_ORDER, line_up
from .values import Admitted

BUCKET = "django_dispatch_bucket"
QUEUE_KEY = "queue:"
DAY_SECONDS = 86_400

_UNFINISHED = "status IN ('SCHEDULED', 'READY', 'BLOCKED', 'RUNNING')"
_WAITS = (
    f"SELECT 1 FROM {RUN} WHERE status = 'BLOCKED' AND blocked_by IN (SELECT value FROM json_each(%(keys)s)) LIMIT 1"
)
_HEAD = f"""
SELECT on_duplicate, concurrency_limit, rate_amount, rate_seconds FROM {RUN}
WHERE status = 'BLOCKED' AND blocked_by = %(key)s {IN_LINE} LIMIT 1
"""
_WAITING = f"SELECT id FROM {RUN} WHERE status = 'BLOCKED' AND blocked_by = %(key)s {IN_LINE} LIMIT %(room)s"
_HAS_QUEUE_LIMIT = "(%(places)s = 1 AND queue IN (SELECT value FROM json_each(%(limited_queues)s)))"
_PASS = f"""
UPDATE {RUN}
SET places = %(places)s, status = CASE WHEN {_HAS_QUEUE_LIMIT} THEN 'BLOCKED' ELSE 'READY' END, ready_at = %(now)s,
    blocked_by = CASE WHEN {_HAS_QUEUE_LIMIT} THEN 'queue:' || queue END
WHERE id IN (SELECT value FROM json_each(%(ids)s))
RETURNING queue, blocked_by
"""


class _Limit(NamedTuple):
    """What a key allows: so many at once, and so many in a time. None: as many as there are."""

    concurrency: int | None
    rate_amount: int | None
    rate_seconds: float | None


def blocked_keys(session: Session, *, after: str, limit: int) -> Sequence[str]:
    """See Store.blocked_keys()."""
    found = session.rows(
        f"SELECT DISTINCT blocked_by FROM {RUN} WHERE status = 'BLOCKED' AND blocked_by > %(after)s"
        " ORDER BY blocked_by LIMIT %(limit)s",
        after=after,
        limit=limit,
    )
    return [row[0] for row in found]


def admit(session: Session, keys: Sequence[str], *, most: int, queue_limits: str) -> Admitted:
    """See Store.admit(). For each key: count who holds a place, give the free ones to those that wait, best first."""
    admission = _Admission(most, json.loads(queue_limits))
    if session.rows(_WAITS, keys=list_of(keys)):
        with session.transaction() as tx:
            for key in sorted(set(keys)):
                admission.admit(tx, key)
    return Admitted(admission.queues, admission.next_keys, admission.later)


def prune_buckets(session: Session) -> None:
    """See Store.prune_buckets()."""
    old = {"before": seconds_ago(DAY_SECONDS)}
    if session.rows(f"SELECT 1 FROM {BUCKET} WHERE filled_at < %(before)s LIMIT 1", **old):
        with session.transaction() as tx:
            tx.change(f"DELETE FROM {BUCKET} WHERE filled_at < %(before)s", **old)


class _Admission:
    """One pass over some keys: what it brought."""

    def __init__(self, most: int, queue_limits: Mapping[str, Mapping[str, Any]]) -> None:
        self._most = most
        self._queue_limits = queue_limits
        self.queues: list[str] = []
        self.next_keys: list[str] = []
        self.later: dict[str, float] = {}

    def admit(self, tx: Transaction, key: str) -> None:
        """Let as many pass as there is room for, by both limits."""
        head = tx.rows(_HEAD, key=key)
        if not head:
            return
        limit = self._limit(key, head[0])
        room = self._most
        if limit.concurrency is not None:
            room = min(room, limit.concurrency - _taken(tx, key))
        if head[0][0] in IN_ORDER and not key.startswith(QUEUE_KEY):
            room = min(room, 1)
        if room <= 0:
            return
        tokens = self._tokens(tx, key, limit)
        passed = self._pass(tx, key, room if tokens is None else min(room, floor(tokens)))
        if tokens is not None:
            tokens -= passed
            if passed:
                _note_tokens(tx, key, tokens)
            if tokens < 1:
                self.later[key] = (1 - tokens) * (limit.rate_seconds or 0.0) / (limit.rate_amount or 1)
                return
        if passed == self._most:
            self.next_keys.append(key)

    def _limit(self, key: str, head: Row) -> _Limit:
        if key.startswith(QUEUE_KEY):
            own = self._queue_limits.get(key.removeprefix(QUEUE_KEY), {})
            return _Limit(own.get("concurrency"), own.get("rate_amount"), own.get("rate_seconds"))
        _, concurrency, amount, seconds = head
        # A key that has no limit admits one at a time.
        return _Limit(1 if amount is None and concurrency is None else concurrency, amount, seconds)

    def _tokens(self, tx: Transaction, key: str, limit: _Limit) -> float | None:
        """Return how many may pass now by the rate; None: there is none."""
        if limit.rate_amount is None or limit.rate_seconds is None:
            return None
        for tokens, filled_at in tx.rows(f"SELECT tokens, filled_at FROM {BUCKET} WHERE key = %(key)s", key=key):
            gained = max(0.0, tx.since(filled_at)) * limit.rate_amount / limit.rate_seconds
            return float(min(limit.rate_amount, tokens + gained))
        return float(limit.rate_amount)

    def _pass(self, tx: Transaction, key: str, room: int) -> int:
        ids = [row[0] for row in tx.rows(_WAITING, key=key, room=max(0, room))]
        is_queue = key.startswith(QUEUE_KEY)
        places = 2 if is_queue else 1
        passed = tx.rows(_PASS, ids=list_of(ids), places=places, limited_queues=list_of(self._queue_limits))
        if not is_queue:  # in a queue with a limit there is one order, before the limit and after
            line_up(tx, ids)
        for queue, blocked_by in dict.fromkeys(passed):
            if blocked_by is None:
                self.queues.append(queue)
            else:
                self.next_keys.append(blocked_by)
        return len(passed)


def _taken(tx: Transaction, key: str) -> int:
    """Return how many hold a place there."""
    is_queue = key.startswith(QUEUE_KEY)
    which = "queue = %(of)s AND places = 2" if is_queue else "concurrency_key = %(of)s AND places > 0"
    of = key.removeprefix(QUEUE_KEY)
    ((taken,),) = tx.rows(f"SELECT count(*) FROM {RUN} WHERE {which} AND {_UNFINISHED}", of=of)
    return int(taken)


def _note_tokens(tx: Transaction, key: str, tokens: float) -> None:
    tx.change(
        f"INSERT INTO {BUCKET} (key, tokens, filled_at) VALUES (%(key)s, %(tokens)s, %(now)s)"
        " ON CONFLICT (key) DO UPDATE SET tokens = excluded.tokens, filled_at = excluded.filled_at",
        key=key,
        tokens=tokens,
    )
