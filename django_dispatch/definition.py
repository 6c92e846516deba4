"""Tasks: ``@task``, its options, and what a task can do; in any process, before apps are ready too."""

import functools
import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from typing import (
    TYPE_CHECKING,
    Any,
    Concatenate,
    Generic,
    Literal,
    ParamSpec,
    Protocol,
    TypeVar,
    Unpack,
    cast,
    get_args,
    overload,
)

from asgiref.sync import iscoroutinefunction, sync_to_async

from .arguments import Encoder
from .context import TaskContext
from .declarations import Schedules, declare
from .enqueue import (
    Call,
    EnqueueOptions,
    Options,
    broadcast,
    check_expires,
    check_max_attempts,
    check_options,
    check_priority,
    check_queue,
    check_retention,
    check_timeout,
    check_unique_for,
    enqueue,
    enqueue_many,
    is_limited,
    retention_document,
)
from .exceptions import InvalidArguments, InvalidOption, InvalidTask
from .limits import OnDuplicate, check_limits
from .policy import RetryOptions, check_retries
from .registry import register
from .schedules import NO_BROADCAST
from .signatures import body_of, check_is_callable_without_arguments, path_of, signature_of
from .store.schedule_rows import Declaration
from .store.values import Alike, NewRun

if TYPE_CHECKING:
    from .models import Run

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)
T = TypeVar("T")

OnLost = Literal["requeue", "fail"]
RetentionOption = timedelta | float | Mapping[str, timedelta | float | None] | None
AS_THE_TASK_SAYS = Options()

logger = logging.getLogger("django_dispatch.registry")


class TaskOptions(RetryOptions, total=False):
    """The options of ``@task``, beside those of RetryOptions.

    ``queue`` is a name, or a function of the call's arguments that returns one; ``priority`` goes from -100 to 100,
    higher first; ``timeout`` is a timedelta or seconds; ``max_attempts`` counts the first attempt too;
    ``on_lost="fail"`` never repeats a body whose end nobody saw; a run that was not started within ``expires`` never
    is; ``atomic`` makes what the body writes and its success one transaction.

    ``schedule`` (a cron expression, a Cron or Every, or a list of them) and ``every`` (a timedelta) enqueue runs at
    times; ``on_start`` enqueues one whenever a dispatcher of its queue starts.

    ``concurrency`` is how many runs at once, over all dispatchers, and ``rate``, as ``"100/m"``, how many in a time: of
    the task, or of each ``key``, a text with the names of parameters in braces or a function of the arguments.
    ``on_duplicate`` says what becomes of a run while another of its key, or with its arguments, waits or runs;
    ``unique_for`` has duplicates discarded for so long after the enqueue.

    ``fair_key``, made as ``key`` is, says whose a run is: those of each take turns in their queue, so that a flood of
    one does not starve the others.

    ``retention`` says how long ended runs are kept: a timedelta or seconds, or these by status, None meaning for ever;
    ``broadcast`` makes each enqueue one run for every live dispatcher that serves the queue.
    """

    queue: str | Callable[..., str]
    priority: int
    timeout: timedelta | float | None
    max_attempts: int
    atomic: bool
    on_lost: OnLost
    expires: timedelta | float | None
    schedule: Schedules | None
    every: timedelta | None
    on_start: bool
    concurrency: int | None
    rate: str | None
    key: str | Callable[..., str] | None
    fair_key: str | Callable[..., str] | None
    on_duplicate: OnDuplicate
    unique_for: timedelta | float | None
    retention: RetentionOption
    broadcast: bool


class Task(Generic[P, R_co]):
    """A registered function, or class with ``run``, and the options its runs have by default.

    Calling it runs the body here and now. The other verbs record a run and return it; none of them executes it.
    ``queue``, ``priority``, ``on_lost`` and ``expires`` are written when a run is enqueued, the other options are read
    when it starts or has failed.
    """

    def __init__(self, function: Callable[..., Any], *, bind: bool = False, **options: Unpack[TaskOptions]) -> None:
        if isinstance(function, Task):
            raise InvalidTask(f"{function!r} is a task already: decorate its function once.")
        if unknown := sorted(set(options) - TaskOptions.__optional_keys__):
            raise TypeError(f"task() got an unexpected keyword argument {unknown[0]!r}")
        self.path = path_of(function)
        self.is_async = iscoroutinefunction(body_of(self.path, function))
        self.bind = bind
        self.signature = self.__signature__ = signature_of(self.path, function, bind=bind)
        self._encoder = Encoder(self.path, self.signature)
        try:
            self._take(options)
        except (InvalidOption, InvalidTask) as error:
            raise InvalidTask(f"Task {self.path!r}: {error}") from None
        except InvalidArguments as error:
            raise InvalidTask(str(error)) from None
        if self.on_start:
            check_is_callable_without_arguments(self.path, self.signature)
        self.function = function
        functools.update_wrapper(self, function, updated=())

    def _take(self, options: TaskOptions) -> None:
        queue, timeout, expires = options.get("queue", "default"), options.get("timeout"), options.get("expires")
        self.queue = queue if callable(queue) else check_queue(queue)
        self.priority = check_priority(options.get("priority", 0))
        self.timeout = None if timeout is None else check_timeout(timeout)
        self.max_attempts = check_max_attempts(options.get("max_attempts", 1))
        self.on_lost = options.get("on_lost", "requeue")
        if self.on_lost not in get_args(OnLost):
            raise InvalidTask(f"on_lost must be 'requeue' or 'fail', not {self.on_lost!r}.")
        self.expires = None if expires is None else check_expires(expires)
        self.retention = check_retention(options.get("retention"))
        given = cast("Mapping[str, Any]", options)
        self.retries = check_retries(**{name: given[name] for name in RetryOptions.__optional_keys__ & given.keys()})
        unique_for = options.get("unique_for")
        self.limits = check_limits(
            self.signature,
            concurrency=options.get("concurrency"),
            rate=options.get("rate"),
            key=options.get("key"),
            fair_key=options.get("fair_key"),
            on_duplicate=options.get("on_duplicate", "parallel"),
            unique_seconds=None if unique_for is None else check_unique_for(unique_for).total_seconds(),
        )
        self.schedules = tuple(declare(self.path, self.signature, options.get("schedule"), options.get("every")))
        self.on_start = bool(options.get("on_start"))
        self.broadcast = bool(options.get("broadcast"))
        if self.broadcast and self.schedules:
            raise InvalidTask(NO_BROADCAST)
        self.atomic = bool(options.get("atomic"))
        if self.atomic and self.is_async:
            raise InvalidTask("only a synchronous body can be atomic, as in Django.")

    def __repr__(self) -> str:
        return f"<Task {self.path!r}>"

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Run the body here and now, with a detached context if it wants one."""
        return self.invoke(TaskContext.detached(), args, kwargs)

    def invoke(self, context: TaskContext, args: Sequence[Any], kwargs: Mapping[str, Any]) -> R_co:
        """Run the body under this context; an async one returns its coroutine."""
        body = self.function().run if isinstance(self.function, type) else self.function
        return cast("R_co", body(context, *args, **kwargs) if self.bind else body(*args, **kwargs))

    def delay(self, *args: P.args, **kwargs: P.kwargs) -> "Run":
        """Enqueue a run with these arguments, as part of the caller's transaction.

        Raises InvalidArguments if they do not fit the signature or are not JSON.
        """
        return self._enqueue(self._new_run(args, kwargs, AS_THE_TASK_SAYS))

    def apply_async(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> "Run":
        """Enqueue a run with options of its own, as part of the caller's transaction.

        Raises InvalidArguments or InvalidOption.
        """
        return self._enqueue(self.new_run(args, kwargs or {}, **options))

    def delay_many(
        self,
        calls: Iterable[tuple[Any, ...] | Call],
        **options: Unpack[EnqueueOptions],
    ) -> "Sequence[Run]":
        """Enqueue one run for each call, all or none, and return them in the order given, with ascending ids.

        A call is a tuple of positional arguments or a ``Call``. All are checked before anything is written; an error
        names the index. The options are those of apply_async(), the same for every run.
        """
        checked = check_options(**options)
        if checked.idempotency_key is not None:
            raise InvalidOption("idempotency_key is for one run: with delay_many every run would be the first one.")
        news = self._new_runs(calls, checked)
        return broadcast(news) if self.broadcast else enqueue_many(news)

    async def adelay(self, *args: P.args, **kwargs: P.kwargs) -> "Run":
        """See delay()."""
        return await sync_to_async(self.delay, thread_sensitive=True)(*args, **kwargs)

    async def aapply_async(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> "Run":
        """See apply_async()."""
        return await sync_to_async(self.apply_async, thread_sensitive=True)(args, kwargs, **options)

    async def adelay_many(
        self,
        calls: Iterable[tuple[Any, ...] | Call],
        **options: Unpack[EnqueueOptions],
    ) -> "Sequence[Run]":
        """See delay_many()."""
        return await sync_to_async(self.delay_many, thread_sensitive=True)(calls, **options)

    def _enqueue(self, new: NewRun) -> "Run":
        return broadcast([new])[0] if self.broadcast else enqueue(new)

    @property
    def on_lost_word(self) -> str:
        """``on_lost`` as its runs have it."""
        return "" if self.on_lost == "requeue" else self.on_lost

    @property
    def retention_text(self) -> str | None:
        """What is written into its runs about how long they are kept; None: as ``RETENTION`` says when they go."""
        return None if self.retention is None else retention_document(self.retention)

    def new_run(self, args: Sequence[Any], kwargs: Mapping[str, Any], **options: Unpack[EnqueueOptions]) -> NewRun:
        """Return the run that apply_async() would enqueue. Raises as it does."""
        return self._new_run(args, kwargs, check_options(**options))

    def declared(self, time_zone: str) -> list[Declaration]:
        """Return the schedules of this task, with the time zone and the queue of those that name none."""
        return [
            one._replace(time_zone=one.time_zone or time_zone, queue=one.queue or self._queue_of(one))
            for one in self.schedules
        ]

    def calls_of_its_own(self) -> list[tuple[list[Any], dict[str, Any]]]:
        """Return the arguments of the runs that dispatchers enqueue because the task says so."""
        calls = [(json.loads(one.args), json.loads(one.kwargs)) for one in self.schedules]
        return [*calls, ([], {})] if self.on_start else calls

    def _queue_of(self, declaration: Declaration) -> str | None:
        """The queue of a call by schedule, if a function of its arguments says so; None: as the task says."""
        if isinstance(self.queue, str):
            return None
        try:
            return self._queue_for(json.loads(declaration.args), json.loads(declaration.kwargs))
        except Exception:
            logger.exception("Task %s: its queue function fails for schedule %s", self.path, declaration.name)
            return None

    def _new_run(self, args: Sequence[Any], kwargs: Mapping[str, Any], options: Options) -> NewRun:
        return self._new_run_of(args, kwargs, self._encoder.encode(args, kwargs), options)

    def _new_run_of(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], encoded: tuple[str, str], options: Options
    ) -> NewRun:
        if options.key is not None and not self.limits.has_use_for_key:
            raise InvalidOption(f"Task {self.path!r} has neither a limit nor on_duplicate: a key would mean nothing.")
        keys = self.limits.keys_of(self.path, self.signature, args, kwargs, options.key, given_fair=options.fair_key)
        queue = options.queue or self._queue_for(args, kwargs)
        return NewRun(
            task=self.path,
            args=encoded[0],
            kwargs=encoded[1],
            queue=queue,
            priority=self.priority if options.priority is None else options.priority,
            run_after=options.run_after,
            delay_seconds=options.delay_seconds,
            max_attempts=options.max_attempts,
            timeout_seconds=options.timeout_seconds,
            on_lost=self.on_lost_word,
            uuid=options.idempotency_key,
            is_limited=is_limited(queue),
            expires_at=options.expires_at,
            expires_seconds=self._expires_seconds(options),
            retention=self.retention_text,
            **keys._asdict(),
        )

    def _expires_seconds(self, options: Options) -> float | None:
        if options.expires_at is not None or options.expires_seconds is not None or self.expires is None:
            return options.expires_seconds
        return self.expires.total_seconds()

    def _new_runs(self, calls: Iterable[tuple[Any, ...] | Call], options: Options) -> Sequence[NewRun]:
        """Return a run for each call; if they may be, as alike, which costs less. Raises InvalidArguments."""
        has_queue = isinstance(self.queue, str) or options.queue is not None
        if not has_queue or self.limits.is_any or (options.key, options.fair_key) != (None, None):
            return [_of_call(index, call, self._new_run, options) for index, call in enumerate(calls)]
        encoded = [_of_call(index, call, self._encoder.encode) for index, call in enumerate(calls)]
        return Alike(self._new_run_of((), {}, encoded[0], options), encoded) if encoded else []

    def _queue_for(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        if isinstance(self.queue, str):
            return self.queue
        try:
            return check_queue(self.queue(*args, **kwargs))
        except InvalidOption as error:
            raise InvalidOption(f"Task {self.path!r}, by its queue function: {error}") from None


def _of_call(index: int, call: object, make: Callable[..., T], *more: Any) -> T:
    """Make something of the arguments of one call of delay_many; whatever is wrong with them, its index is named."""
    if isinstance(call, tuple):
        args, kwargs = call, dict[str, Any]()
    elif isinstance(call, Call):
        args, kwargs = call.args, call.kwargs
    else:
        raise InvalidArguments(
            f"Call {index} of delay_many: a call must be a tuple or a Call, not {type(call).__name__}."
        )
    try:
        return make(args, kwargs, *more)
    except (InvalidArguments, InvalidOption) as error:
        raise type(error)(f"Call {index} of delay_many: {error}") from None


class _Runnable(Protocol[P, R_co]):
    def run(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class _BoundRunnable(Protocol[P, R_co]):
    def run(self, context: TaskContext, /, *args: P.args, **kwargs: P.kwargs) -> R_co: ...


class _Decorator(Protocol):
    @overload
    def __call__(self, function: type[_Runnable[P, R_co]], /) -> Task[P, R_co]: ...
    @overload
    def __call__(self, function: Callable[P, R_co], /) -> Task[P, R_co]: ...


class _BindingDecorator(Protocol):
    @overload
    def __call__(self, function: type[_BoundRunnable[P, R_co]], /) -> Task[P, R_co]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[TaskContext, P], R_co], /) -> Task[P, R_co]: ...


@overload
def task(function: type[_Runnable[P, R_co]], /) -> Task[P, R_co]: ...
@overload
def task(function: Callable[P, R_co], /) -> Task[P, R_co]: ...
@overload
def task(
    *,
    bind: Literal[True],
    **options: Unpack[TaskOptions],
) -> _BindingDecorator: ...
@overload
def task(
    *,
    bind: Literal[False] = ...,
    **options: Unpack[TaskOptions],
) -> _Decorator: ...
def task(function: Any = None, /, **options: Any) -> Any:
    """Make a function, a coroutine function or a class with ``run`` a task; bare, or with options: see TaskOptions.

    ``bind`` puts a TaskContext before the arguments. Raises InvalidTask. Type checkers that ignore what a class
    decorator returns, as mypy does, want ``report = task(Report)``.
    """
    if function is None:
        return lambda decorated: register(Task(decorated, **options))
    return register(Task(function))
