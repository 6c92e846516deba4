"""Rules of when a run is tried again. Pure: delays are seconds from now, which is the database's business."""

FIRST_RETRY_SECONDS = 1.0
LONGEST_DELAY_SECONDS = 3600.0
UNKNOWN_TASK_SECONDS = 30.0


def after_failure(failures: int) -> float:
    """Return the delay after the ``failures``-th failure, counted from 1: 1, 2, 4, 8 … seconds, at most an hour."""
    return min(FIRST_RETRY_SECONDS * 2.0 ** min(failures - 1, 30), LONGEST_DELAY_SECONDS)


def after_loss(interruptions: int) -> float:
    """Return the delay after the ``interruptions``-th loss of an executor, from 1: none, then 2, 4, 8 … seconds."""
    return 0.0 if interruptions <= 1 else min(2.0 ** min(interruptions - 1, 30), LONGEST_DELAY_SECONDS)


def after_unknown_task(interruptions: int) -> float:
    """Return how long to hold a run whose task is not known here: a newer dispatcher may be on its way (30, 90 … s)."""
    return min(UNKNOWN_TASK_SECONDS * 3.0 ** min(interruptions - 1, 10), LONGEST_DELAY_SECONDS)
