"""The end of a dispatcher: drain, stop, write, surrender the lease. On the dispatcher's loop."""

import asyncio
import logging
from collections.abc import Callable

from django.db import Error as DatabaseError

from ..messages import Kind, Stop
from .claims import Claims
from .lease import LeaseKeeper
from .pool import Pool
from .store_thread import StoreThread
from .watch import Watch

LOOK_SECONDS = 0.01
HASTY_GRACE_SECONDS = 1.0
SHOWN = 5
KILL_SECONDS = 5.0  # by when the kernel has surely ended what was killed
LAST_WRITES_SECONDS = 10.0

logger = logging.getLogger("django_dispatch.dispatcher")


async def until(condition: Callable[[], bool], *, seconds: float, unless: asyncio.Event | None = None) -> bool:
    """Wait until ``condition()`` holds, at most ``seconds``, or until ``unless`` is set; return whether it holds."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    while not condition():
        if loop.time() >= deadline or (unless is not None and unless.is_set()):
            return False
        await asyncio.sleep(LOOK_SECONDS)
    return True


async def drain(pool: Pool, watch: Watch, claims: Claims, *, patience_seconds: float, hurry: asyncio.Event) -> None:
    """Give back what has not started, let bodies end in their time, then stop and hand back the rest."""
    claims.is_claiming = False
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_seconds
    await until(lambda: not claims.is_under_way, seconds=LAST_WRITES_SECONDS)  # what is being claimed arrives first
    for executor in pool.executors.values():
        pool.take_back_from(executor)
    for kind in Kind:
        pool.release_waiting(kind, older_than=float("inf"))
    if await until(lambda: not pool.flights(), seconds=deadline - loop.time(), unless=hurry):
        return
    names = ", ".join(f"{flight.run.id} {flight.run.task}" for flight in pool.flights()[:SHOWN])
    logger.warning("Still running, and stopped now: %s runs (%s …).", len(pool.flights()), names)
    if not hurry.is_set() and await _stop_all(pool, watch, watch.grace_seconds, hurry):
        return
    await _stop_all(pool, watch, min(watch.grace_seconds, HASTY_GRACE_SECONDS), None)


async def _stop_all(pool: Pool, watch: Watch, grace_seconds: float, unless: asyncio.Event | None) -> bool:
    """Tell every body to end, have the watch kill those that do not within the grace; return whether all are gone."""
    loop = asyncio.get_running_loop()
    watch.grace_seconds = grace_seconds
    for executor in list(pool.executors.values()):
        for flight in list(executor.flights.values()):
            watch.stop(executor, flight, Stop.SHUTDOWN, loop.time())
    return await until(lambda: not pool.flights(), seconds=grace_seconds + KILL_SECONDS, unless=unless)


async def surrender(claims: Claims, keeper: LeaseKeeper, store: StoreThread) -> bool:
    """Write the last outcomes and delete the lease. Returns whether nothing of ours is left in the database."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + LAST_WRITES_SECONDS
    written = await until(claims.is_settled, seconds=LAST_WRITES_SECONDS)
    lease_id = claims.lease_id
    if lease_id is None:
        return written  # lost: its runs are reclaimed by others, and none is ours
    keeper.rest()
    try:
        async with asyncio.timeout_at(deadline):
            return await store.call(store.store.surrender, lease_id) and written
    except (DatabaseError, TimeoutError) as error:
        logger.error("The lease could not be surrendered: %s", str(error).strip().split("\n", 1)[0])
        return False
