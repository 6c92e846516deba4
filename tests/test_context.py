"""What a body is told about its run."""

import json
import logging
from typing import Any
from uuid import UUID

import pytest

from django_dispatch import InvalidOption, TaskContext
from django_dispatch.logs import current_run, run_fields


def a_context(**given: Any) -> TaskContext:
    facts: dict[str, Any] = {
        "run_id": 7,
        "epoch": 2,
        "attempt": 1,
        "worker_id": "w",
        "report": None,
        "why_stop": None,
    }
    return TaskContext(**(facts | given))


def test_the_uuid_is_the_same_for_every_attempt_of_a_run_and_no_other() -> None:
    assert isinstance(a_context().uuid, UUID)
    assert a_context(attempt=2, epoch=5).uuid == a_context().uuid != a_context(run_id=8).uuid


def test_a_detached_context_has_no_run_and_goes_nowhere() -> None:
    context = TaskContext.detached()
    assert (context.run_id, context.uuid, context.attempt) == (None, None, 1)
    assert (context.cancel_requested, context.stop_reason) == (False, None)
    context.progress(1, 2)


def test_a_cancel_is_seen_when_it_comes() -> None:
    reasons: list[str | None] = [None]
    context = a_context(why_stop=lambda: reasons[-1])
    assert (context.cancel_requested, context.stop_reason) == (False, None)
    reasons.append("timeout")
    assert (context.cancel_requested, context.stop_reason) == (True, "timeout")


def test_progress_is_reported_as_compact_json() -> None:
    reports: list[str] = []
    context = a_context(report=reports.append)
    context.progress(1, 4, "größer")
    context.progress(2.5)
    assert reports[0] == '{"done":1,"total":4,"message":"größer"}'
    assert json.loads(reports[1]) == {"done": 2.5, "total": None, "message": ""}


@pytest.mark.parametrize(
    "report",
    [
        (-1,),
        ("1",),
        (True,),
        (float("nan"),),
        (1, float("inf")),
        (1, -1),
        (10**400,),
        (1, 2, "a\0"),
        (1, 2, "\ud800"),
        (1, 2, 3),
    ],
)
@pytest.mark.parametrize("context", [a_context(report=lambda text: None), TaskContext.detached()])
def test_progress_that_cannot_be_stored_is_refused(context: TaskContext, report: Any) -> None:
    with pytest.raises(InvalidOption, match="progress"):
        context.progress(*report)


def test_the_log_of_a_context_names_the_run(caplog: pytest.LogCaptureFixture) -> None:
    token = current_run.set(run_fields(7, "shop.tasks.add", "mail", 2))
    try:
        with caplog.at_level(logging.INFO, "django_dispatch.task"):
            a_context().log.info("hello", extra={"order": 5})
    finally:
        current_run.reset(token)
    (record,) = caplog.records
    assert record.name == "django_dispatch.task"
    found = {name: vars(record)[name] for name in ("run_id", "task", "queue", "attempt", "order")}
    assert found == {"run_id": 7, "task": "shop.tasks.add", "queue": "mail", "attempt": 2, "order": 5}
