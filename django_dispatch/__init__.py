"""Background work for Django from the project's own PostgreSQL.

The life of a run, and the module of each stage:

===========  =======================================================================  =================================
defined      ``@task`` registers a function, with its options                         ``definition``, ``registry``
enqueued     the arguments are checked; one row is inserted, in the caller's          ``arguments``, ``enqueue``
             transaction
recorded     the database is the queue and the only truth                             ``models``, ``store``
scheduled    or a rule says when, and a dispatcher enqueues it then                   ``schedules``, ``declarations``
announced    after the commit, a hint that a queue may have work                      ``wakeups``
admitted     a run with a limit waits for a place, which a dispatcher gives           ``limits``, ``dispatcher``
dispatched   ``rundispatcher`` claims READY runs under its lease                      ``dispatcher``
executed     a child process runs the body, with a context if it wants one            ``executors``, ``context``
steered      cancelled, run again, its queue paused; dispatchers asked and told       ``steering``, ``control``
decided      what follows an outcome: final, or another attempt, and when             ``retry``, ``policy``,
                                                                                      ``decisions``, ``finish``
finished     the outcome is written, if the lease still holds                         ``store``
===========  =======================================================================  =================================

``conf`` reads the ``DISPATCH`` setting; ``exceptions`` holds all errors. The names below are the public ones; they
are imported when they are first asked for, so that this package can be imported before apps are ready.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .context import TaskContext
    from .decisions import Cancel, Retry, Snooze
    from .definition import Task, task
    from .enqueue import Call
    from .exceptions import (
        ControlError,
        DispatchError,
        InvalidArguments,
        InvalidOption,
        InvalidTask,
        RunCancelled,
        RunInterrupted,
        RunStopped,
        RunTimedOut,
        UnknownTask,
    )
    from .logs import JsonFormatter, RunContextFilter
    from .retry import Exponential, Fixed, Linear
    from .schedules import Cron, Every
    from .steering import CancelAnswer, cancel, cancel_many, pause_queue, resume_queue, run_again, run_now

__all__ = [
    "Call",
    "Cancel",
    "CancelAnswer",
    "ControlError",
    "Cron",
    "DispatchError",
    "Every",
    "Exponential",
    "Fixed",
    "InvalidArguments",
    "InvalidOption",
    "InvalidTask",
    "JsonFormatter",
    "Linear",
    "Retry",
    "RunCancelled",
    "RunContextFilter",
    "RunInterrupted",
    "RunStopped",
    "RunTimedOut",
    "Snooze",
    "Task",
    "TaskContext",
    "UnknownTask",
    "cancel",
    "cancel_many",
    "pause_queue",
    "resume_queue",
    "run_again",
    "run_now",
    "task",
]

_HOMES = {
    "context": ("TaskContext",),
    "decisions": ("Cancel", "Retry", "Snooze"),
    "definition": ("Task", "task"),
    "enqueue": ("Call",),
    "logs": ("JsonFormatter", "RunContextFilter"),
    "retry": ("Exponential", "Fixed", "Linear"),
    "schedules": ("Cron", "Every"),
    "steering": ("CancelAnswer", "cancel", "cancel_many", "pause_queue", "resume_queue", "run_again", "run_now"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f".{_HOME.get(name, 'exceptions')}", __name__), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
