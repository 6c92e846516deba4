"""Asking dispatchers and waiting for their replies; in any process that has the project's settings.

Each call opens a session of its own, in autocommit: a question that waited for the caller's transaction to commit
could never be answered within it. It listens before it asks, so that no reply is missed.
"""

import time
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from asgiref.sync import sync_to_async
from django.db import DatabaseError, connections

from .. import conf
from ..exceptions import ControlError
from .wire import Assembler, BadMessage, compose_command, parse

if TYPE_CHECKING:
    from ..store.postgres_control import ControlSession, LiveDispatcher

TIMEOUT_SECONDS = 5.0


@dataclass(frozen=True, slots=True)
class Missing:
    """A dispatcher whose lease is live, and that did not reply."""

    node: str
    host: str
    pid: int

    def __str__(self) -> str:
        return f"{self.node} (pid {self.pid} on {self.host})"


@dataclass(slots=True)
class Replies:
    """What came back: each dispatcher's answer with its ``node_id``, and those that did not reply in time."""

    expected: int
    answers: list[dict[str, Any]] = field(default_factory=list)
    missing: list[Missing] = field(default_factory=list)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(self.answers)

    def __len__(self) -> int:
        return len(self.answers)

    @property
    def is_complete(self) -> bool:
        """Whether as many replied as were expected."""
        return len(self.answers) >= self.expected


def send(command: str, data: Mapping[str, Any] | None = None, *, node: str | None = None) -> None:
    """Send a command to all dispatchers, or to those named ``node``, and do not wait.

    At once, whatever transaction the caller is in. Raises ControlError if the database does not take it.
    """
    settings = _settings_to_be_heard(command)
    try:
        with _session(settings) as session:
            session.send(settings.control_channel, compose_command(command, data, node=node))
    except (DatabaseError, BadMessage) as error:
        raise _cannot(command, error) from error


def ask(
    command: str,
    data: Mapping[str, Any] | None = None,
    *,
    node: str | None = None,
    timeout: float = TIMEOUT_SECONDS,
    expected_replies: int | None = None,
) -> Replies:
    """Send a command to all dispatchers, or to those named ``node``, and return their replies.

    Returns as soon as every dispatcher with a live lease, or ``expected_replies`` of them, has replied; after
    ``timeout`` seconds at the latest. Works inside a transaction, and does not see what that has not committed. An
    answer with the key ``error`` is a refusal. Raises ControlError if the database does not take the question.
    """
    settings = _settings_to_be_heard(command)
    try:
        with _session(settings) as session:
            live = [one for one in session.live() if node is None or one.node == node]
            replies = Replies(len(live) if expected_replies is None else expected_replies)
            if replies.expected:
                if not session.can_listen():
                    raise ControlError(
                        f"No answer to the control command {command!r} could be heard through a pooler."
                        " Set DISPATCH['LISTEN_DSN'] to a direct connection."
                    )
                reply_to = f"django_dispatch_{uuid4().hex}"
                session.listen(reply_to)
                session.send(settings.control_channel, compose_command(command, data, reply_to=reply_to, node=node))
                _collect(session, replies, live, time.monotonic() + timeout, is_counted=expected_replies is not None)
            return replies
    except (DatabaseError, BadMessage) as error:
        raise _cannot(command, error) from error


async def asend(command: str, data: Mapping[str, Any] | None = None, *, node: str | None = None) -> None:
    """See send()."""
    await sync_to_async(send, thread_sensitive=False)(command, data, node=node)


async def aask(
    command: str,
    data: Mapping[str, Any] | None = None,
    *,
    node: str | None = None,
    timeout: float = TIMEOUT_SECONDS,  # noqa: ASYNC109 - as its twin has it
    expected_replies: int | None = None,
) -> Replies:
    """See ask()."""
    return await sync_to_async(ask, thread_sensitive=False)(
        command, data, node=node, timeout=timeout, expected_replies=expected_replies
    )


def _settings_to_be_heard(command: str) -> conf.DispatchSettings:
    settings = conf.current()
    if connections[settings.database].vendor == "sqlite":
        raise ControlError(
            f"No dispatcher can hear the control command {command!r}: it would come by NOTIFY of PostgreSQL, and"
            f" DISPATCH['DATABASE'] is on SQLite. What goes by the database works: cancel(), the admin, pause-queue,"
            " resume-queue, explain; to end a dispatcher send it SIGTERM."
        )
    if "pg_notify" not in settings.wakeups:
        raise ControlError(
            f"No dispatcher would hear the control command {command!r}: DISPATCH['WAKEUPS'] has no 'pg_notify'."
        )
    return settings


def _session(settings: conf.DispatchSettings) -> "AbstractContextManager[ControlSession]":
    from ..store.postgres_control import control_session

    return control_session(settings.database, settings.listen_dsn)


def _collect(
    session: "ControlSession", replies: Replies, live: "list[LiveDispatcher]", deadline: float, *, is_counted: bool
) -> None:
    """Gather replies until those that count have come, or the deadline has; note who is missing."""
    assembler = Assembler()
    silent = {str(one.lease_id): one for one in live}
    while (left := deadline - time.monotonic()) > 0:
        if replies.is_complete if is_counted else not silent:
            break
        for payload in session.heard(left):
            answer = assembler.add(parse(payload), time.monotonic())
            if answer is not None:
                silent.pop(str(answer.get("lease_id")), None)
                replies.answers.append(answer)
    if not (is_counted and replies.is_complete):
        replies.missing = [Missing(one.node, one.host, one.pid) for one in silent.values()]


def _cannot(command: str, error: Exception) -> ControlError:
    text = str(error).strip().split("\n", 1)[0] or type(error).__name__
    return ControlError(f"The control command {command!r} could not be sent, or no answer received: {text}")
