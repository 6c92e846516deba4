"""The verbs of a lease, for those who run runs by a loop of their own. In their process; nothing here runs by itself.

A dispatcher does all this and more: it renews in time whatever bodies do, kills them before the lease expires, and
takes back what others have lost. Whoever drives a lease by hand has to see to that.
"""

import os
import socket
from collections.abc import Sequence
from types import TracebackType
from typing import Self
from uuid import UUID, uuid4

from . import conf
from .store.values import ClaimedRun, NewLease, Reclaimed, Settlement
from .store.vendors import open_store

RECLAIM_GRACE_SECONDS = 2.0


class LeaseManager:
    """The store's verbs on a session of its own, for one thread. Each is one or two guarded statements.

    By default on ``DISPATCH["DATABASE"]`` and for ``LEASE_TTL``. Each may raise ``django.db.Error``; repeating it is
    safe, and connects again. Use as a context manager, or ``close()``.
    """

    def __init__(self, *, database: str | None = None, ttl_seconds: float | None = None, node: str | None = None):
        settings = conf.current()
        self._ttl_seconds = ttl_seconds or settings.lease_ttl_seconds
        self._max_interruptions = settings.max_interruptions
        self._node = node or settings.node
        self._store = open_store(
            database or settings.database, "leases", statement_timeout_seconds=self._ttl_seconds / 3
        )

    def acquire(self, *, queues: Sequence[str] = ("*",), slots: int = 1) -> UUID:
        """Take a lease and return its id. ``queues`` and ``slots`` are shown to people and bind nobody."""
        lease = NewLease(
            id=uuid4(),
            node=self._node,
            host=socket.gethostname(),
            pid=os.getpid(),
            process={},  # nobody takes us for dead before the lease expires
            queues=list(queues),
            slots=slots,
            version="",
        )
        self._store.acquire(lease, ttl_seconds=self._ttl_seconds)
        return lease.id

    def renew(self, lease_id: UUID) -> bool:
        """Extend a lease. False: it has expired, and what was claimed under it is others' now: stop working at it."""
        return self._store.renew(lease_id, ttl_seconds=self._ttl_seconds, is_draining=False)

    def claim(self, lease_id: UUID, queues: Sequence[str], *, limit: int = 1) -> Sequence[ClaimedRun]:
        """Claim up to ``limit`` READY runs of these queues; none unless the lease is live by the database's clock."""
        return self._store.exchange(lease_id, [], queues=queues, limit=limit).claimed

    def finish(self, lease_id: UUID, settlements: Sequence[Settlement]) -> Sequence[int]:
        """Write outcomes; return the ids of runs for which that did not count, or must be done again.

        An outcome counts only where the run is still held by this lease with this epoch.
        """
        done = self._store.exchange(lease_id, settlements, queues=[], limit=0)
        return [*done.refused, *done.busy]

    def release(self, lease_id: UUID) -> bool:
        """Give back every run that the lease holds, unharmed and at no cost of an attempt, and delete the lease.

        False: the lease was gone already, or some run is held by another transaction; those are reclaimed.
        """
        held = [Settlement(pk, epoch, "READY", was_started=False) for pk, epoch in self._store.held(lease_id)]
        if held:
            self._store.exchange(lease_id, held, queues=[], limit=0)
        return self._store.surrender(lease_id)

    def reclaim(self) -> Sequence[Reclaimed]:
        """Take back the runs of leases that have expired, whoever's, or that do not exist; return what they became."""
        return self._store.reclaim(grace_seconds=RECLAIM_GRACE_SECONDS, max_interruptions=self._max_interruptions)

    def close(self) -> None:
        """Close the session. Leases stay until they are released or expire."""
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
