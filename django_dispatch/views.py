"""Metrics of a process of the web: what it enqueues, and what the database has. In the web process."""

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence

from django.db import Error as DatabaseError
from django.db import transaction
from django.http import HttpRequest, HttpResponse

from . import conf
from .metrics import HINT, can_be_exposed
from .metrics.backlogs import FRESH_SECONDS, PATIENCE_SECONDS, SHARE, backlog_families
from .metrics.enqueued import enqueued
from .metrics.families import Family, gauge
from .store.values import Backlog
from .store.vendors import open_store

STATEMENT_SECONDS = 2.0

logger = logging.getLogger("django_dispatch.metrics")


@transaction.non_atomic_requests
def metrics(request: HttpRequest) -> HttpResponse:
    """Return the figures as Prometheus reads them. Anybody may ask: protect it, for it names tasks and queues."""
    if not can_be_exposed():
        return HttpResponse(f"Metrics need prometheus-client: {HINT}\n", status=501, content_type="text/plain")
    from .metrics.exposition import render

    _database.refresh()
    body, content_type = render(_families(), request.headers.get("Accept", ""))
    return HttpResponse(body, content_type=content_type)


def _families() -> Iterator[Family]:
    yield enqueued.family()
    yield gauge(
        "django_dispatch_leases", "Dispatchers whose lease is live, by its state.", ("state",), _database.leases
    )
    yield from backlog_families(_database.backlogs, _database.age_seconds)


class _Database:
    """What the database said last, asked on a thread and a session of its own, so that a scrape waits for neither."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._not_before = float("-inf")
        self._known_at: float | None = None
        self.backlogs: Sequence[Backlog] = ()
        self.leases: Mapping[str, int] = {}

    @property
    def age_seconds(self) -> float | None:
        return None if self._known_at is None else time.monotonic() - self._known_at

    def refresh(self) -> None:
        """Ask, unless that was done a moment ago; return when there is an answer, or patience is at an end."""
        with self._lock:
            is_asking = self._thread is not None and self._thread.is_alive()
            if not is_asking and time.monotonic() >= self._not_before:
                self._thread = threading.Thread(target=self._ask, name="django_dispatch metrics", daemon=True)
                self._thread.start()
            thread = self._thread
        if thread is not None:
            thread.join(PATIENCE_SECONDS)

    def _ask(self) -> None:
        began = time.monotonic()
        store = open_store(conf.current().database, "metrics", statement_timeout_seconds=STATEMENT_SECONDS)
        try:
            self.backlogs, self.leases = store.backlogs(), store.live_leases()
            self._known_at = now = time.monotonic()
            self._not_before = now + max(FRESH_SECONDS, (now - began) / SHARE)
        except DatabaseError as error:
            self._not_before = time.monotonic() + FRESH_SECONDS
            logger.warning("The backlogs cannot be asked for: %s", str(error).strip().split("\n", 1)[0])
        finally:
            store.close()


_database = _Database()
