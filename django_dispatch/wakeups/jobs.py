"""A wakeup as an arq job: where it lies in Redis, under which id, and who is told of it; pure, in every process.

A job waits in a queue of arq's kind (a sorted set of job ids) until some dispatcher takes it, which passes it on to all
by PUBLISH: whoever takes it may be full, or serve other queues. One id waits once, however often it is put there.
Neither the taker nor anybody else ever reads what the job holds: its id says everything.
"""

import json
import time
from typing import Any

from .base import Wakeup

QUEUE = CHANNEL = "django_dispatch:wakeups"
FUNCTION = "django_dispatch_wakeup"
JOB_KEY = "arq:job:"
JOB_ID = "django_dispatch:"
# A job that was left behind, by a taker that died say, swallows its like for as long; nobody wants older ones.
JOB_SECONDS = 1.0
QUEUE_SECONDS = 60.0


def job_id(wakeup: Wakeup) -> str:
    """Return the id of the job that carries this wakeup."""
    return JOB_ID + wakeup.encode()


def wakeup_of(found: str) -> Wakeup | None:
    """Return what a job id says; None if it is none of ours, for anybody may put anything there."""
    return Wakeup.parse(found.removeprefix(JOB_ID)) if found.startswith(JOB_ID) else None


def put(pipe: Any, wakeup: Wakeup) -> None:
    """Add the commands that put a job, to a pipeline of a client of either kind."""
    now_ms, name = time.time_ns() // 1_000_000, job_id(wakeup)
    pipe.psetex(JOB_KEY + name, round(JOB_SECONDS * 1000), body(FUNCTION, wakeup.value, now_ms))
    pipe.zadd(QUEUE, {name: now_ms})
    pipe.pexpire(QUEUE, round(QUEUE_SECONDS * 1000))


def pass_on(pipe: Any, wakeup: Wakeup, taker: str) -> None:
    """Add the commands of who has taken a job: first the next of its id may come, then everybody is told of this."""
    pipe.delete(JOB_KEY + job_id(wakeup))
    pipe.publish(CHANNEL, f"{taker} {wakeup.encode()}")


def read(message: str) -> tuple[str, Wakeup | None]:
    """Return who has passed a wakeup on, and the wakeup; None if it is none."""
    taker, _, payload = message.partition(" ")
    return taker, Wakeup.parse(payload)


def serialize(job: dict[str, Any]) -> bytes:
    """Return a job as JSON: arq would pickle it."""
    return json.dumps(job).encode()


def body(function: str, value: str, now_ms: int) -> bytes:
    """Return what a job holds, for those who look at arq's queues."""
    return serialize({"t": None, "f": function, "a": [value], "k": {}, "et": now_ms})
