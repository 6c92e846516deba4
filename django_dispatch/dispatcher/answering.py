"""Takes what comes on the channels of control commands and messages, and answers. On the dispatcher's loop.

Whatever arrives here was sent by somebody who may connect to the database. It is data: a command is looked up by its
name, a task by its path, and what is neither is refused, told of once a minute and kind, and counted.
"""

import asyncio
import json
import logging
import time
from collections.abc import Coroutine, Mapping
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from django.db import Error as DatabaseError

from ..control.wire import Assembler, BadMessage, compose, parse
from ..messages import Question, Stack
from .commands import COMMANDS, perform
from .executor import Executor
from .line import Line
from .submissions import Submissions

if TYPE_CHECKING:
    from .service import Dispatcher

SILENCE_SECONDS = 60.0
MOST_AT_ONCE = 100
LAST_REPLIES_SECONDS = 2.0

logger = logging.getLogger("django_dispatch.control")


class Answering:
    """Where commands and messages arrive: from the listener, and from bodies through their executors."""

    def __init__(self, dispatcher: "Dispatcher", line: Line) -> None:
        self._dispatcher = dispatcher
        self._stats = dispatcher.stats
        self._channels = dispatcher.settings.notify_channels
        self._under_way: set[asyncio.Task[None]] = set()
        self._told_at: dict[str, float] = {}
        self.line = line
        self.assembler = Assembler()
        self.submissions = Submissions(
            line,
            dispatcher.stats,
            facts=lambda: dispatcher.pool.facts,
            complain=self.complain,
            on_ready=dispatcher.looks.on_ready,
        )

    # what arrives

    def on_message(self, channel: str, payload: str) -> None:
        """Take a payload from a channel. Never raises."""
        self._stats.messages_received += 1
        now = time.monotonic()
        try:
            self.assembler.expire(now)
            document = self.assembler.add(parse(payload), now)
            if document is None:
                return
            if "control" in document:
                self._take_command(document)
            elif channel in self._channels:
                self.submissions.add(self._channels[channel], document)
            else:
                raise BadMessage("no command", "It is no control command, and this channel brings nothing else.")
        except BadMessage as error:
            self.complain(error)
        except Exception:  # whatever somebody sends, the listener lives on
            logger.exception("A message could not be taken.")

    def on_aside(self, executor: Executor, aside: Question | Stack) -> None:
        """Take what an executor says: a body's question, or where one is."""
        if isinstance(aside, Stack):
            self._dispatcher.stacks.on_stack(aside)
        else:
            self._soon(self._answer_body(executor, aside))

    def complain(self, error: BadMessage) -> None:
        """Count what was wrong with a message; log it if that kind was not logged within a minute."""
        self._stats.messages_refused[error.kind] += 1
        now = time.monotonic()
        if now - self._told_at.get(error.kind, -SILENCE_SECONDS) >= SILENCE_SECONDS:
            self._told_at[error.kind] = now
            logger.warning("A message is wrong (%s): %s Others of the kind are counted.", error.kind, str(error)[:500])

    # commands

    def _take_command(self, document: Mapping[str, Any]) -> None:
        node = document.get("node")
        if node is not None and node != self._dispatcher.settings.node:
            return
        if len(self._under_way) >= MOST_AT_ONCE:
            raise BadMessage("too many", f"{MOST_AT_ONCE} control commands are under way already.")
        self._soon(self._answer(document))

    def _soon(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work, name="control command")
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    async def _answer(self, document: Mapping[str, Any]) -> None:
        answer = await self._perform(document["control"], document.get("control_data") or {})
        reply_to = document.get("reply_to")
        if not isinstance(reply_to, str) or not reply_to:
            return
        lease_id = self._dispatcher.claims.lease_id
        identity = {"node_id": self._dispatcher.settings.node, "lease_id": lease_id and str(lease_id)}
        try:
            payloads = compose(answer | identity)
            await self.line.call(lambda store: store.send(reply_to, payloads))
        except (DatabaseError, BadMessage, UnicodeError) as error:
            logger.warning("A reply could not be sent: %s", str(error).strip().split("\n", 1)[0])

    async def _answer_body(self, executor: Executor, question: Question) -> None:
        try:
            document = parse(question.text)
            data = document.get("control_data") or {}
            if document.get("control") == "run":  # nobody else hears of it
                data = {"uuid": str(uuid4()), **data}
            answer = await self._perform(document.get("control"), data)
        except BadMessage as error:
            answer = {"error": str(error)}
        if executor.id in self._dispatcher.pool.executors:
            executor.answer(question.number, json.dumps(answer, default=str))

    async def _perform(self, name: object, data: object) -> dict[str, Any]:
        if not isinstance(name, str) or name not in COMMANDS:
            self._stats.control_commands["unknown"] += 1
            text = f"There is no control command {str(name)[:100]!r}. They are {', '.join(sorted(COMMANDS))}."
            self.complain(BadMessage("unknown command", text))
            return {"error": text}
        self._stats.control_commands[name] += 1
        if not isinstance(data, dict):
            return {"error": f"control_data must be an object, not {data!r}."}
        return await perform(self._dispatcher, name, data)

    async def close(self) -> None:
        """Let the last replies out, then close the session."""
        if self._under_way:
            await asyncio.wait(self._under_way, timeout=LAST_REPLIES_SECONDS)
        for task in self._under_way:
            task.cancel()
        await self.line.close()
