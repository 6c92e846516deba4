"""The two lanes of a dispatcher, synchronous and asynchronous: neither is slow for the other's sake."""

from itertools import pairwise

from django_dispatch.dispatcher.pace import SECOND_LOOKS_SECONDS
from django_dispatch.models import Run
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.waiting import wait_for


def test_many_async_runs_are_claimed_without_a_timer_in_between(kit: Kit) -> None:
    """The one free executor of the other lane bounds each claim to one run; so one must follow upon the other."""
    runs = tasks.linger.delay_many([()] * 60)
    kit.dispatchers(async_concurrency=100, poll_interval=5, lease_ttl=15)
    running = Run.objects.filter(id__in=[run.id for run in runs], status="RUNNING")
    wait_for(lambda: running.count() == len(runs), 60, what="all of them running")
    moments = sorted(running.values_list("started_at", flat=True))
    gaps = sorted((after - before).total_seconds() for before, after in pairwise(moments))
    assert gaps[len(gaps) // 4] < 0.9 * SECOND_LOOKS_SECONDS[0], gaps
