"""The dispatcher's own finish-and-claim without a dispatcher: each statement timed, at a batch of one's choice."""

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from uuid import UUID, uuid4

from django_dispatch.store.postgres import PostgresStore, open_store
from django_dispatch.store.values import NewLease, Settlement


@dataclass
class Claimer:
    """A store and a lease of its own. What one exchange claimed, the next one finishes."""

    store: PostgresStore
    lease_id: UUID
    settlements: list[Settlement]

    @classmethod
    @contextlib.contextmanager
    def on(cls, alias: str) -> Iterator["Claimer"]:
        """Open one on a database of Django's."""
        store = open_store(alias, "bench", statement_timeout_seconds=60)
        lease_id = uuid4()
        try:
            store.acquire(NewLease(lease_id, "bench", "bench", 0, {}, ["*"], 1, ""), ttl_seconds=86_400)
            yield cls(store, lease_id, [])
        finally:
            store.close()

    def exchange(self, limit: int) -> float:
        """Finish what was claimed, claim so many more; return the milliseconds that it took."""
        began = time.perf_counter()
        exchange = self.store.exchange(self.lease_id, self.settlements, queues=["default"], limit=limit)
        took = time.perf_counter() - began
        if len(exchange.claimed) != limit or exchange.refused:
            taken, refused = len(exchange.claimed), len(exchange.refused)
            raise RuntimeError(f"{taken} of {limit} runs were claimed, {refused} outcomes refused.")
        self.settlements = [Settlement(run.id, run.epoch, "SUCCESSFUL", result="null") for run in exchange.claimed]
        return took * 1000

    def admit(self, key: str) -> float:
        """Admit the next one at a key, and have it end; return the milliseconds that the admission took."""
        began = time.perf_counter()
        admitted = self.store.admit([key], most=100, queue_limits="{}")
        took = time.perf_counter() - began
        claimed = self.store.exchange(self.lease_id, [], queues=admitted.queues, limit=1).claimed
        if len(claimed) != 1 or claimed[0].concurrency_key != key:
            raise RuntimeError(f"Nobody was admitted at {key}.")
        done = [Settlement(run.id, run.epoch, "SUCCESSFUL", result="null") for run in claimed]
        self.store.exchange(self.lease_id, done, queues=(), limit=0)
        return took * 1000

    def renew(self) -> float:
        """Renew the lease; return the milliseconds that it took."""
        began = time.perf_counter()
        if not self.store.renew(self.lease_id, ttl_seconds=86_400, is_draining=False):
            raise RuntimeError("The lease was lost.")
        return (time.perf_counter() - began) * 1000
