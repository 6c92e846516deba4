"""Around a body: find the task, decode the payload, turn whatever happens into an Outcome. In executors.

Nothing here may raise: a run's outcome is recorded whatever its body did.
"""

import json
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import perf_counter  # bodies may put something else in its place
from types import TracebackType
from typing import Any

from .. import registry
from ..context import StopReason, TaskContext
from ..decisions import Cancel, Decision, Retry, Snooze
from ..documents import error_document, storable
from ..enqueue import check_priority, check_queue
from ..exceptions import InvalidArguments, UnknownTask
from ..logs import current_run, run_fields
from ..messages import Assignment, Outcome, Plan, Stop, Verdict
from ..retry import clamped
from . import atomic

LONGEST_MESSAGE = 10_000  # characters kept of an error's text
LONGEST_TRACEBACK = 50_000
LONGEST_NAME = 300
LONGEST_RESULT = 16_000_000  # characters of JSON; the database would be busy for seconds, and others' outcomes wait
DEEPEST = 500  # levels of nesting; half of what the oldest Python that we support can read back

VERDICT_OF_STOP = {Stop.CANCEL: Verdict.CANCELLED, Stop.TIMEOUT: Verdict.TIMED_OUT, Stop.SHUTDOWN: Verdict.INTERRUPTED}
REASON_OF_STOP: Mapping[Stop | None, StopReason] = {
    Stop.CANCEL: "cancel",
    Stop.TIMEOUT: "timeout",
    Stop.SHUTDOWN: "shutdown",
}
_decode = json.JSONDecoder().decode  # what loads() comes down to
NOBODY_ASKS = TaskContext.detached()  # for a body that takes no context
KIND_OF_VERDICT = {
    Verdict.RAISED: "exception",
    Verdict.CANCELLED: "cancelled",
    Verdict.TIMED_OUT: "timeout",
    Verdict.INTERRUPTED: "shutdown",
    Verdict.UNSTORABLE: "result",
}


@dataclass(slots=True)
class Attempt:
    """One start of a run's body, from its assignment to its outcome."""

    assignment: Assignment
    executor: str
    stop: Stop | None = None
    started_at: float = field(default_factory=perf_counter)
    log_fields: dict[str, object] = field(init=False)
    """What the records of its body carry."""

    def __post_init__(self) -> None:
        assignment = self.assignment
        self.log_fields = run_fields(assignment.run_id, assignment.task, assignment.queue, assignment.attempt)

    @property
    def token(self) -> tuple[int, int]:
        return self.assignment.token

    @property
    def names(self) -> tuple[int, str]:
        """The run's id and its task, for a log."""
        return self.assignment.run_id, self.assignment.task

    def body(
        self, report: Callable[[str], None], why_stop: Callable[[], Stop | None], ask: Callable[[str, float], str]
    ) -> Callable[[], Any]:
        """Return the body as a call without arguments; an async one returns its coroutine.

        ``report`` takes the JSON text of a progress; ``why_stop`` says whether the body is to stop, and why; ``ask``
        puts a control command to the dispatcher, with a timeout in seconds, and returns the answer.
        """
        assignment = self.assignment
        task = registry.get(assignment.task)  # the dispatcher assigns only what the zygote has reported
        args = _decode(assignment.args)
        kwargs = {} if assignment.kwargs == "{}" else _decode(assignment.kwargs)
        if not isinstance(args, list) or not isinstance(kwargs, dict):  # who inserts by SQL may write any JSON
            raise InvalidArguments("The args of a run must be a JSON array, and its kwargs a JSON object.")
        if _is_too_deep(assignment.args, args) or _is_too_deep(assignment.kwargs, kwargs):
            raise InvalidArguments(f"The arguments of a run must not be nested more than {DEEPEST} levels deep.")
        context = NOBODY_ASKS if not task.bind else self._context(report, why_stop, ask)
        current_run.set(self.log_fields)
        if task.atomic:
            return lambda: atomic.call(lambda: task.invoke(context, args, kwargs), assignment.lease, self.returned)
        return lambda: task.invoke(context, args, kwargs)

    def _context(
        self, report: Callable[[str], None], why_stop: Callable[[], Stop | None], ask: Callable[[str, float], str]
    ) -> TaskContext:
        assignment = self.assignment
        return TaskContext(
            run_id=assignment.run_id,
            epoch=assignment.epoch,
            attempt=assignment.attempt,
            worker_id=self.executor,
            report=report,
            why_stop=lambda: REASON_OF_STOP.get(why_stop()),
            ask=ask,
            scheduled_for=assignment.scheduled_for,
        )

    def returned(self, value: Any) -> Outcome:
        """Return the outcome of a body that returned."""
        if value is None:
            return self._outcome(Verdict.RETURNED, "")
        if type(value) is atomic.Committed:
            return value.outcome
        if issubclass(type(value), Decision):  # what isinstance() asks of a value may raise anything
            return self._decided(value)
        try:
            text = json.dumps(value, ensure_ascii=False, allow_nan=False)
            if _is_too_deep(text, value):
                raise ValueError(f"it is nested more than {DEEPEST} levels deep")
        except BaseException as error:  # a subclass of dict or str may raise anything
            message = f"The body returned a value of type {_name_of(type(value))}, not JSON: {_text_of(error)}"
            return self._failure(Verdict.UNSTORABLE, message)
        if len(text) > LONGEST_RESULT:
            message = f"The body returned {len(text):,} characters of JSON; the limit is {LONGEST_RESULT:,}."
            return self._failure(Verdict.UNSTORABLE, message)
        return self._outcome(Verdict.RETURNED, storable(text))

    def raised(self, error: BaseException) -> Outcome:
        """Return the outcome of a body that raised; if it had been told to stop, that is what counts."""
        if self.stop is None and issubclass(type(error), Decision):
            return self._decided(error, traceback=_traceback_of(error))
        verdict = VERDICT_OF_STOP[self.stop] if self.stop else Verdict.RAISED
        facts, plan = {"exception_class": _name_of(type(error))}, None
        if verdict in (Verdict.RAISED, Verdict.TIMED_OUT):  # where a body hung is what one wants to know
            facts["traceback"] = _traceback_of(error)
            plan, note = self._plan(error, asks_types=verdict is Verdict.RAISED)
            facts |= {"note": note} if note else {}
        return self._failure(verdict, _text_of(error), plan, **facts)

    def _decided(self, decision: Any, **more: str) -> Outcome:
        """What a body says of its own run, by raising it or by returning it."""
        try:
            if isinstance(decision, Snooze):
                return self._outcome(Verdict.SNOOZED, "", Plan(delay_seconds=clamped(decision.after_seconds)))
            if isinstance(decision, Cancel):
                return self._failure(Verdict.CANCELLED, _text_of(decision))
            if isinstance(decision, Retry):
                return self._retried(decision, **more)
            problem = "it is none of Retry, Snooze and Cancel"
        except BaseException as error:  # of a class derived from ours
            problem = _text_of(error)
        return self._failure(Verdict.RAISED, f"The decision {_name_of(type(decision))} cannot be followed: {problem}")

    def _retried(self, decision: Retry, **more: str) -> Outcome:
        cause = decision.__cause__ or decision.__context__
        queue = None if decision.queue is None else check_queue(decision.queue)
        priority = None if decision.priority is None else check_priority(decision.priority)
        plan, note = Plan(delay_seconds=clamped(decision.after_seconds)), ""
        if plan.delay_seconds is None:
            asked, note = self._plan(cause or decision, asks_types=False)
            plan = asked or plan
        more |= {"exception_class": _name_of(type(cause))} if cause else {}
        more |= {"note": note} if note else {}
        plan = plan._replace(queue=queue, priority=priority)
        return self._failure(Verdict.RAISED, _text_of(cause or decision), plan, kind="retry", **more)

    def _plan(self, error: BaseException, *, asks_types: bool) -> tuple[Plan | None, str]:
        """What is to follow, as the task's options say; None: as they say to the dispatcher, too."""
        try:
            policy = registry.get(self.assignment.task).retries
        except UnknownTask:
            return None, ""
        plan, note = policy.plan(self.assignment.failures + 1, error, asks_types=asks_types)
        return (None if plan == Plan() else plan), note

    def _failure(
        self, verdict: Verdict, message: str, plan: Plan | None = None, kind: str | None = None, **more: str
    ) -> Outcome:
        facts = {"attempt": self.assignment.attempt, "executor": self.executor, **more}
        return self._outcome(verdict, error_document(kind or KIND_OF_VERDICT[verdict], message, **facts), plan)

    def _outcome(self, verdict: Verdict, text: str, plan: Plan | None = None) -> Outcome:
        run_id, epoch = self.token
        return Outcome(run_id, epoch, verdict, perf_counter() - self.started_at, text, plan)


def _is_too_deep(text: str, value: Any) -> bool:
    """Whether a value, with its JSON text, is nested deeper than every reader of it can follow."""
    if len(text) <= DEEPEST or text.count("[") + text.count("{") <= DEEPEST:
        return False
    level = [value]
    for _ in range(DEEPEST + 1):
        level = [
            item
            for holder in level
            for item in (holder.values() if isinstance(holder, dict) else holder)
            if isinstance(item, dict | list | tuple)
        ]
        if not level:
            return False
    return True


def _name_of(cls: type) -> str:
    """The path of a class, whatever its metaclass does."""
    try:
        path = cls.__qualname__ if cls.__module__ == "builtins" else f"{cls.__module__}.{cls.__qualname__}"
    except BaseException:
        path = type.__repr__(cls)
    return _shortened(path, LONGEST_NAME)


def _text_of(error: BaseException) -> str:
    """The exception's text, or what can be said when it cannot be printed."""
    try:
        text = "".join(str.__iter__(str(error)))  # a subclass of str may do anything
    except BaseException as problem:
        text = f"(its text cannot be printed: {_name_of(type(problem))})"
    return _shortened(text, LONGEST_MESSAGE)


def _traceback_of(error: BaseException) -> str:
    try:
        text = "".join(traceback.format_exception(type(error), error, _frames_of_the_body(error.__traceback__)))
    except BaseException as problem:
        text = f"(the traceback cannot be printed: {_name_of(type(problem))})"
    return _shortened(text, LONGEST_TRACEBACK)


def _frames_of_the_body(frames: TracebackType | None) -> TracebackType | None:
    """Drop our own frames from the top of a traceback."""
    while frames is not None and str(frames.tb_frame.f_globals.get("__package__")).startswith("django_dispatch"):
        frames = frames.tb_next
    return frames


def _shortened(text: str, longest: int) -> str:
    if len(text) <= longest:
        return text
    half = longest // 2
    return f"{text[:half]}\n… {len(text) - longest} characters left out …\n{text[-half:]}"
