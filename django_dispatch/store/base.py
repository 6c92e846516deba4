"""The verbs of the store: every way in which a run or a lease may change, in any process.

Each verb is one statement (or one per chunk), guarded, with the row count checked, by the database's clock. All are
synchronous and may be called from any thread; enqueue, cancel and rerun join the caller's transaction on ``using``.
"""

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class NewRun:
    """A run to be recorded. ``args``, ``kwargs`` and ``meta`` are JSON texts; a None leaves it to the database or task.

    ``delay_seconds`` counts from now by the database's clock; at most one of it and ``run_after`` is given.
    """

    task: str
    args: str = "[]"
    kwargs: str = "{}"
    queue: str = "default"
    priority: int = 0
    run_after: datetime | None = None
    delay_seconds: float | None = None
    max_attempts: int | None = None
    timeout_seconds: float | None = None
    on_lost: str = "requeue"
    meta: str = "{}"
