"""Send wakeups, over PostgreSQL and Redis, after the commit, from whichever process enqueued or cancelled.

A NOTIFY inside a transaction holds an instance-wide lock over its WAL flush. So one goes out after the caller's
commit, in a statement of its own, and thinned: what the bucket swallows is found when dispatchers look again. Only an
enqueue that is a transaction by itself takes its wakeup along, one at a time: see WAKE.

With ``NOTIFY`` "idle", what wakes claims or admission is sent only while a dispatcher waits. Whether one does is asked
when the run is written or committed: one that does not wait by then will look later.
"""

import logging
import threading
import time

from django.db import connections, transaction

from django_dispatch import conf

from .base import CHANNEL, Wakeup

BURST = 20
PER_SECOND = 100.0
# Queue names may be computed (one a customer, say); forgetting them all only means full buckets again.
MAX_BUCKETS = 1000
NOTIFY = "SELECT pg_notify(%s, %s)"
NOTIFY_IF_AWAITED = f"{NOTIFY} WHERE django_dispatch_is_awaited(%s::text)"

logger = logging.getLogger("django_dispatch.wakeups")


class TokenBucket:
    """Lets ``burst`` through at once and ``per_second`` in the long run. Any thread may take."""

    def __init__(self, *, burst: float, per_second: float, now: float) -> None:
        self._burst = burst
        self._per_second = per_second
        self._tokens = burst
        self._filled_at = now
        self._lock = threading.Lock()

    def take(self, now: float) -> bool:
        """Take a token and return whether there was one. ``now`` is in seconds, by any clock that does not go back."""
        with self._lock:
            elapsed_seconds = max(0.0, now - self._filled_at)
            self._filled_at = max(now, self._filled_at)
            self._tokens = min(self._burst, self._tokens + elapsed_seconds * self._per_second)
            if self._tokens < 1:
                return False
            self._tokens -= 1
            return True


_buckets: dict[Wakeup, TokenBucket] = {}


def wake_after_commit(using: str, wakeup: Wakeup) -> None:
    """Send the wakeup when the caller's transaction on ``using`` has committed; at once if there is none.

    A rolled-back transaction wakes nobody. A wakeup that cannot be sent is logged and never reaches the caller.
    """
    if not conf.current().wakeups:
        return
    connection = connections[using]
    if not connection.in_atomic_block and not connection.get_autocommit():
        return  # Whoever manages transactions by hand commits without telling us: the poll finds the runs.

    def send() -> None:
        if wakeup.kind == "cancel" or _has_token(wakeup):
            wake_now(using, wakeup)

    transaction.on_commit(send, using=using, robust=True)


def may_ride(using: str, wakeup: Wakeup) -> bool:
    """Return whether the statement that enqueues may send the wakeup: it is alone, and a token was there, now taken."""
    connection = connections[using]
    is_alone = not connection.in_atomic_block and connection.get_autocommit()
    return _may_notify(wakeup) and is_alone and _has_token(wakeup)


def awaited(wakeup: Wakeup) -> tuple[str | None, ...]:
    """Return the queue of which a dispatcher has to wait if the wakeup is to be sent; (None,): any; (): none has to."""
    if conf.current().notify != "idle" or wakeup.kind not in ("ready", "blocked"):
        return ()
    return (wakeup.value if wakeup.kind == "ready" else None,)


def wake_now(using: str, wakeup: Wakeup, *, is_notified: bool = False) -> None:
    """Send the wakeup on every way there is; ``is_notified``: PostgreSQL has sent it. Never raises."""
    if not is_notified and _may_notify(wakeup):
        _notify(using, wakeup)
    if "arq" in conf.current().wakeups:
        from .redis import ring

        ring(wakeup)


def _may_notify(wakeup: Wakeup) -> bool:
    settings = conf.current()
    return "pg_notify" in settings.wakeups and (settings.notify != "off" or wakeup.kind == "cancel")


def _notify(using: str, wakeup: Wakeup) -> None:
    """Send the wakeup in a statement of its own. One that cannot be sent is logged, and found by polling."""
    condition = awaited(wakeup)
    try:
        with connections[using].cursor() as cursor:
            cursor.execute(NOTIFY_IF_AWAITED if condition else NOTIFY, [CHANNEL, wakeup.encode(), *condition])
    except Exception:
        logger.warning("Wakeup %s could not be sent; it is found by polling", wakeup.encode(), exc_info=True)


def _has_token(wakeup: Wakeup) -> bool:
    now = time.monotonic()
    bucket = _buckets.get(wakeup)
    if bucket is None:
        if len(_buckets) >= MAX_BUCKETS:
            _buckets.clear()
        bucket = _buckets.setdefault(wakeup, TokenBucket(burst=BURST, per_second=PER_SECOND, now=now))
    return bucket.take(now)
