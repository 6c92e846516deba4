"""Tasks with schedules, as two versions of a project have them."""

import os
from datetime import timedelta

from django_dispatch import Cron, Every, TaskContext, task

IS_NEWER = os.environ.get("KIT_CODE") == "newer"


@task(bind=True)
def when(ctx: TaskContext) -> str | None:
    """Return which occurrence this is."""
    return ctx.scheduled_for and ctx.scheduled_for.isoformat()


@task(on_start=True, priority=5)
def warm_up() -> None:
    """Run once for each start of a dispatcher."""


@task(on_start=True, queue="elsewhere")
def warm_up_elsewhere() -> None:
    """Run once for each start of a dispatcher of another queue."""


@task(schedule=[Cron("0 4 * * *" if IS_NEWER else "0 3 * * *", tz="Europe/Paris"), Every(hours=1, args=["hourly"])])
def report(kind: str = "nightly") -> str:
    return kind


if os.environ.get("KIT_CODE") == "limited":

    @task(
        bind=True,
        every=timedelta(seconds=1),
        on_start=True,
        concurrency=1,
        expires=3600,
        key=lambda name="by": f"{name}!",
    )
    def one_by_function(ctx: TaskContext, name: str = "by") -> None:
        """Keep to a limit by a key that only this code knows."""


if not IS_NEWER:

    @task(every=timedelta(days=7))
    def removed() -> None:
        """Be gone from the newer version."""
