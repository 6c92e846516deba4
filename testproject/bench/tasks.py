"""The smallest bodies there are."""

from django_dispatch import task
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
