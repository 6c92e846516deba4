"""Tasks: ``@task``, what a task can do, and finding one by its path; in any process, before apps are ready too."""

import functools
import inspect
import json
import logging
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from importlib import import_module
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
from django.apps import apps
from django.utils.module_loading import module_has_submodule

from .arguments import encode
from .context import TaskContext
from .declarations import Schedules, declare
from .enqueue import (
    Call,
    EnqueueOptions,
    Options,
    check_expires,
    check_max_attempts,
    check_options,
    check_priority,
    check_queue,
    check_timeout,
    check_unique_for,
    enqueue,
    enqueue_many,
    is_limited,
)
from .exceptions import InvalidArguments, InvalidOption, InvalidTask, UnknownTask
from .limits import OnDuplicate, check_limits
from .policy import RetryOptions, check_retries
from .store.base import NewRun
from .store.schedule_rows import Declaration

if sys.version_info >= (3, 14):
    import annotationlib

if TYPE_CHECKING:
    from .models import Run

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

OnLost = Literal["requeue", "fail"]
MAX_PATH_LENGTH = 255
AS_THE_TASK_SAYS = Options()

logger = logging.getLogger("django_dispatch.registry")

_tasks: dict[str, "Task[..., Any]"] = {}
_discovered: set[str] = set()
_broken: dict[str, str] = {}
_discovering = threading.RLock()


class Task(Generic[P, R_co]):
    """A registered function, or class with ``run``, and the options its runs have by default.

    Calling it runs the body here and now. The other verbs record a run and return it; none of them executes it.
    ``queue``, ``priority``, ``on_lost`` and ``expires`` are written when a run is enqueued, the other options are read
    when it starts or has failed.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        queue: str | Callable[..., str] = "default",
        priority: int = 0,
        timeout: timedelta | float | None = None,
        max_attempts: int = 1,
        bind: bool = False,
        atomic: bool = False,
        on_lost: OnLost = "requeue",
        expires: timedelta | float | None = None,
        schedule: Schedules | None = None,
        every: timedelta | None = None,
        on_start: bool = False,
        concurrency: int | None = None,
        rate: str | None = None,
        key: str | Callable[..., str] | None = None,
        on_duplicate: OnDuplicate = "parallel",
        unique_for: timedelta | float | None = None,
        **retries: Unpack[RetryOptions],
    ) -> None:
        self.path = _path_of(function)
        body = _body_of(self.path, function)
        self.is_async = iscoroutinefunction(body)
        self.bind = bind
        self.atomic = atomic
        if atomic and self.is_async:
            raise InvalidTask(f"Task {self.path!r}: only a synchronous body can be atomic, as in Django.")
        self.signature = self.__signature__ = _signature_of(self.path, function, bind=bind)
        try:
            self.queue = queue if callable(queue) else check_queue(queue)
            self.priority = check_priority(priority)
            self.timeout = None if timeout is None else check_timeout(timeout)
            self.max_attempts = check_max_attempts(max_attempts)
            self.limits = check_limits(
                self.signature,
                concurrency=concurrency,
                rate=rate,
                key=key,
                on_duplicate=on_duplicate,
                unique_seconds=None if unique_for is None else check_unique_for(unique_for).total_seconds(),
            )
            self.expires = None if expires is None else check_expires(expires)
            self.retries = check_retries(**retries)
            self.schedules = tuple(declare(self.path, self.signature, schedule, every))
        except (InvalidOption, InvalidTask) as error:
            raise InvalidTask(f"Task {self.path!r}: {error}") from None
        except InvalidArguments as error:
            raise InvalidTask(str(error)) from None
        if on_start:
            _check_is_callable_without_arguments(self.path, self.signature)
        self.on_start = bool(on_start)
        if on_lost not in get_args(OnLost):
            raise InvalidTask(f"Task {self.path!r}: on_lost must be 'requeue' or 'fail', not {on_lost!r}.")
        self.on_lost = on_lost
        self.function = function
        functools.update_wrapper(self, function, updated=())

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
        return enqueue(self._new_run(args, kwargs, AS_THE_TASK_SAYS))

    def apply_async(
        self,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[EnqueueOptions],
    ) -> "Run":
        """Enqueue a run with options of its own, as part of the caller's transaction.

        Raises InvalidArguments or InvalidOption.
        """
        return enqueue(self.new_run(args, kwargs or {}, **options))

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
        return enqueue_many([self._new_run_of_call(index, call, checked) for index, call in enumerate(calls)])

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
        args_json, kwargs_json = encode(self.path, self.signature, args, kwargs)
        if options.key is not None and not self.limits.is_any:
            raise InvalidOption(f"Task {self.path!r} has neither a limit nor on_duplicate: a key would mean nothing.")
        keys = self.limits.keys_of(self.path, self.signature, args, kwargs, options.key)
        queue = options.queue or self._queue_for(args, kwargs)
        return NewRun(
            task=self.path,
            args=args_json,
            kwargs=kwargs_json,
            queue=queue,
            priority=self.priority if options.priority is None else options.priority,
            run_after=options.run_after,
            delay_seconds=options.delay_seconds,
            max_attempts=options.max_attempts,
            timeout_seconds=options.timeout_seconds,
            on_lost=self.on_lost,
            uuid=options.idempotency_key,
            is_limited=is_limited(queue),
            expires_at=options.expires_at,
            expires_seconds=self._expires_seconds(options),
            **keys._asdict(),
        )

    def _expires_seconds(self, options: Options) -> float | None:
        if options.expires_at is not None or options.expires_seconds is not None or self.expires is None:
            return options.expires_seconds
        return self.expires.total_seconds()

    def _new_run_of_call(self, index: int, call: object, options: Options) -> NewRun:
        if isinstance(call, tuple):
            call = Call(call)
        if not isinstance(call, Call):
            raise InvalidArguments(
                f"Call {index} of delay_many: a call must be a tuple or a Call, not {type(call).__name__}."
            )
        try:
            return self._new_run(call.args, call.kwargs, options)
        except (InvalidArguments, InvalidOption) as error:
            raise type(error)(f"Call {index} of delay_many: {error}") from None

    def _queue_for(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        if isinstance(self.queue, str):
            return self.queue
        try:
            return check_queue(self.queue(*args, **kwargs))
        except InvalidOption as error:
            raise InvalidOption(f"Task {self.path!r}, by its queue function: {error}") from None


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
    queue: str | Callable[..., str] = ...,
    priority: int = ...,
    timeout: timedelta | float | None = ...,
    max_attempts: int = ...,
    atomic: bool = ...,
    on_lost: OnLost = ...,
    expires: timedelta | float | None = ...,
    schedule: Schedules | None = ...,
    every: timedelta | None = ...,
    on_start: bool = ...,
    concurrency: int | None = ...,
    rate: str | None = ...,
    key: str | Callable[..., str] | None = ...,
    on_duplicate: OnDuplicate = ...,
    unique_for: timedelta | float | None = ...,
    **retries: Unpack[RetryOptions],
) -> _BindingDecorator: ...
@overload
def task(
    *,
    bind: Literal[False] = ...,
    queue: str | Callable[..., str] = ...,
    priority: int = ...,
    timeout: timedelta | float | None = ...,
    max_attempts: int = ...,
    atomic: bool = ...,
    on_lost: OnLost = ...,
    expires: timedelta | float | None = ...,
    schedule: Schedules | None = ...,
    every: timedelta | None = ...,
    on_start: bool = ...,
    concurrency: int | None = ...,
    rate: str | None = ...,
    key: str | Callable[..., str] | None = ...,
    on_duplicate: OnDuplicate = ...,
    unique_for: timedelta | float | None = ...,
    **retries: Unpack[RetryOptions],
) -> _Decorator: ...
def task(function: Any = None, /, **options: Any) -> Any:
    """Make a function, a coroutine function or a class with ``run`` a task; bare, or with options.

    ``queue`` is a name, or a function of the call's arguments that returns one; ``priority`` goes from -100 to 100,
    higher first; ``timeout`` is a timedelta or seconds; ``max_attempts`` counts the first attempt too; ``bind`` puts
    a TaskContext before the arguments; ``on_lost="fail"`` never repeats a body whose end nobody saw; a run that was not
    started within ``expires`` never is; ``atomic`` makes what the body writes and its success one transaction.

    ``schedule`` (a cron expression, a Cron or Every, or a list of them) and ``every`` (a timedelta) enqueue runs at
    times; ``on_start`` enqueues one whenever a dispatcher of its queue starts.

    ``concurrency`` is how many runs at once, over all dispatchers, and ``rate``, as ``"100/m"``, how many in a time: of
    the task, or of each ``key``, a text with the names of parameters in braces or a function of the arguments.
    ``on_duplicate`` says what becomes of a run while another of its key, or with its arguments, waits or runs;
    ``unique_for`` has duplicates discarded for so long after the enqueue. Raises InvalidTask. Type checkers that
    ignore what a class decorator returns, as mypy does, want ``report = task(Report)``.
    """
    if function is None:
        return lambda decorated: _register(Task(decorated, **options))
    return _register(Task(function))


def get(path: str) -> Task[..., Any]:
    """Return the task of this path. Raises UnknownTask if nothing that was imported so far defines it."""
    try:
        return _tasks[path]
    except KeyError:
        raise UnknownTask(
            f"No task {path!r} is registered: define it in the tasks module of an installed app, or import its module "
            "there."
        ) from None


def all_tasks() -> dict[str, Task[..., Any]]:
    """Return the tasks registered so far, by path."""
    return dict(_tasks)


def autodiscover() -> None:
    """Import the ``tasks`` module of every installed app, each once a process; apps must be ready.

    A module that raises is logged with its traceback and recorded, and keeps no other one from being imported.
    """
    with _discovering:
        for config in apps.get_app_configs():
            name = f"{config.name}.tasks"
            if name in _discovered or config.module is None or not module_has_submodule(config.module, "tasks"):
                continue
            _discovered.add(name)
            try:
                import_module(name)
            except Exception:
                _broken[name] = traceback.format_exc()
                _forget_tasks_of(name)
                logger.exception("Module %s cannot be imported; its tasks are unknown here", name)


def broken_modules() -> dict[str, str]:
    """Return the modules that autodiscover() could not import, each with its traceback."""
    return dict(_broken)


def _forget_tasks_of(module: str) -> None:
    """Unregister what a module defined before it failed: half a module is no place to run a body in."""
    for path in [path for path, task in _tasks.items() if task.function.__module__ == module]:
        del _tasks[path]


def _register(new: Task[P, R_co]) -> Task[P, R_co]:
    # The same path again is its module being reloaded: the newer function is the one to run.
    _tasks[new.path] = new
    return new


def _path_of(function: Any) -> str:
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if isinstance(function, Task):
        raise InvalidTask(f"{function!r} is a task already: decorate its function once.")
    if not callable(function) or inspect.ismethod(function) or not isinstance(module, str) or not isinstance(name, str):
        raise InvalidTask(f"A task must be a function, a coroutine function or a class with run(), not {function!r}.")
    path = f"{module}.{name}"
    if "<lambda>" in name:
        raise InvalidTask(f"A lambda cannot be a task, for it has no name to find it by ({path!r}): use def.")
    if "<locals>" in name:
        raise InvalidTask(f"Task {path!r} is defined inside a function, where no other process finds it: move it out.")
    if module == "__main__":
        raise InvalidTask(f"Task {path!r} is defined in the script that runs: move it to the tasks module of an app.")
    if len(path) > MAX_PATH_LENGTH:
        raise InvalidTask(
            f"The path of a task must be {MAX_PATH_LENGTH} characters at most, not {len(path)}: {path!r}."
        )
    return path


def _body_of(path: str, function: Any) -> Any:
    """What is called with the arguments: the function, or the ``run`` of the class."""
    body = getattr(function, "run", None) if isinstance(function, type) else function
    if not callable(body):
        raise InvalidTask(f"Task {path!r} is a class without a method run(): add one, it is the body.")
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise InvalidTask(f"Task {path!r} is a generator: nobody would iterate over it, use return instead of yield.")
    return body


def _signature_of(path: str, function: Any, *, bind: bool) -> inspect.Signature:
    """The signature that callers see: without ``self`` and without the context."""
    signature = _inspected(path, _body_of(path, function))
    if isinstance(function, type):
        try:
            _inspected(path, function).bind()
        except TypeError as error:
            raise InvalidTask(f"Task {path!r}: each run makes an instance without arguments, but {error}.") from None
        if not isinstance(inspect.getattr_static(function, "run"), staticmethod | classmethod):
            signature = _without_first(path, signature, "self")
    return _without_first(path, signature, "the context that bind=True passes") if bind else signature


def _check_is_callable_without_arguments(path: str, signature: inspect.Signature) -> None:
    try:
        signature.bind()
    except TypeError as error:
        raise InvalidTask(f"Task {path!r} is called without arguments on_start, but {error}.") from None


def _without_first(path: str, signature: inspect.Signature, what: str) -> inspect.Signature:
    parameters = list(signature.parameters.values())
    kind = parameters[0].kind if parameters else inspect.Parameter.KEYWORD_ONLY
    if kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
        raise InvalidTask(f"Task {path!r} needs a first positional parameter for {what}; its signature is {signature}.")
    return signature if kind is inspect.Parameter.VAR_POSITIONAL else signature.replace(parameters=parameters[1:])


def _inspected(path: str, function: Any) -> inspect.Signature:
    try:
        if sys.version_info >= (3, 14):
            # Annotations that only type checkers can import must not matter here.
            return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
        return inspect.signature(function)
    except ValueError:
        raise InvalidTask(f"Task {path!r} has no signature to check calls against: wrap it in a function.") from None
