"""Finding a task by its path, and the modules that define tasks; in any process, before apps are ready too."""

import logging
import threading
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

from django.apps import apps
from django.utils.module_loading import module_has_submodule

from .exceptions import UnknownTask

if TYPE_CHECKING:
    from .definition import Task

P = ParamSpec("P")
R_co = TypeVar("R_co", covariant=True)

logger = logging.getLogger("django_dispatch.registry")

_tasks: dict[str, "Task[..., Any]"] = {}
_discovered: set[str] = set()
_broken: dict[str, str] = {}
_discovering = threading.RLock()


def get(path: str) -> "Task[..., Any]":
    """Return the task of this path. Raises UnknownTask if nothing that was imported so far defines it."""
    try:
        return _tasks[path]
    except KeyError:
        raise UnknownTask(
            f"No task {path!r} is registered: define it in the tasks module of an installed app, or import its module "
            "there."
        ) from None


def all_tasks() -> "dict[str, Task[..., Any]]":
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


def register(new: "Task[P, R_co]") -> "Task[P, R_co]":
    """Have a task be found by its path."""
    # The same path again is its module being reloaded: the newer function is the one to run.
    _tasks[new.path] = new
    return new
