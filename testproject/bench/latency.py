"""How long it takes from an enqueue to the first line of the body, and from a bare NOTIFY to its listener."""

import threading
import time

import psycopg

from testproject.bench import marks, tasks
from testproject.bench.drain import manage

PAUSE_SECONDS = 0.05
SETTLE_SECONDS = 30.0


def measure(url: str, samples: int) -> tuple[list[float], list[float]]:
    """Return milliseconds of ``samples`` enqueues to an idle dispatcher, and of as many bare ones between them."""
    dispatcher = manage(url, "rundispatcher", "-v0", "--no-reload", "--processes=2")
    try:
        _enqueue_and_wait(0)  # the dispatcher is up
        _enqueue_and_wait(0)
        with _Bare(url) as bare:
            ours, theirs = [], []
            for _ in range(samples):
                ours.append(_enqueue_and_wait(1))
                time.sleep(PAUSE_SECONDS / 2)
                theirs.append(bare.once())
                time.sleep(PAUSE_SECONDS / 2)
        return ours, theirs
    finally:
        dispatcher.terminate()
        dispatcher.wait()


def _enqueue_and_wait(index: int) -> float:
    """Enqueue a run; return the milliseconds until its body began."""
    before = time.monotonic_ns()
    tasks.mark.delay(index)
    deadline = time.monotonic() + SETTLE_SECONDS
    while marks.marked_at(index) < before:
        if time.monotonic() > deadline:
            raise RuntimeError(f"The run did not start within {SETTLE_SECONDS:g} s.")
        time.sleep(0.0002)
    return (marks.marked_at(index) - before) / 1e6


class _Bare:
    """One insert that notifies in its own transaction, and a thread that listens."""

    def __init__(self, url: str) -> None:
        self._sender = psycopg.connect(url, autocommit=True, prepare_threshold=0)
        self._sender.execute("CREATE TABLE IF NOT EXISTS bench_bare (id bigserial, args jsonb)")
        self._listener = psycopg.connect(url, autocommit=True)
        self._listener.execute("LISTEN bench_bare")
        self._heard_at = 0
        self._heard = threading.Event()
        self._thread = threading.Thread(target=self._listen, daemon=True)
        self._thread.start()

    def __enter__(self) -> "_Bare":
        self.once()
        return self

    def __exit__(self, *_: object) -> None:
        self._sender.execute("NOTIFY bench_bare, 'stop'")
        self._thread.join()
        self._sender.close()
        self._listener.close()

    def once(self) -> float:
        """Insert and notify; return the milliseconds until the listener woke."""
        self._heard.clear()
        before = time.monotonic_ns()
        self._sender.execute(
            "WITH i AS (INSERT INTO bench_bare (args) VALUES ('[1]') RETURNING id)"
            " SELECT pg_notify('bench_bare', id::text) FROM i"
        )
        if not self._heard.wait(SETTLE_SECONDS):
            raise RuntimeError("The bare listener heard nothing.")
        return (self._heard_at - before) / 1e6

    def _listen(self) -> None:
        for notify in self._listener.notifies():
            self._heard_at = time.monotonic_ns()
            self._heard.set()
            if notify.payload == "stop":
                return
