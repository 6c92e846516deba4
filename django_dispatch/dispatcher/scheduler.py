"""Enqueues the occurrences of schedules when they are due, and tells the database which the code has. On the loop.

Every dispatcher does so for all; the database sees to it that each occurrence is enqueued once.
"""

import asyncio
import json
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias
from uuid import uuid4

from django.db import DataError, IntegrityError, OperationalError

from ..enqueue import is_limited
from ..exceptions import InvalidArguments
from ..finish import TaskFacts
from ..limits import NO_KEYS, Keys, from_document
from ..schedules import NO_BROADCAST, Plan, Policy, Rule, plan_due, plan_first
from ..store.schedule_rows import Declaration, DueSchedule, Fired, Firing, ScheduleState
from ..store.values import NewRun
from .store_thread import StoreThread

LIMIT = 100
LARGEST_BURST = 100  # occurrences of one schedule in one commit
SHORTEST_PAUSE_SECONDS = 0.001
HELD_SECONDS = 0.1  # somebody else holds what is due: it is fired, or edited
DECLARE_SECONDS = 20.0
DECLARE_AGAIN_SECONDS = 1.0
UNKNOWN = "It is due, but the dispatchers that are here do not know its task."
LOCK_NOT_AVAILABLE = "55P03"

Planned: TypeAlias = tuple[DueSchedule, Plan, Keys]

logger = logging.getLogger("django_dispatch.schedules")


class Scheduler:
    """Two steps of housekeeping: ``fire`` and ``declare``.

    ``announce`` wakes whoever serves queues that got runs; ``on_blocked`` is told at which keys runs came to wait.
    """

    def __init__(
        self,
        store: StoreThread,
        *,
        facts: Callable[[], Mapping[str, TaskFacts]],
        queues: Sequence[str] | None,
        node: str,
        announce: Callable[[Sequence[str]], Awaitable[None]],
        on_blocked: Callable[[Sequence[str]], None],
        limited_queues: Sequence[str],
        poll_pause: Callable[[], float],
    ) -> None:
        self._store = store
        self._facts = facts
        self._queues = queues
        self._node = node
        self._announce = announce
        self._on_blocked = on_blocked
        self._limited_queues = limited_queues
        self._poll_pause = poll_pause
        self._boot = uuid4().hex
        self._has_started = False
        self._undeclared: Mapping[str, Declaration] | None = None
        self._declared_facts: Mapping[str, TaskFacts] | None = None
        self._taken: set[str] = set()
        self._states: Sequence[ScheduleState] = ()
        self._seen_at: float | None = None
        self.enqueued = 0
        """Runs that this dispatcher enqueued for schedules, and at its start."""

    def steps(self) -> dict[str, tuple[float, Callable[[], Awaitable[float | None]]]]:
        """Return each step with its period in seconds."""
        return {"schedules": (0.0, self.fire), "declarations": (DECLARE_SECONDS, self.declare)}

    async def fire(self) -> float:
        """Enqueue what is due; return in how many seconds something is due next, or it is time for a poll."""
        facts = self._facts()
        if not facts:
            return self._poll_pause()
        due, next_seconds = await self._store.call(self._store.store.due_schedules, list(facts), limit=LIMIT)
        if not due:
            pause = self._poll_pause()
            return pause if next_seconds is None else max(SHORTEST_PAUSE_SECONDS, min(next_seconds, pause))
        # Off the loop: a rule that no time fits is found out by counting through fifty years.
        plans = await asyncio.to_thread(lambda: [_plan(schedule, facts[schedule.task]) for schedule in due])
        fired = await self._fire(plans, facts)
        return 0.0 if fired else HELD_SECONDS

    async def declare(self) -> float | None:
        """Record the schedules of the code when it is new, and say every so often that they are still in it."""
        facts = self._facts()
        if not facts:
            return DECLARE_AGAIN_SECONDS
        await self._start(facts)
        if facts is not self._declared_facts:
            self._undeclared = {one.name: one for task in facts.values() for one in task.schedules}
            self._declared_facts = facts
        if self._undeclared:
            await self._declare(self._undeclared)
        names = [one.name for task in facts.values() for one in task.schedules]
        if names:
            await self._store.call(self._store.store.keep_declared, names)
        for name, task in await self._store.call(self._store.store.flag_unknown, list(facts), UNKNOWN):
            logger.warning("Schedule %s is due, but its task %s is not known here.", name, task)
        self._states = await self._store.call(self._store.store.schedule_states, limit=LIMIT)
        self._seen_at = time.monotonic()
        return DECLARE_AGAIN_SECONDS if self._undeclared else None

    def look(self) -> dict[str, Any]:
        """Say how the schedules were when they were last looked at, and what this dispatcher has done for them."""
        return {
            "produced_count": self.enqueued,
            "seconds_since_look": self._seen_at and round(time.monotonic() - self._seen_at, 3),
            "schedules": [
                {
                    "name": state.name,
                    "state": "retired" if state.is_retired else "enabled" if state.enabled else "disabled",
                    "next_at": state.next_at,
                    "last_at": state.last_at,
                    "problem": state.problem or None,
                }
                for state in self._states
            ],
        }

    async def _start(self, facts: Mapping[str, TaskFacts]) -> None:
        """Enqueue the runs that this dispatcher's start is the occasion of."""
        if self._has_started:
            return
        tasks = {
            path: task
            for path, task in facts.items()
            if task.on_start and (self._queues is None or task.queue in self._queues)
        }
        runs = [run for path, task in tasks.items() if (run := self._start_run(path, task)) is not None]
        recorded = await self._store.call(self._store.store.enqueue_at_start, runs) if runs else ()
        self._has_started = True
        self.enqueued += len(recorded)
        known = {run.uuid: run.task for run in runs}
        for one in recorded:
            logger.info("Task %s is enqueued, for this dispatcher starts.", known[one.uuid])
        self._on_blocked([one.blocked_by for one in recorded if one.status == "BLOCKED" and one.blocked_by])
        await self._announce([one.queue for one in recorded if one.status == "READY"])

    def _start_run(self, path: str, task: TaskFacts) -> NewRun | None:
        try:
            keys = _keys_of(path, task, "[]", "{}")
        except InvalidArguments as error:
            logger.warning("Task %s is not enqueued, though this dispatcher starts: %s", path, error)
            return None
        return NewRun(
            task=path,
            queue=task.queue,
            priority=task.priority,
            on_lost=task.on_lost,
            uuid=f"start:{self._boot}:{path}",
            is_limited=is_limited(task.queue),
            expires_seconds=task.expires_seconds,
            meta=json.dumps({"on_start": self._node}),
            retention=task.retention,
            **keys._asdict(),
        )

    async def _declare(self, declarations: Mapping[str, Declaration]) -> None:
        answers = await self._store.call(self._store.store.declare, list(declarations.values()))
        for name, answer in answers.items():
            if answer == "taken" and name not in self._taken:
                self._taken.add(name)
                logger.warning("Schedule %s of the code is not used: one made by hand has its name.", name)
        self._undeclared = {name: one for name, one in declarations.items() if name not in answers}

    async def _fire(self, plans: Sequence[Planned], facts: Mapping[str, TaskFacts]) -> Sequence[Fired]:
        """Carry out plans. One that the database refuses is flagged, and keeps no other one from being carried out."""
        firings = [_firing(schedule, plan, keys, facts[schedule.task]) for schedule, plan, keys in plans]
        try:
            fired = await self._store.call(self._store.store.fire, firings, limited_queues=self._limited_queues)
        except (DataError, IntegrityError, OperationalError) as error:
            is_held = getattr(error.__cause__, "sqlstate", None) == LOCK_NOT_AVAILABLE
            if isinstance(error, OperationalError) and not is_held:
                raise
            if len(plans) > 1:
                return [one for plan in plans for one in await self._fire([plan], facts)]
            if is_held:
                return ()
            schedule, plan, _ = plans[0]
            text = f"Its run cannot be recorded: {str(error).strip().splitlines()[0]}"
            if plan.problem:  # it was the flag that was refused
                raise
            return await self._fire([(schedule, Plan(problem=text), NO_KEYS)], facts)
        of_id = {schedule.id: (schedule, plan) for schedule, plan, _ in plans}
        for one in fired:
            self._tell(*of_id[one.id], one)
        if keys := [one.blocked_by for one in fired if one.blocked_by is not None]:
            self._on_blocked(keys)
        if queues := [one.queue for one in fired if one.queue is not None and one.blocked_by is None]:
            await self._announce(queues)
        return fired

    def _tell(self, schedule: DueSchedule, plan: Plan, fired: Fired) -> None:
        self.enqueued += len(fired.run_ids)
        if plan.problem:
            logger.warning("Schedule %s stands still: %s", schedule.name, plan.problem)
        elif fired.run_ids:
            logger.info("Schedule %s: %s enqueued.", schedule.name, _named(fired.run_ids))
        elif plan.slots and schedule.overlap == "skip":
            logger.info("Schedule %s: an occurrence is skipped, a run of it has not ended.", schedule.name)
        elif plan.slots:
            logger.info("Schedule %s: an occurrence is skipped, it would be a duplicate.", schedule.name)
        elif schedule.is_planned:
            logger.info("Schedule %s: what was missed is too long ago, it is skipped.", schedule.name)


def _plan(schedule: DueSchedule, task: TaskFacts) -> Planned:
    if flaw := schedule.flaw or (NO_BROADCAST if task.broadcast else ""):
        return schedule, Plan(problem=flaw), NO_KEYS
    try:
        keys = _keys_of(schedule.task, task, schedule.args, schedule.kwargs)
    except InvalidArguments as error:
        return schedule, Plan(problem=str(error)), NO_KEYS
    plan = _plan_times(schedule)
    if keys.on_duplicate == "replace":  # of the missed ones the last
        plan = replace(plan, slots=plan.slots[-1:])
    return schedule, plan, keys


def _keys_of(path: str, task: TaskFacts, args: str, kwargs: str) -> Keys:
    """Raises InvalidArguments if the key cannot be made of these."""
    limits, signature = from_document(task.limits)
    return limits.keys_of(path, signature, json.loads(args), json.loads(kwargs)) if limits.is_any else NO_KEYS


def _plan_times(schedule: DueSchedule) -> Plan:
    rule = Rule(
        cron=schedule.cron,
        every=schedule.every,
        once_at=schedule.once_at,
        time_zone=schedule.time_zone,
        start_at=schedule.start_at,
        end_at=schedule.end_at,
    )
    if not schedule.is_planned or schedule.next_at is None:
        return plan_first(rule, now=schedule.now, last_at=schedule.last_at)
    policy = Policy(schedule.catch_up, schedule.catch_up_window, schedule.overlap)  # type: ignore[arg-type]
    return plan_due(rule, policy, now=schedule.now, due_at=schedule.next_at, limit=LARGEST_BURST)


def _firing(schedule: DueSchedule, plan: Plan, keys: Keys, task: TaskFacts) -> Firing:
    has_keys = keys != NO_KEYS
    return Firing(
        schedule.id,
        schedule.revision,
        schedule.token,
        plan.slots,
        plan.next_at,
        plan.problem,
        task.queue,
        task.priority,
        task.on_lost,
        task.expires_seconds,
        task.retention,
        schedule.args if has_keys else None,
        schedule.kwargs if has_keys else None,
        *keys,
    )


def _named(run_ids: Sequence[int]) -> str:
    return f"run {run_ids[0]}" if len(run_ids) == 1 else f"runs {run_ids[0]} to {run_ids[-1]}"
