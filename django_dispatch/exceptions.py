"""The errors of django-dispatch, all under one base class."""


class DispatchError(Exception):
    """The base of every error that django-dispatch raises."""


class InvalidTask(DispatchError):
    """The decorated object cannot be a task, or an option of ``@task`` makes no sense."""


class UnknownTask(DispatchError, LookupError):
    """No registered task has this path."""


class InvalidArguments(DispatchError, TypeError):
    """The arguments of an enqueue do not fit the task's signature or cannot be stored as JSON."""


class InvalidOption(DispatchError, ValueError):
    """An option of an enqueue is out of its range or contradicts another one."""


class ControlError(DispatchError):
    """A control command could not be asked, or no answer came in time."""


# A stop must pass through a body's ``except Exception``, and psycopg must cancel the statement that is
# under way and leave its connection usable. Both follow from KeyboardInterrupt, and from nothing else.
class RunStopped(KeyboardInterrupt):
    """The run must end now. Raised inside a synchronous body; catch it only to clean up, then re-raise."""


class RunCancelled(RunStopped):
    """Somebody cancelled the run."""


class RunTimedOut(RunStopped):
    """The run used up its timeout."""


class RunInterrupted(RunStopped):
    """The dispatcher is shutting down and hands the run back."""
