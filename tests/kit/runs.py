"""Runs as tests ask about them: always as the database has them now."""

from collections.abc import Iterable

from django_dispatch.models import Run

from .waiting import wait_for


def fresh(run: Run) -> Run:
    """Return the run as it is now."""
    return Run.objects.get(pk=run.pk)


def wait_for_status(run: Run, *statuses: str, seconds: float = 20) -> Run:
    """Wait until a run has one of these statuses, and return it."""
    __tracebackhide__ = True
    wait_for(lambda: fresh(run).status in statuses, seconds, what=f"run {run.pk} {' or '.join(statuses)}")
    return fresh(run)


def wait_until_final(*runs: Run, seconds: float = 20) -> list[Run]:
    """Wait until every run has ended, and return them in the same order."""
    __tracebackhide__ = True
    ids = [run.pk for run in runs]
    unfinished = Run.objects.filter(pk__in=ids, finished_at=None).values_list("pk", "task", "status")
    wait_for(lambda: not unfinished.exists(), seconds, what=lambda: f"ended: {unfinished[:10]}")
    found = Run.objects.defer("args").in_bulk(ids)  # some are such that Python cannot read them
    return [found[pk] for pk in ids]


def statuses(runs: Iterable[Run]) -> list[str]:
    """Return the status of each run, now."""
    return [fresh(run).status for run in runs]
