"""Tasks that fail and say when they are to be tried again, as tests have them do."""

import logging
import os
import signal
from datetime import timedelta
from typing import Any

from django.db import connection, transaction

import django_dispatch
from django_dispatch import Exponential, Retry, TaskContext, task

from .ledger import Entry

logger = logging.getLogger("kit")


class Passing(Exception):
    """Something that will be better soon."""


class Fatal(Passing):
    """Something that never will."""


def backoff_by_the_book(failures: int, error: BaseException) -> Any:
    """Return what the error asks for."""
    if error.args[:1] == ("raise",):
        raise RuntimeError("no idea")
    return {
        "timedelta": timedelta(milliseconds=50) * failures,
        "none": None,
        "negative": -5,
        "nan": float("nan"),
        "text": "soon",
        "bool": True,
        "huge": 1e300,
    }[error.args[0]]


@task(bind=True, max_attempts=4, backoff=Exponential(0.2, jitter=0.5))
def fails(ctx: TaskContext) -> None:
    """Fail each time."""
    with Entry(ctx):
        raise ValueError(f"failure {ctx.attempt}")


@task(bind=True, max_attempts=3, backoff=backoff_by_the_book)
def fails_by_the_book(ctx: TaskContext, asks: str) -> None:
    """Raise an error that asks for a delay."""
    with Entry(ctx):
        raise Passing(asks)


@task(bind=True, max_attempts=2, backoff=0, retry_on=Passing, no_retry_on=(Fatal,))
def fails_with(ctx: TaskContext, name: str) -> None:
    """Raise an error of this type."""
    with Entry(ctx):
        raise {"Passing": Passing, "Fatal": Fatal, "ValueError": ValueError}[name]("as it was told to")


@task(bind=True, max_attempts=3, backoff=0)
def decides(ctx: TaskContext, *steps: list[Any]) -> Any:
    """Do what the n-th step says, ``[how, name, options]``; the last one for ever."""
    with Entry(ctx):
        return _decide(ctx, steps)


@task(bind=True, max_attempts=3, backoff=0)
async def adecides(ctx: TaskContext, *steps: list[Any]) -> Any:
    with Entry(ctx):
        return _decide(ctx, steps)


@task(bind=True, max_attempts=2, backoff=0)
def retries_for_a_reason(ctx: TaskContext) -> None:
    """Ask for another attempt while handling an error."""
    with Entry(ctx):
        try:
            raise Passing("no answer")
        except Passing as error:
            raise Retry(after=0.01) from error


@task(bind=True, max_attempts=3, retry_on_timeout=False, timeout=0.3)
def times_out(ctx: TaskContext, gate: str) -> None:
    """Wait at a gate for longer than it may."""
    with Entry(ctx) as entry:
        entry.wait_at(gate)


@task(bind=True, max_attempts=2, timeout=0.3, backoff=lambda failures, error: None)
def hangs(ctx: TaskContext) -> None:
    """Be deaf to every stop, so that no backoff function can be asked."""
    with Entry(ctx):
        signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        signal.sigwait([signal.SIGUSR2])


@task(bind=True)
def logs_and_dies(ctx: TaskContext, lines: int) -> None:
    """Log so many lines, then kill the executor."""
    with Entry(ctx):
        for number in range(lines):
            logger.warning("line %s", number)
        os.kill(os.getpid(), signal.SIGKILL)


@task(bind=True, atomic=True, max_attempts=3, backoff=0)
def has_effect(ctx: TaskContext, end: str = "") -> str:
    """Write a row, then, the first time, end as one is told to; a gate is waited at before."""
    with Entry(ctx) as entry, connection.cursor() as cursor:
        cursor.execute("INSERT INTO kit_effect (run_id, attempt) VALUES (%s, %s)", [ctx.run_id, ctx.attempt])
        if ctx.attempt == 1:
            _end_effect(entry, end)
    return f"attempt {ctx.attempt}"


def _end_effect(entry: Entry, end: str) -> None:
    if end == "raise":
        raise Passing("after the effect")
    if end == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if end == "die after the commit":
        transaction.on_commit(lambda: os.kill(os.getpid(), signal.SIGKILL))
    if end.startswith("gate"):
        entry.wait_at(end)


@task(bind=True)
async def akills(ctx: TaskContext, gate: str) -> None:
    """Wait at a gate, then kill the executor, with all who are in it."""
    with Entry(ctx) as entry:
        await entry.await_at(gate)
        os.kill(os.getpid(), signal.SIGKILL)


def _decide(ctx: TaskContext, steps: tuple[list[Any], ...]) -> Any:
    how, *rest = steps[min(ctx.attempt, len(steps)) - 1]
    if how == "done":
        return ctx.attempt
    name, options = rest
    decision = getattr(django_dispatch, name)(**options)
    if how == "raise":
        raise decision
    return decision
