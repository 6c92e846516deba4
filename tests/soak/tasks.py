"""The bodies of the soak. The first argument of each is a key, by which the audit knows the run. In executors."""

import asyncio
import ctypes
import os
import signal
import subprocess
import time
from typing import Any, NoReturn

from django.db import connection, transaction

from django_dispatch import RunStopped, task

from .ledger import Entry, arecorded, recorded

BEAT_SECONDS = 0.05


@task(bind=True)
@recorded
def tiny(entry: Entry, key: str) -> str:
    return key


@task(bind=True)
@arecorded
async def atiny(entry: Entry, key: str) -> str:
    return key


@task(bind=True)
@recorded
def naps(entry: Entry, key: str, seconds: float) -> str:
    """Work for a while, reporting progress."""
    nap(entry, seconds)
    return key


@task(bind=True)
@arecorded
async def anaps(entry: Entry, key: str, seconds: float) -> str:
    await anap(entry, seconds)
    return key


@task(bind=True, on_lost="fail")
@recorded
def once(entry: Entry, key: str, seconds: float) -> str:
    """Never start twice."""
    nap(entry, seconds)
    return key


@task(bind=True)
@recorded
def fails(entry: Entry, key: str) -> NoReturn:
    raise ValueError(f"{key}: \x00 and \ud800")


@task(bind=True)
@recorded
def flaky(entry: Entry, key: str, failures: int) -> int:
    """Raise so many times, as far as it can tell."""
    if entry.attempt <= failures:
        raise ValueError(key)
    return entry.attempt


@task(bind=True)
@recorded
def hangs(entry: Entry, key: str) -> NoReturn:
    """Never return; heed a stop."""
    while True:
        nap(entry, 60)


@task(bind=True)
@arecorded
async def ahangs(entry: Entry, key: str) -> NoReturn:
    while True:
        await anap(entry, 60)


@task(bind=True)
@recorded
def stubborn(entry: Entry, key: str) -> NoReturn:
    """Never return, whoever says to stop."""
    while True:
        try:
            nap(entry, 60)
        except RunStopped:
            continue


@task(bind=True)
@recorded
def crashes(entry: Entry, key: str, how: str, times: int) -> str:
    """Take the executor down so many times."""
    if entry.attempt <= times:
        crash(how)
    return key


@task(bind=True)
@arecorded
async def acrashes(entry: Entry, key: str, how: str, times: int) -> str:
    if entry.attempt <= times:
        crash(how)
    return key


@task(bind=True)
@recorded
def returns(entry: Entry, key: str, what: str) -> Any:
    """Return what is awkward."""
    match what:
        case "nul":
            return {"key": f"{key}\x00", "lone": "\ud800"}
        case "big":
            return {"key": key, "big": "x" * 200_000}
        case _:
            return object()


@task(bind=True)
@recorded
def holds(entry: Entry, key: str, seconds: float) -> str:
    """Work inside a transaction, which leaves a row if it is committed."""
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("INSERT INTO soak_effect (run_id, epoch) VALUES (%s, %s)", [entry.run_id, entry.epoch])
        nap(entry, seconds)
        cursor.execute("SELECT pg_sleep(0.05)")
    return key


@task(bind=True)
@recorded
def follows(entry: Entry, key: str) -> str:
    """Look for the row that was written with the enqueue of this run: it must be there."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT count(*) FROM soak_order WHERE key = %s", [key])
        if cursor.fetchone() != (1,):
            entry.note("came before its row")
    return key


@task(bind=True)
@recorded
def spawns(entry: Entry, key: str, seconds: float) -> str:
    """Run a program that outlasts the body."""
    with subprocess.Popen(["sleep", "600"]) as program:
        try:
            nap(entry, seconds)
        finally:
            program.kill()
    return key


def nap(entry: Entry, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        entry.beat()
        entry.context.progress(1)
        time.sleep(BEAT_SECONDS)


async def anap(entry: Entry, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        entry.beat()
        await asyncio.sleep(BEAT_SECONDS)


def crash(how: str) -> None:
    match how:
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(0)
        case "abort":
            os.abort()
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)
