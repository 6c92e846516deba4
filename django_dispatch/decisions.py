"""What a body may decide about its run, by raising it or by returning it: Retry, Snooze, Cancel. In executors.

They are ordinary exceptions: a body that calls ``except Exception`` around them decides something else.
"""

from datetime import timedelta

from .arguments import is_storable
from .enqueue import check_priority, check_queue
from .exceptions import DispatchError, InvalidOption
from .retry import as_seconds


class Decision(DispatchError):
    """The base of the three."""


class Retry(Decision):
    """This attempt failed; try again, unless it was the last one that ``max_attempts`` allows.

    ``after`` is a timedelta or seconds; None leaves it to the task's backoff. ``queue`` and ``priority`` take the place
    of the run's own. Raises InvalidOption.
    """

    after_seconds: float | None = None
    queue: str | None = None
    priority: int | None = None

    def __init__(
        self,
        after: timedelta | float | None = None,
        *,
        queue: str | None = None,
        priority: int | None = None,
    ) -> None:
        self.after_seconds = None if after is None else _checked("Retry", after)
        self.queue = None if queue is None else check_queue(queue)
        self.priority = None if priority is None else check_priority(priority)
        super().__init__("The body asked for another attempt.")


class Snooze(Decision):
    """Run this again later: neither a success nor a failure, and as often as it likes.

    ``after`` is a timedelta or seconds. Raises InvalidOption.
    """

    after_seconds: float = 0.0

    def __init__(self, after: timedelta | float) -> None:
        self.after_seconds = _checked("Snooze", after)
        super().__init__("The body asked to be run again later.")


class Cancel(Decision):
    """This run is not to be done, now or later: CANCELLED, for this reason. Raises InvalidOption."""

    def __init__(self, reason: str = "") -> None:
        if not isinstance(reason, str) or not is_storable(reason):
            raise InvalidOption(f"Cancel: reason must be a str without NUL and lone surrogates, not {reason!r}.")
        super().__init__(reason or "The body cancelled its run.")


def _checked(name: str, after: object) -> float:
    seconds = as_seconds(after)
    if seconds is None:
        raise InvalidOption(
            f"{name}: after must be a timedelta or a number of seconds from 0 to 100 years, not {after!r}."
        )
    return seconds
