"""How long runs take, learnt as they end: who is tiny is sent ahead, who is short claimed ahead. In the dispatcher."""

TINY_SECONDS = 0.02
SHORT_SECONDS = 0.05
AHEAD_SECONDS = 0.02  # how much work may wait in an executor's socket
LEAST_SECONDS = 0.00005  # what even an empty body costs, all told
WEIGHT = 0.2  # of the newest duration in the moving average


class Durations:
    """Moving averages of body durations, a task and overall, in seconds. Bounded by the number of tasks."""

    def __init__(self) -> None:
        self._of_task: dict[str, float] = {}
        self._overall: float | None = None

    def learn(self, task: str, seconds: float) -> None:
        """Take in the duration of a body that ended, or has run for so long already."""
        known = self._of_task.get(task)
        self._of_task[task] = seconds if known is None else known + WEIGHT * (seconds - known)
        overall = self._overall
        self._overall = seconds if overall is None else overall + WEIGHT * (seconds - overall)

    def is_tiny(self, task: str) -> bool:
        """Return whether a run of this task may wait behind others: it has proved short."""
        seconds = self._of_task.get(task)
        return seconds is not None and seconds < TINY_SECONDS

    def ahead(self, most: int, capacity: int = 1) -> int:
        """Return how many runs, at most ``most``, may be sent ahead to an executor of so many at once, as runs go."""
        if self._overall is None or self._overall >= TINY_SECONDS:
            return 0
        return min(most, int(capacity * AHEAD_SECONDS / max(self._overall, LEAST_SECONDS)))

    def is_short(self, task: str) -> bool:
        """Return whether runs of this task have proved so short that one may wait for the end of another."""
        seconds = self._of_task.get(task)
        return seconds is not None and seconds < SHORT_SECONDS
