"""django-dispatch for a harness that measures task queues side by side; README.md says what the harness must have.

This file is all there is: the harness imports it as a peer, and Django as its settings, in each process.
"""

import os
from collections.abc import Iterable
from typing import Any

from common import DB, PG_PORT, Peer, hit

from django_dispatch import task

# Django's settings

SECRET_KEY = "a benchmark has no secrets"
USE_TZ = True
INSTALLED_APPS = ["django_dispatch"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": DB,
        "USER": "postgres",
        "HOST": "127.0.0.1",
        "PORT": PG_PORT,
        "CONN_MAX_AGE": None,
    }
}

# The peer

IS_ASYNC = bool(os.environ.get("BENCH_ASYNC_BODIES"))


@task
def noop(index: int) -> None:
    """Say that it ran, in a process of its own."""
    hit(index)


@task
async def anoop(index: int) -> None:
    """Say that it ran, on an event loop."""
    hit(index)


class P(Peer):
    """Synchronous bodies in isolated processes, or with BENCH_ASYNC_BODIES asynchronous ones on one event loop."""

    dists = ["django-dispatch", "Django", "psycopg"]
    bulk_note = "delay_many(), one transaction"
    remaining_sql = "SELECT count(*) FROM django_dispatch_run WHERE status IN ('READY', 'RUNNING')"
    configs = (
        {"async, one event loop": {"processes": 1}}
        if IS_ASYNC
        else {
            "sync, 2 processes": {"processes": 2, "async_concurrency": 0},
            "sync, 1 process": {"processes": 1, "async_concurrency": 0},
            "sync, 2 dispatchers of 1 process": {"processes": 1, "async_concurrency": 0, "procs": 2},
        }
    )
    latency_config = next(iter(configs))

    def setup(self) -> None:
        """Make the tables."""
        self.open()
        from django.core.management import call_command

        call_command("migrate", verbosity=0)

    def open(self) -> None:
        """Get ready to enqueue."""
        os.environ["DJANGO_SETTINGS_MODULE"] = __name__
        import django

        django.setup()
        self.task = anoop if IS_ASYNC else noop

    def enqueue_many(self, ids: Iterable[int]) -> None:
        self.task.delay_many((index,) for index in ids)

    def enqueue_one(self, index: int) -> None:
        self.task.delay(index)

    def worker(self, **options: Any) -> None:
        """Serve until SIGTERM."""
        self.open()
        from django.core.management import call_command

        call_command("rundispatcher", reload=False, verbosity=0, **options)
