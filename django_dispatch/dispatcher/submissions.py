"""Messages that become runs: what other programs, dispatcherd's publishers say, send by NOTIFY. In the dispatcher.

A message is a row before it is anything else. Every dispatcher that listens hears of it; its uuid sees to it that one
of them records it. What cannot be recorded now, for want of a database, waits here in memory, within bounds.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from django.db import DataError
from django.db import Error as DatabaseError

from ..arguments import Encoder, is_storable
from ..control.wire import BadMessage
from ..enqueue import check_options, check_queue, is_limited
from ..exceptions import InvalidArguments, InvalidOption
from ..finish import TaskFacts
from ..limits import ANYTHING, IN_ORDER, NO_KEYS, Keys, check_on_duplicate, from_document
from ..store.values import NewRun, ReceivedRun
from .backoff import Backoff
from .line import Line
from .stats import Stats

MOST_WAITING = 10_000
LARGEST_BATCH = 500
LONGEST_UUID = 255
FACTS_SECONDS = 0.1  # how often to see whether the tasks are known by now
ON_DUPLICATE = ("parallel", "discard", "serial", "queue_one")

logger = logging.getLogger("django_dispatch.control")


def message_run(document: Mapping[str, Any], facts: Mapping[str, TaskFacts], queue: str | None) -> NewRun:
    """Return the run that a message asks for, in this queue; None: the message's, else its task's. Pure.

    Fields that are not known are ignored. Raises BadMessage.
    """
    task, uuid = document.get("task"), document.get("uuid")
    if not isinstance(task, str) or not task:
        raise BadMessage("no task", "It names no task.")
    if not isinstance(uuid, str) or not 0 < len(uuid) <= LONGEST_UUID or not is_storable(uuid):
        raise BadMessage("no uuid", f"It has no uuid, a text of 1 to {LONGEST_UUID} characters: it could run twice.")
    known = facts.get(task)
    if known is None:
        raise BadMessage("unknown task", f"There is no task {task[:100]!r} here; only registered tasks are run.")
    args, kwargs = document.get("args") or [], document.get("kwargs") or {}
    try:
        options = check_options(countdown=document.get("delay") or None, timeout=document.get("timeout") or None)
        queue = check_queue(queue or document.get("queue") or known.queue)
        args_json, kwargs_json = Encoder(task, ANYTHING).encode(args, kwargs)
        keys = _keys_of(document.get("on_duplicate"), known, task, args, kwargs)
    except (InvalidArguments, InvalidOption) as error:
        raise BadMessage("bad value", str(error)) from None
    return NewRun(
        task=task,
        args=args_json,
        kwargs=kwargs_json,
        queue=queue,
        priority=known.priority,
        delay_seconds=options.delay_seconds,
        timeout_seconds=options.timeout_seconds,
        on_lost=known.on_lost,
        uuid=uuid,
        is_limited=is_limited(queue),
        **keys._asdict(),
        expires_seconds=known.expires_seconds,
        retention=known.retention,
    )


def _keys_of(on_duplicate: object, known: TaskFacts, task: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Keys:
    """What the task declares holds for messages too; their ``on_duplicate``, if it is known, goes before it."""
    limits, signature = from_document(known.limits)
    if on_duplicate in ON_DUPLICATE:
        word = check_on_duplicate(on_duplicate)
        is_in_order = on_duplicate in IN_ORDER
        limit = replace(limits.limit, concurrency=None) if is_in_order else limits.limit
        unique_seconds = limits.unique_seconds if on_duplicate == "discard" else None
        limits = replace(limits, limit=limit, on_duplicate=word, unique_seconds=unique_seconds)
    return limits.keys_of(task, signature, args, kwargs) if limits.is_any else NO_KEYS


class Submissions:
    """Records messages in batches. ``complain`` is told of bad ones, ``on_ready`` of queues that have new runs."""

    def __init__(
        self,
        line: Line,
        stats: Stats,
        *,
        facts: Callable[[], Mapping[str, TaskFacts]],
        complain: Callable[[BadMessage], None],
        on_ready: Callable[[Sequence[str]], None],
    ) -> None:
        self._line = line
        self._stats = stats
        self._facts = facts
        self._complain = complain
        self._on_ready = on_ready
        self._waiting: deque[tuple[str, Mapping[str, Any]]] = deque()
        self._event = asyncio.Event()
        self._backoff = Backoff()

    @property
    def waiting(self) -> int:
        """How many messages have not been recorded yet."""
        return len(self._waiting)

    def add(self, queue: str, document: Mapping[str, Any]) -> None:
        """Have a message recorded soon. Raises BadMessage if too many wait already."""
        if len(self._waiting) >= MOST_WAITING:
            raise BadMessage("too many", f"{MOST_WAITING:,} messages wait to be recorded already.")
        self._waiting.append((queue, document))
        self._event.set()

    async def run(self) -> None:
        """Record messages for ever. Whatever came while the last batch was under way is the next one."""
        while True:
            await self._event.wait()
            self._event.clear()
            while self._waiting:
                if not self._facts():
                    await asyncio.sleep(FACTS_SECONDS)
                    continue
                batch = [self._waiting.popleft() for _ in range(min(len(self._waiting), LARGEST_BATCH))]
                messages = self._understood(batch)
                try:
                    await self.record(messages)
                    self._backoff.reset()
                except DatabaseError as error:
                    self._waiting.extendleft(reversed(batch))
                    pause = self._backoff.next_seconds()
                    text = str(error).strip().split("\n", 1)[0]
                    logger.warning(
                        "%s messages cannot be recorded (%s); next try in %.1f s.", len(self._waiting), text, pause
                    )
                    await asyncio.sleep(pause)

    async def submit(self, document: Mapping[str, Any]) -> ReceivedRun | None:
        """Record one message now, and return its run; None if it was a duplicate that is discarded.

        Raises BadMessage and ``django.db.Error``.
        """
        message = message_run(document, self._facts(), None)
        self._warn_of_duplicates(document)
        return next(iter(await self.record([message])), None)

    async def record(self, messages: Sequence[NewRun]) -> Sequence[ReceivedRun]:
        """Record these, tell of the queues that have work now, and return the runs."""
        if not messages:
            return ()
        try:
            received = await self._line.call(lambda store: store.receive(messages))
        except DataError as error:
            if len(messages) == 1:
                self._complain(BadMessage("bad value", f"PostgreSQL cannot store it: {error}"))
                return ()
            return [run for message in messages for run in await self.record([message])]
        new = [run for run in received if run.is_new]
        self._stats.runs_received += len(new)
        tasks = {message.uuid: message.task for message in messages}
        for run in new:
            self._stats.count_enqueued(tasks[run.uuid], run.queue, 1)
        if queues := sorted({run.queue for run in new if run.status == "READY"}):
            self._on_ready(queues)
        if payloads := sorted({payload for run in new if (payload := _payload(run))}):
            await self._line.call(lambda store: store.notify(payloads))
        return received

    def _understood(self, batch: Sequence[tuple[str, Mapping[str, Any]]]) -> list[NewRun]:
        messages: dict[str, NewRun] = {}
        for queue, document in batch:
            try:
                message = message_run(document, self._facts(), queue)
                messages.setdefault(message.uuid or "", message)
                self._warn_of_duplicates(document)
            except BadMessage as error:
                self._complain(error)
        return list(messages.values())

    def _warn_of_duplicates(self, document: Mapping[str, Any]) -> None:
        wanted = document.get("on_duplicate", "parallel")
        if wanted not in ON_DUPLICATE:
            self._complain(
                BadMessage("on_duplicate", f"on_duplicate={wanted!r} is not known: the run may run beside others.")
            )


def _payload(run: ReceivedRun) -> str | None:
    """The wakeup for a run that was recorded."""
    if run.status == "BLOCKED":
        return f"blocked:{run.blocked_by}"
    words = {"READY": "ready", "SCHEDULED": "scheduled"}
    return f"{words[run.status]}:{run.queue}" if run.status in words else None
