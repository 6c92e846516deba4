"""The smallest bodies there are."""

import time

from django_dispatch import TaskContext, task
from testproject.bench import marks


@task
def noop(index: int) -> None:
    """Do nothing, in an executor of its own."""


@task
async def anoop(index: int) -> None:
    """Do nothing, on an event loop."""


@task
def mark(index: int) -> None:
    """Say when the body began."""
    marks.mark(index)


@task
def nap(index: int, seconds: float) -> None:
    """Say when the body began and ended, and sleep in between."""
    marks.mark(index)
    if seconds:
        time.sleep(seconds)
    marks.mark_end(index)


@task
def long_nap(index: int, seconds: float) -> None:
    """Do the same, as a task that is known to take long."""
    nap.function(index, seconds)


@task(bind=True)
def hold(context: TaskContext, index: int) -> None:
    """Say when the body began the first time, and wait to be killed; say when it began again, and end."""
    if context.epoch == 1:
        marks.mark(index)
        time.sleep(120)
    marks.mark_end(index)
