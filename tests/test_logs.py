"""What log records say of a run, and their form as JSON lines."""

import json
import logging
import sys
from typing import Any

import pytest

from django_dispatch import JsonFormatter, RunContextFilter
from django_dispatch.control import ask
from django_dispatch.dispatcher.run_log import tell_ended
from django_dispatch.logs import RUN_FIELDS, current_run, run_fields, written_by_a_thread
from django_dispatch.messages import Outcome, Verdict
from django_dispatch.store.values import ClaimedRun, Settlement
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import wait_until_final
from tests.kit.waiting import wait_for

NO_LOGGING = {"KIT_LOGGING": "{}"}


def a_record(**extra: Any) -> logging.LogRecord:
    return logging.getLogger("elsewhere").makeRecord("elsewhere", 20, "f", 1, "text", (), None, extra=extra)


def named(record: logging.LogRecord) -> dict[str, Any]:
    """The fields that are to be on every record."""
    return {name: vars(record)[name] for name in (*RUN_FIELDS, "node")}


def test_the_filter_names_the_run_and_the_node() -> None:
    here = run_fields(9, "shop.tasks.add", "mail", 2)
    token = current_run.set(here)
    try:
        record = a_record()
        assert RunContextFilter("web1").filter(record)
    finally:
        current_run.reset(token)
    assert named(record) == {**here, "node": "web1"}


@pytest.mark.parametrize(
    ("verdict", "status", "level"),
    [
        (Verdict.RETURNED, "SUCCESSFUL", "INFO"),
        (Verdict.RAISED, "FAILED", "WARNING"),
        (Verdict.UNSTARTED, "READY", "DEBUG"),
        (Verdict.UNSTARTED, "CANCELLED", "INFO"),
    ],
)
def test_a_run_that_ends_is_a_line_and_one_that_is_given_back_a_detail(
    verdict: Verdict, status: str, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    run = ClaimedRun(5, 9, "shop.add", "default", 0, 1, 0, 0, None, None, "", "[]", "{}")
    with caplog.at_level(logging.DEBUG, "django_dispatch.dispatcher"):
        tell_ended(run, Outcome(5, 9, verdict, 1.5), Settlement(5, 9, status))
    (record,) = caplog.records
    words = verdict.name.lower()
    assert (record.levelname, record.message) == (
        level,
        f"Run 5 shop.add {status}: {words} after 1.500 s (attempt 1).",
    )


def test_the_filter_names_no_run_outside_one_and_keeps_what_the_record_says() -> None:
    outside, told = a_record(), a_record(run_id=3, task="t", node="n")
    assert RunContextFilter().filter(outside) and RunContextFilter("web1").filter(told)
    assert set(named(outside).values()) == {None}
    assert named(told) == {"run_id": 3, "task": "t", "queue": None, "attempt": None, "node": "n"}


def test_one_filter_does_not_undo_what_another_has_found() -> None:
    """LOGGING may name one of its own; it does not know the node."""
    record = a_record()
    assert RunContextFilter().filter(record) and RunContextFilter("web1").filter(record)
    assert vars(record)["node"] == "web1"


def test_a_record_is_one_line_of_json_with_its_extras() -> None:
    record = a_record(order=5, items=["ä", {"a": 1}], **run_fields(9, "shop.tasks.add", "mail"))
    record.created = 1_000_000_000.25
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line) == {
        "timestamp": "2001-09-09T01:46:40.250+00:00",
        "level": "INFO",
        "logger": "elsewhere",
        "message": "text",
        "pid": record.process,
        "order": 5,
        "items": ["ä", {"a": 1}],
        "run_id": 9,
        "task": "shop.tasks.add",
        "queue": "mail",
    }


def test_a_traceback_stays_within_the_line() -> None:
    try:
        raise ValueError("two\nlines")
    except ValueError:
        record = a_record()
        record.exc_info = sys.exc_info()
    line = JsonFormatter().format(record)
    assert "\n" not in line
    assert json.loads(line)["exception"].endswith("ValueError: two\nlines")


class Unprintable:
    def __repr__(self) -> str:
        raise ValueError("no")


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize("value", [float("nan"), {1: Unprintable()}, LOOP, {(1, 2): 3}, "\ud800\0", b"\xff"])
def test_whatever_is_said_the_line_is_json_and_can_be_written(value: Any) -> None:
    line = JsonFormatter().format(a_record(value=value, order=5))
    line.encode("ascii")

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    assert json.loads(line, parse_constant=refuse)["order"] == 5


def test_a_handler_that_raises_costs_nothing_but_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    class Refuses(logging.StreamHandler[Any]):
        def handle(self, record: logging.LogRecord) -> bool:
            if record.getMessage() == "bad":
                raise LookupError("not this one")
            return super().handle(record)

    logger = logging.getLogger("refuses")
    logger.propagate = False
    logger.handlers = [Refuses()]
    try:
        with written_by_a_thread():
            for text in ("bad", "good"):
                logger.warning(text)
    finally:
        logger.handlers = []
    assert capsys.readouterr().err.splitlines()[-1] == "good"


# in a dispatcher and its executors


def test_every_line_is_json_and_names_its_run(kit: Kit) -> None:
    """Two async bodies say something, wait, and say more, in turns; each line names its own run."""
    dispatcher = kit.dispatchers("web1", env=NO_LOGGING, log_format="json", async_concurrency=4, is_awaited=False)
    runs = [tasks.asay.apply_async((word, "all"), queue=word) for word in ("one", "two")]
    runs.append(tasks.say.apply_async(("three", "all"), queue="three"))
    kit.gate.wait_until_reached("all", times=3)
    kit.gate.open("all")
    runs.append(tasks.misbehave.delay("Leaves", "open_transaction"))
    wait_until_final(*runs)
    dispatcher.terminate()
    assert dispatcher.exit_code() == 0
    records = [json.loads(line) for line in dispatcher.log.splitlines()]
    assert {record["node"] for record in records} == {"web1"}
    assert records[0]["message"].startswith("Dispatcher web1 begins")
    for run in runs[:3]:
        word = run.args[0]
        fields = {"run_id": run.pk, "task": run.task, "queue": word, "attempt": 1}
        texts = {f"{word}{again} by {what}" for again in ("", " again") for what in ("a logger", "the context")}
        said = [record for record in records if record["message"] in texts]
        assert len(said) == 4
        warned = [record for record in records if f"UserWarning: {word} again as a warning" in record["message"]]
        assert [record["logger"] for record in warned] == ["py.warnings"]
        for record in (*said, *warned):
            assert record | fields == record
        assert {record.get("order") for record in said} == {5, None}
        (done,) = [record for record in records if record["message"].startswith(f"Run {run.pk} ")]
        assert done | fields | {"status": "SUCCESSFUL", "verdict": "returned"} == done
        assert 0 < done["duration_seconds"] < 600
    (left,) = [record for record in records if "left a transaction open" in record["message"]]
    assert (left["run_id"], left["task"]) == (runs[3].pk, runs[3].task), "said after the body"


def test_every_line_on_a_run_has_the_same_fields(kit: Kit) -> None:
    """Those of the dispatcher that loses it, of the one that reclaims it, and of the executor that cleans up."""
    kit.dispatchers("a", env=NO_LOGGING, log_format="json")
    run = tasks.leave_programs.apply_async(("gate",), queue="mail")
    kit.gate.wait_until_reached("gate")
    b = kit.dispatchers("b", env=NO_LOGGING, log_format="json")
    kit.dispatchers.all[0].kill9()
    b.wait_for_log("is reclaimed from lease")
    kit.gate.open("gate")
    wait_until_final(run)
    b.wait_for_log("processes behind")
    wait_for(lambda: f"Run {run.pk} {run.task} SUCCESSFUL" in b.log)
    records = [json.loads(line) for line in b.log.splitlines()]
    about = [record for record in records if record["message"].startswith(f"Run {run.pk} ")]
    assert len(about) == 3
    assert {(record["run_id"], record["task"], record["queue"], record["node"]) for record in about} == {
        (run.pk, run.task, "mail", "b")
    }
    assert [record.get("attempt") for record in about if "reclaimed" not in record["message"]] == [2, 2]


def test_the_projects_logging_holds_in_executors_and_may_name_the_run(kit: Kit) -> None:
    """No filter is named: every handler that there is knows the run."""
    logging_setting = {
        "version": 1,
        "disable_existing_loggers": False,
        "formatters": {"own": {"format": "%(node)s/%(queue)s/%(task)s/%(run_id)s/%(attempt)s: %(message)s"}},
        "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "own"}},
        "root": {"handlers": ["console"], "level": "INFO"},
    }
    dispatcher = kit.dispatchers("web1", env={"KIT_LOGGING": json.dumps(logging_setting)})
    run = tasks.say.apply_async(("hello",), queue="mail")
    wait_until_final(run)
    dispatcher.wait_for_log(f"web1/mail/{run.task}/{run.pk}/1: hello by a logger")
    dispatcher.wait_for_log(f"web1/mail/{run.task}/{run.pk}/1: Run {run.pk} {run.task} SUCCESSFUL")
    dispatcher.wait_for_log("web1/None/None/None/None: Ready:")


def test_the_level_that_is_ordered_holds_in_executors_too(kit: Kit) -> None:
    dispatcher = kit.dispatchers("a", async_concurrency=2)
    dispatcher.wait_until_ready(2)
    wait_until_final(tasks.say.delay("before"), tasks.asay.delay("abefore"))
    ask("set_log_level", {"level": "DEBUG"}, timeout=20)
    wait_until_final(tasks.say.delay("during"), tasks.asay.delay("aduring"))
    ask("set_log_level", {"level": "INFO"}, timeout=20)
    wait_until_final(tasks.say.delay("after"), tasks.asay.delay("aafter"))
    dispatcher.terminate()
    dispatcher.exit_code()
    shown = [word for word in ("before", "during", "after") if f" {word} in detail" in dispatcher.log]
    ashown = [word for word in ("before", "during", "after") if f" a{word} in detail" in dispatcher.log]
    assert (shown, ashown) == (["during"], ["during"])
