"""The LeaseKeeper: a thread, with a connection of its own, on which nothing but renewing happens. In the dispatcher.

It takes a lease, renews it, and after each renewal moves the deadline on the board: the moment *before* the renewal
was sent, plus the lease's time to live, less the margin. So the deadline is never later than what the database holds,
by any clock that does not run backwards. When the lease is lost it lowers the fence, says so once, and takes the next
one only when it is told that every body of the old one is dead.
"""

import logging
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from uuid import UUID, uuid4

from django.db import Error as DatabaseError

from ..conf import DispatchSettings
from ..executors.fence import NEVER, Board, now_ns
from ..store.base import Store
from ..store.values import NewLease
from ..store.vendors import open_store
from . import process
from .backoff import LONGEST_PAUSE_SECONDS, Backoff
from .trouble import Trouble

logger = logging.getLogger("django_dispatch.lease")


class LeaseKeeper:
    """Keeps one lease alive. ``on_acquired`` and ``on_lost`` are called on the keeper's thread, with the lease's id."""

    def __init__(
        self,
        store: Store,
        board: Board,
        template: NewLease,
        *,
        ttl_seconds: float,
        renew_seconds: float,
        margin_seconds: float,
        on_acquired: Callable[[UUID], None],
        on_lost: Callable[[UUID], None],
        trouble: Trouble,
    ) -> None:
        self._store = store
        self._board = board
        self._template = template
        self._ttl_seconds = ttl_seconds
        self._renew_seconds = renew_seconds
        self._margin_seconds = margin_seconds
        self._on_acquired = on_acquired
        self._on_lost = on_lost
        self._trouble = trouble
        trouble.on_relief(self._try_now)
        self._backoff = Backoff(longest_seconds=min(LONGEST_PAUSE_SECONDS, renew_seconds))
        self._lease_id: UUID | None = None
        self._deadline_ns = 0
        self._call_limit_ns = NEVER
        self._wake = threading.Event()
        self._may_acquire = True
        self._is_draining = False
        self._is_resting = False
        self._is_stopping = False
        self.acquired = self.renewed = 0
        """How often; counted on the keeper's thread alone."""
        self._thread = threading.Thread(target=self._keep, name="lease keeper", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def acquire_again(self) -> None:
        """Say that every body of the lost lease is dead."""
        self._may_acquire = True
        self._wake.set()

    def _try_now(self) -> None:
        self._wake.set()

    def drain(self) -> None:
        """Show on the lease that this dispatcher claims no more."""
        self._is_draining = True
        self._wake.set()

    def show_slots(self, slots: int) -> None:
        """Show on the lease how much room there is, from now on."""
        self._template = replace(self._template, slots=slots)
        self._wake.set()

    def rest(self) -> None:
        """Renew no more: the lease is about to be surrendered."""
        self._is_resting = True

    def break_off_if_stuck(self) -> None:
        """Break the connection if a call has been under way for too long. From the loop, every now and then."""
        if now_ns() >= self._call_limit_ns:
            self._call_limit_ns = NEVER
            self._store.abort()

    def stop(self) -> None:
        """End the thread; the lease stays as it is. Waits for at most a second."""
        self._is_stopping = True
        self._wake.set()
        self._store.abort()
        self._thread.join(timeout=1)

    def _keep(self) -> None:
        while not self._is_stopping:
            try:
                pause = self._step()
            except DatabaseError as error:
                if self._is_stopping:
                    break
                self._call_limit_ns = NEVER
                pause = self._backoff.next_seconds()
                self._trouble.failed("lease", error)
            except Exception:
                logger.exception("The lease keeper failed; it goes on.")
                pause = self._backoff.next_seconds()
            self._wake.wait(self._until_deadline(pause))
            self._wake.clear()
        self._store.close()

    def _step(self) -> float:
        """Renew the lease or acquire one; return how long to wait for the next step, in seconds."""
        if self._is_resting:
            return self._renew_seconds
        if self._lease_id is not None and now_ns() >= self._deadline_ns:
            self._lose("its deadline passed without a renewal")
        if self._lease_id is not None:
            self._renew(self._lease_id)
        elif self._may_acquire and not self._is_draining:
            self._acquire()
        return self._renew_seconds

    def _acquire(self) -> None:
        lease = replace(self._template, id=uuid4())
        began = self._begin_call()
        self._store.acquire(lease, ttl_seconds=self._ttl_seconds)
        self._end_call()
        self.acquired += 1
        self._lease_id = lease.id
        self._extend(lease.id, began)
        if now_ns() < self._deadline_ns:
            self._on_acquired(lease.id)

    def _renew(self, lease_id: UUID) -> None:
        began = self._begin_call()
        is_ours = self._store.renew(
            lease_id, ttl_seconds=self._ttl_seconds, is_draining=self._is_draining, slots=self._template.slots
        )
        self._end_call()
        if is_ours and now_ns() < self._deadline_ns:
            self.renewed += 1
            self._extend(lease_id, began)
        elif not self._is_resting:
            self._lose("it expired or was reclaimed" if not is_ours else "the renewal came after its deadline")

    def _begin_call(self) -> int:
        """Return the moment, by which the call is dated. It may take half of what is left: another one has as much."""
        now = now_ns()
        limit_ns = int(self._renew_seconds * 1e9)
        if self._lease_id is not None:
            limit_ns = min(limit_ns, (self._deadline_ns - now) // 2)
        self._call_limit_ns = now + limit_ns
        return now

    def _end_call(self) -> None:
        self._call_limit_ns = NEVER
        self._backoff.reset()
        self._trouble.succeeded("lease")

    def _extend(self, lease_id: UUID, began_ns: int) -> None:
        self._deadline_ns = began_ns + int((self._ttl_seconds - self._margin_seconds) * 1e9)
        self._board.raise_fence(lease_id.bytes, self._deadline_ns)

    def _lose(self, why: str) -> None:
        lease_id, self._lease_id = self._lease_id, None
        if lease_id is not None:
            self._may_acquire = False
            self._board.lower_fence()
            logger.error("Lease %s is lost: %s. Its bodies are stopped; their outcomes do not count.", lease_id, why)
            self._on_lost(lease_id)

    def _until_deadline(self, pause: float) -> float:
        if self._lease_id is None:
            return pause
        return max(0.0, min(pause, (self._deadline_ns - now_ns()) / 1e9))


def open_keeper(
    settings: DispatchSettings,
    board: Board,
    trouble: Trouble,
    *,
    boot_mark: str,
    version: str,
    on_acquired: Callable[[UUID], None],
    on_lost: Callable[[UUID], None],
) -> LeaseKeeper:
    """Return the keeper of this process's leases, which are known by ``boot_mark``; nothing is connected yet."""
    template = NewLease(
        id=UUID(int=0),
        node=settings.node,
        host=process.host_name(),
        pid=os.getpid(),
        process=process.identity(boot_mark),
        queues=list(settings.queues or ["*"]),
        slots=settings.processes + settings.async_concurrency,
        version=version,
    )
    return LeaseKeeper(
        open_store(settings.database, "keeper", statement_timeout_seconds=settings.renew_seconds),
        board,
        template,
        ttl_seconds=settings.lease_ttl_seconds,
        renew_seconds=settings.renew_seconds,
        margin_seconds=settings.margin_seconds,
        on_acquired=on_acquired,
        on_lost=on_lost,
        trouble=trouble,
    )
