"""What a running body knows about its run: the context of ``bind=True``, and a logger whose records name the run."""

import asyncio
import json
import logging
from collections.abc import Callable, Mapping, MutableMapping
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, TypeAlias
from uuid import UUID, uuid5

from .arguments import is_storable
from .exceptions import ControlError, InvalidOption
from .logs import current_run

NAMESPACE = UUID("a4d2f729-afff-4982-ad79-4b8752f657ea")
MAX_AMOUNT = 2**63
LONGEST_PROGRESS = 10_000

StopReason: TypeAlias = Literal["cancel", "timeout", "shutdown"]

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter


class TaskContext:
    """The first argument of a task with ``bind=True``.

    ``attempt`` counts the starts of this run's body from 1. ``run_id`` with ``epoch`` is a key that no other start of
    any body has. ``scheduled_for`` is the time of the occurrence by the rule of its schedule, in UTC, however late the
    body starts; None if no schedule enqueued the run at a time of its own. When the task is called as a plain function
    the context is detached: ``run_id`` is None, nobody cancels, and progress goes nowhere.
    """

    def __init__(
        self,
        *,
        run_id: int | None,
        epoch: int,
        attempt: int,
        worker_id: str,
        report: Callable[[str], None] | None,
        why_stop: Callable[[], StopReason | None] | None,
        ask: Callable[[str, float], str] | None = None,
        scheduled_for: float | None = None,
    ) -> None:
        self.run_id = run_id
        self.epoch = epoch
        self.attempt = attempt
        self.worker_id = worker_id
        self.scheduled_for = None if scheduled_for is None else datetime.fromtimestamp(scheduled_for, UTC)
        self._report = report
        self._why_stop = why_stop
        self._ask = ask

    @classmethod
    def detached(cls) -> "TaskContext":
        """Return the context of a plain call."""
        return cls(run_id=None, epoch=0, attempt=1, worker_id="", report=None, why_stop=None)

    @cached_property
    def uuid(self) -> UUID | None:
        """The run id as a UUID, the same for every attempt; None when detached."""
        return None if self.run_id is None else uuid5(NAMESPACE, str(self.run_id))

    @cached_property
    def log(self) -> "_Adapter":
        """The logger ``django_dispatch.task``, whose records carry ``run_id``, ``task``, ``queue`` and ``attempt``."""
        fields = current_run.get(None) or {"run_id": self.run_id, "attempt": self.attempt}
        return _RunLog(logging.getLogger("django_dispatch.task"), fields)

    @property
    def cancel_requested(self) -> bool:
        """Whether this run is asked to stop. An async body, or one with many small steps, may look and return."""
        return self.stop_reason is not None

    @property
    def stop_reason(self) -> StopReason | None:
        """Why this run is asked to stop, whatever exception says so; None while it is not."""
        return self._why_stop() if self._why_stop is not None else None

    def progress(self, done: float, total: float | None = None, message: str = "") -> None:
        """Say how far the body is: ``done`` of ``total``, in any unit. Does not block; the newest report counts.

        Raises InvalidOption for a number that is negative or not finite, or a text that is too long or that PostgreSQL
        cannot store.
        """
        for name, number in (("done", done), ("total", total)):
            if number is not None and not _is_amount(number):
                raise InvalidOption(f"progress: {name} must be a number from 0 up, not {number!r}.")
        if not isinstance(message, str) or not is_storable(message):
            raise InvalidOption(f"progress: message must be a str without NUL and lone surrogates, not {message!r}.")
        if len(message) > LONGEST_PROGRESS:
            raise InvalidOption(
                f"progress: message must have {LONGEST_PROGRESS} characters at most, not {len(message)}."
            )
        if self._report is not None:
            report = {"done": done, "total": total, "message": message}
            self._report(json.dumps(report, ensure_ascii=False, separators=(",", ":")))

    def control(self, command: str, data: Mapping[str, Any] | None = None, *, timeout: float = 5.0) -> dict[str, Any]:
        """Ask this run's own dispatcher, or tell it something, and return what it answers; no database is involved.

        The commands are those of ``manage.py dispatcherctl``, such as ``workers`` or ``run``; one that is refused is
        answered with ``error``. Blocks for at most ``timeout`` seconds. Raises ControlError if no answer came, or when
        the context is detached. On an event loop use acontrol().
        """
        if self._ask is None:
            raise ControlError(f"Nobody answers the control command {command!r}: this is a plain call, not a run.")
        question = json.dumps({"control": command, "control_data": dict(data or {})})
        try:
            answer: dict[str, Any] = json.loads(self._ask(question, timeout))
        except TimeoutError:
            raise ControlError(f"No answer to the control command {command!r} within {timeout:g} s.") from None
        return answer

    async def acontrol(
        self,
        command: str,
        data: Mapping[str, Any] | None = None,
        *,
        timeout: float = 5.0,  # noqa: ASYNC109 - as its twin has it
    ) -> dict[str, Any]:
        """See control()."""
        return await asyncio.to_thread(self.control, command, data, timeout=timeout)


class _RunLog(_Adapter):
    # Before Python 3.13 the base class drops the caller's own ``extra``.
    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        kwargs["extra"] = {**(kwargs.get("extra") or {}), **(self.extra or {})}
        return msg, kwargs


def _is_amount(number: object) -> bool:
    # The range also keeps out what is not finite.
    return isinstance(number, int | float) and not isinstance(number, bool) and 0 <= number < MAX_AMOUNT
