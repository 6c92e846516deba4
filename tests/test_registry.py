"""What can be a task, what a task is, and how tasks are found."""

import importlib
import inspect
import logging
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime, timedelta
from functools import lru_cache, partial
from pathlib import Path
from typing import Any

import pytest
from django.test import override_settings

import django_dispatch
from django_dispatch import Fixed, InvalidTask, Task, TaskContext, UnknownTask, registry, task


@task
def add(a: int, b: int = 0) -> int:
    """Add two numbers."""
    return a + b


@task(queue="mail", priority=7, timeout=90, max_attempts=4, on_lost="fail")
def send(address: str) -> str:
    return address


@task(bind=True)
def who(context: TaskContext, name: str) -> tuple[int | None, str]:
    return context.run_id, name


@task
async def fetch(url: str) -> str:
    return url


class Report:
    def run(self, month: int) -> tuple["Report", int]:
        return self, month


class BoundReport:
    async def run(self, context: TaskContext, month: int) -> tuple[int, int]:
        return context.attempt, month


report = task(Report)
bound_report = task(bind=True)(BoundReport)


class Labelled:
    queue = "of the class, not of the task"
    path = "of the class"

    def run(self) -> None: ...


def plain(a: int = 0) -> None: ...


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


def no_parameter() -> None: ...


def only_keywords(*, context: TaskContext) -> None: ...


class NoRun:
    pass


class NeedsArguments:
    def __init__(self, size: int) -> None: ...

    def run(self) -> None: ...


class RunWithoutSelf:
    def run() -> None: ...  # type: ignore[misc]  # the mistake under test


def outside() -> Any:
    def inside() -> None: ...

    return inside


async def coroutine(failures: int, error: BaseException) -> None: ...


def moved(module: str) -> Any:
    def function() -> None: ...

    function.__module__, function.__qualname__ = module, "function"
    return function


def test_a_task_is_known_by_module_and_name_and_carries_its_options() -> None:
    assert send.path == f"{__name__}.send"
    assert (send.queue, send.priority, send.timeout) == ("mail", 7, timedelta(seconds=90))
    assert (send.max_attempts, send.on_lost, send.bind, send.is_async) == (4, "fail", False, False)
    assert (add.queue, add.priority, add.timeout) == ("default", 0, None)
    assert (add.max_attempts, add.on_lost) == (1, "requeue")


def test_a_task_looks_like_its_function() -> None:
    assert (add.__name__, add.__doc__, add.__module__) == ("add", "Add two numbers.", __name__)  # type: ignore[attr-defined]
    assert inspect.unwrap(add) is add.function
    assert str(inspect.signature(add)) == "(a: int, b: int = 0) -> int"
    assert list(inspect.signature(who).parameters) == ["name"]
    assert list(inspect.signature(report).parameters) == ["month"]
    assert list(inspect.signature(bound_report).parameters) == ["month"]


def test_attributes_of_a_class_are_not_taken_for_those_of_the_task() -> None:
    labelled = task(queue="mail")(Labelled)
    assert (labelled.queue, labelled.path) == ("mail", f"{__name__}.Labelled")


def test_calling_a_task_runs_its_body_plainly() -> None:
    assert add(1, b=2) == 3
    assert who("Ada") == (None, "Ada")


def test_calling_a_class_runs_a_new_instance_each_time() -> None:
    first, second = report(5), report(month=5)
    assert (first[1], second[1]) == (5, 5)
    assert first[0] is not second[0]


def test_async_bodies_are_recognised() -> None:
    assert (fetch.is_async, bound_report.is_async, add.is_async, report.is_async) == (True, True, False, False)


def test_invoke_gives_the_body_the_context_it_is_given() -> None:
    context = TaskContext(run_id=9, epoch=1, attempt=2, worker_id="w", report=None, why_stop=None)
    assert who.invoke(context, ["Ada"], {}) == (9, "Ada")
    assert add.invoke(context, [1], {"b": 2}) == 3


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda: None, "lambda"),
        (outside(), "inside a function"),
        (moved("__main__"), "script that runs"),
        (moved("m" * 250), "255 characters"),
        (generator, "generator"),
        (async_generator, "generator"),
        (NoRun, "without a method run()"),
        (NeedsArguments, "'size'"),
        (RunWithoutSelf, "for self"),
        (partial(plain), "must be a function"),
        (Report().run, "must be a function"),
        ("add", "must be a function"),
        (add, "already"),
        (type("Nothing", (), {"run": 3}), "without a method run()"),
        (dict.fromkeys, "must be a function"),
    ],
)
def test_what_cannot_be_a_task_is_refused_with_the_reason(function: Any, reason: str) -> None:
    known = registry.all_tasks()
    with pytest.raises(InvalidTask, match=r".*") as caught:
        task(function)
    assert reason in str(caught.value)
    assert registry.all_tasks() == known


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"queue": ""}, "queue"),
        ({"queue": "q" * 101}, "queue"),
        ({"queue": 5}, "queue"),
        ({"priority": 101}, "priority"),
        ({"priority": -101}, "priority"),
        ({"priority": True}, "priority"),
        ({"priority": 1.5}, "priority"),
        ({"timeout": 0}, "timeout"),
        ({"timeout": -1}, "timeout"),
        ({"timeout": float("nan")}, "timeout"),
        ({"timeout": "5"}, "timeout"),
        ({"max_attempts": 0}, "max_attempts"),
        ({"max_attempts": 40_000}, "max_attempts"),
        ({"on_lost": "retry"}, "on_lost"),
        *(({"backoff": value}, "backoff") for value in (-1, True, "5", float("nan"), float("inf"), None, 1e12)),
        ({"backoff": timedelta(days=-1)}, "backoff"),
        ({"backoff": timedelta.max}, "backoff"),
        ({"backoff": coroutine}, "backoff"),
        ({"backoff": Fixed}, "backoff"),
        *(({"retry_on": value}, "retry_on") for value in (int, ValueError(), "ValueError", (ValueError, 5), None)),
        ({"no_retry_on": [object]}, "no_retry_on"),
        ({"retry_on_timeout": 1}, "retry_on_timeout"),
        *(
            ({"expires": value}, "expires")
            for value in (0, -1, "5", True, float("nan"), datetime(2060, 1, 1, tzinfo=UTC))
        ),
    ],
)
def test_options_out_of_range_are_refused(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidTask) as caught:
        task(**options)(plain)
    assert reason in str(caught.value)
    assert f"{__name__}.plain" in str(caught.value)


def test_only_a_synchronous_body_can_be_atomic() -> None:
    with pytest.raises(InvalidTask, match="synchronous"):
        task(atomic=True)(coroutine)


@pytest.mark.parametrize("function", [no_parameter, only_keywords])
def test_a_bound_task_needs_room_for_its_context(function: Any) -> None:
    with pytest.raises(InvalidTask, match="context"):
        task(bind=True)(function)


def test_decorated_callables_with_a_name_can_be_tasks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registry, "_tasks", {})
    cached = task(lru_cache(plain))
    assert registry.get(f"{__name__}.plain") is cached


def test_a_task_is_found_by_its_path() -> None:
    assert registry.get(add.path) is add
    assert registry.all_tasks()[fetch.path] is fetch
    with pytest.raises(UnknownTask, match=r"shop\.tasks\.gone"):
        registry.get("shop.tasks.gone")


@pytest.fixture
def apps_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    for name in ("_tasks", "_broken"):
        monkeypatch.setattr(registry, name, {})
    monkeypatch.setattr(registry, "_discovered", set())
    yield tmp_path
    for name in [name for name in sys.modules if name.startswith("discovered_")]:
        del sys.modules[name]


def write_app(folder: Path, name: str, tasks: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").touch()
    (folder / name / "tasks.py").write_text(tasks)


WORKING = "from django_dispatch import task\n@task\ndef one(): return 1\n"


def test_autodiscovery_imports_every_tasks_module_and_survives_broken_ones(
    apps_on_disk: Path, caplog: pytest.LogCaptureFixture
) -> None:
    write_app(apps_on_disk, "discovered_a", "import discovered_nothing\n")
    write_app(apps_on_disk, "discovered_b", "def broken(:\n")
    write_app(apps_on_disk, "discovered_c", WORKING + "from django_dispatch import registry\nregistry.autodiscover()\n")
    with (
        override_settings(INSTALLED_APPS=["discovered_a", "discovered_b", "discovered_c"]),
        caplog.at_level(logging.ERROR, "django_dispatch"),
    ):
        registry.autodiscover()
        registry.autodiscover()
    assert list(registry.all_tasks()) == ["discovered_c.tasks.one"]
    broken = registry.broken_modules()
    assert list(broken) == ["discovered_a.tasks", "discovered_b.tasks"]
    assert "No module named 'discovered_nothing'" in broken["discovered_a.tasks"]
    assert [record.getMessage().split()[1] for record in caplog.records] == ["discovered_a.tasks", "discovered_b.tasks"]
    assert all(record.exc_info for record in caplog.records)


def test_a_reloaded_module_replaces_its_tasks(apps_on_disk: Path) -> None:
    write_app(apps_on_disk, "discovered_d", WORKING)
    module = importlib.import_module("discovered_d.tasks")
    old = module.one
    importlib.reload(module)
    assert registry.get("discovered_d.tasks.one") is module.one is not old


def test_the_package_and_tasks_can_be_imported_before_apps_are_ready_and_without_settings() -> None:
    program = "import django_dispatch as d; d.task; d.cancel; d.TaskContext; d.Call; import django_dispatch.registry"
    subprocess.run([sys.executable, "-c", program], check=True, env={"PYTHONPATH": ":".join(sys.path)})


def test_public_names() -> None:
    assert django_dispatch.__all__ == [
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
    assert {name: getattr(django_dispatch, name).__name__ for name in django_dispatch.__all__} == {
        name: name for name in django_dispatch.__all__
    }
    assert set(django_dispatch.__all__) <= set(dir(django_dispatch))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        django_dispatch.nothing  # noqa: B018
    assert isinstance(add, Task)
