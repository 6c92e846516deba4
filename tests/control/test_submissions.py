"""What becomes of a message: the run it asks for, or the reason why not; and that its uuid makes one run."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from inspect import signature
from typing import Any

import pytest
from django.db import OperationalError
from django.db.models.functions import Now

from django_dispatch.control.wire import BadMessage
from django_dispatch.dispatcher import submissions
from django_dispatch.dispatcher.stats import Stats
from django_dispatch.dispatcher.submissions import Submissions, message_run
from django_dispatch.finish import TaskFacts
from django_dispatch.limits import Limits, as_document, check_limits
from django_dispatch.messages import Kind
from django_dispatch.models import Run
from django_dispatch.store.postgres import PostgresStore, open_store

FACTS = {"shop.add": TaskFacts(Kind.SYNC, priority=7, on_lost="fail", queue="sums")}


def message(**fields: Any) -> dict[str, Any]:
    return {"task": "shop.add", "uuid": "u1"} | fields


def test_a_message_becomes_a_run_of_its_channels_queue_with_its_tasks_options() -> None:
    run = message_run(message(args=[1, "é"], kwargs={"k": None}, delay=2.5, timeout=30), FACTS, "mail")
    assert (run.uuid, run.unique_key, run.task, run.queue, run.priority) == ("u1", None, "shop.add", "mail", 7)
    assert (run.args, run.kwargs, run.on_lost) == ('[1,"é"]', '{"k":null}', "fail")
    assert (run.delay_seconds, run.timeout_seconds) == (2.5, 30)


def test_without_a_channels_queue_it_is_the_messages_or_the_tasks() -> None:
    assert message_run(message(queue="own"), FACTS, None).queue == "own"
    assert message_run(message(), FACTS, None).queue == "sums"


def test_zero_is_none_and_unknown_fields_are_ignored() -> None:
    run = message_run(message(delay=0.0, timeout=0, args=None, time_pub=1.5, bind=True, guid={}), FACTS, "q")
    assert (run.delay_seconds, run.timeout_seconds, run.args, run.kwargs) == (None, None, "[]", "{}")


def test_discard_has_a_key_of_task_and_arguments() -> None:
    def key(**fields: Any) -> str | None:
        return message_run(message(**fields), FACTS, "q").unique_key

    one = key(on_duplicate="discard", args=[1], kwargs={"a": 1, "b": 2})
    assert one
    assert one == key(on_duplicate="discard", args=[1], kwargs={"b": 2, "a": 1}, uuid="u2")
    assert one != key(on_duplicate="discard", args=[2], kwargs={"a": 1, "b": 2})
    assert key(on_duplicate="parallel") is key() is None


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        *(({"task": value}, "no task") for value in (None, "", 1, ["shop.add"])),
        *(({"uuid": value}, "no uuid") for value in (None, "", 1, "u" * 256, "u\0", "\ud800")),
        *(({"task": value}, "unknown task") for value in ("lambda: 1", "os.system", "shop.add ")),
        *(({"args": value}, "bad value") for value in ("abc", {"a": 1}, 5, ["a\0b"], ["\ud800"], [float("nan")])),
        *(({"kwargs": value}, "bad value") for value in ([1], "x", {"a\0": 1}, {"a": 10**5000})),
        *(({"delay": value}, "bad value") for value in (-1, "1", True, float("inf"), [1])),
        *(({"timeout": value}, "bad value") for value in (-1, "1")),
        ({"args": json.loads("[" * 180 + "]" * 180)}, "bad value"),
    ],
    ids=lambda value: "+".join(value) if isinstance(value, dict) else value,
)
def test_what_cannot_be_a_run_is_refused(fields: dict[str, Any], kind: str) -> None:
    with pytest.raises(BadMessage) as error:
        message_run(message(**fields), FACTS, None)
    assert error.value.kind == kind


@pytest.fixture
def store(transactional_db: None) -> Iterator[PostgresStore]:
    store = open_store("default", "test", statement_timeout_seconds=5)
    yield store
    store.close()


class DirectLine:
    """Calls on this thread; fails the first ``failures`` of them."""

    def __init__(self, store: PostgresStore, failures: int = 0) -> None:
        self.store = store
        self.failures = failures

    async def call(self, verb: Any) -> Any:
        if self.failures:
            self.failures -= 1
            raise OperationalError("the server is away")
        return verb(self.store)


def submit(line: Any, *messages: dict[str, Any], facts: Any = None) -> tuple[list[str], list[str], Stats]:
    """Put messages through; return the kinds of those complained of, the queues announced, and the counts."""
    complaints: list[str] = []
    queues: list[str] = []
    stats = Stats()

    async def main() -> None:
        known = facts or (lambda: FACTS)
        inlet = Submissions(
            line,
            stats,
            facts=known,
            complain=lambda error: complaints.append(error.kind),
            on_ready=queues.extend,
        )
        running = asyncio.create_task(inlet.run())
        for one in messages:
            inlet.add("mail", one)
        while inlet.waiting or inlet._event.is_set():
            assert not running.done()
            await asyncio.sleep(0)
        running.cancel()

    asyncio.run(main())
    return complaints, queues, stats


def test_each_uuid_makes_one_run_whoever_hears_of_it(store: PostgresStore) -> None:
    twice = [message(uuid=f"u{number % 3}", args=[number % 3]) for number in range(6)]
    first = submit(DirectLine(store), *twice)
    second = submit(DirectLine(store), *twice)
    assert (first[1], second[1]) == (["mail"], [])
    assert (first[2].runs_received, second[2].runs_received) == (3, 0)
    found = Run.objects.order_by("uuid")
    assert [(run.uuid, run.args, run.queue, run.source, run.status) for run in found] == [
        (f"u{number}", [number], "mail", "notify", "READY") for number in range(3)
    ]


def test_a_delayed_one_is_scheduled_by_the_databases_clock(store: PostgresStore) -> None:
    _, queues, _ = submit(DirectLine(store), message(delay=3600, timeout=1.5))
    run = Run.objects.get()
    assert run.run_after is not None
    assert timedelta(minutes=59) < run.run_after - run.enqueued_at < timedelta(minutes=61)
    assert (run.status, run.timeout, queues) == ("SCHEDULED", timedelta(seconds=1.5), [])


def test_a_duplicate_is_discarded_while_the_first_waits_or_runs(store: PostgresStore) -> None:
    line = DirectLine(store)
    submit(line, message(uuid="a", on_duplicate="discard"), message(uuid="b", on_duplicate="discard"))
    assert [run.uuid for run in Run.objects.all()] == ["a"]
    store.cancel(10, uuid="a")
    submit(line, message(uuid="c", on_duplicate="discard"))
    assert [run.uuid for run in Run.objects.order_by("id")] == ["a", "c"]


def test_what_cannot_be_honoured_is_recorded_and_told(store: PostgresStore) -> None:
    complaints, _, stats = submit(DirectLine(store), message(on_duplicate="sometimes"))
    assert (complaints, stats.runs_received, Run.objects.count()) == (["on_duplicate"], 1, 1)


def test_serial_ones_wait_at_one_key_and_queue_one_keeps_one_of_them(store: PostgresStore) -> None:
    serial = [message(uuid=f"s{number}", on_duplicate="serial", args=[1]) for number in range(3)]
    one = [message(uuid=f"q{number}", on_duplicate="queue_one", args=[1]) for number in range(3)]
    complaints, queues, _ = submit(DirectLine(store), *serial, *one, message(uuid="other", on_duplicate="serial"))
    found = Run.objects.order_by("pk")
    assert (complaints, queues, {run.status for run in found}) == ([], [], {"BLOCKED"})
    assert sorted(run.uuid or "" for run in found) == ["other", "q0", "s0", "s1", "s2"]
    assert len({run.blocked_by for run in found}) == 2  # those of the same arguments wait at one
    assert {run.concurrency_limit for run in found} == {1}


SIGNATURE = signature(lambda order, note="-": None)
LIMITED = check_limits(SIGNATURE, concurrency=2, key="order-{order}-{note}", fair_key="of-{note}")
BY_FUNCTION = check_limits(SIGNATURE, concurrency=2, key=lambda order: "k")


@pytest.mark.parametrize("fields", [{"args": [7]}, {"kwargs": {"order": 7}}, {"args": [7], "kwargs": {"note": "-"}}])
def test_what_a_task_declares_holds_for_messages_too(fields: dict[str, Any]) -> None:
    facts = {"shop.add": replace(FACTS["shop.add"], limits=document_of(LIMITED))}
    run = message_run(message(**fields), facts, None)
    assert (run.concurrency_key, run.concurrency_limit, run.fair_key) == ("key:order-7--", 2, "of--")


def test_one_whose_time_is_over_gives_way_to_a_message(store: PostgresStore) -> None:
    limits = check_limits(SIGNATURE, on_duplicate="discard", unique_seconds=60)
    facts = {"shop.add": replace(FACTS["shop.add"], limits=document_of(limits))}
    line = DirectLine(store)
    submit(line, message(uuid="a", args=[7]), facts=lambda: facts)
    Run.objects.update(status="SUCCESSFUL", finished_at=Now())
    submit(line, message(uuid="b", args=[7]), message(uuid="c", args=[8]), facts=lambda: facts)
    Run.objects.filter(uuid="a").update(unique_until=Now())
    submit(line, message(uuid="d", args=[7]), facts=lambda: facts)
    assert [(run.uuid, run.unique_key is None) for run in Run.objects.order_by("pk")] == [
        *(("a", True), ("c", False), ("d", False))
    ]


def test_a_key_that_cannot_be_made_is_refused() -> None:
    facts = {"shop.add": replace(FACTS["shop.add"], limits=document_of(LIMITED))}
    with pytest.raises(BadMessage, match="missing a required argument: 'order'"):
        message_run(message(), facts, None)
    facts = {"shop.add": replace(FACTS["shop.add"], limits=document_of(BY_FUNCTION))}
    with pytest.raises(BadMessage, match="its key is a function"):
        message_run(message(args=[7]), facts, None)


def document_of(limits: Limits) -> Any:
    """As it comes from a zygote."""
    return json.loads(json.dumps(as_document(limits, SIGNATURE)))


def test_messages_wait_for_the_database(store: PostgresStore) -> None:
    _, queues, stats = submit(DirectLine(store, failures=3), message())
    assert (queues, stats.runs_received, Run.objects.count()) == (["mail"], 1, 1)


def test_messages_wait_until_the_tasks_are_known(store: PostgresStore) -> None:
    asked: list[None] = []

    def facts() -> dict[str, TaskFacts]:
        asked.append(None)
        return FACTS if len(asked) > 3 else {}

    complaints, _, stats = submit(DirectLine(store), message(), facts=facts)
    assert (complaints, stats.runs_received) == ([], 1)


def test_one_that_postgres_refuses_does_not_hold_up_the_others(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = message_run

    def careless(document: Any, facts: Any, queue: Any) -> Any:
        found = whole(document, facts, queue)
        bad = found._replace(args='["a\\u0000b"]')
        return bad if document["uuid"] == "bad" else found

    monkeypatch.setattr(submissions, "message_run", careless)
    messages = [message(uuid=uuid) for uuid in ("a", "bad", "c")]
    complaints, _, stats = submit(DirectLine(store), *messages)
    assert (complaints, stats.runs_received) == (["bad value"], 2)
    assert sorted(Run.objects.values_list("uuid", flat=True)) == ["a", "c"]


def test_so_many_wait_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submissions, "MOST_WAITING", 2)

    async def main() -> None:
        inlet = Submissions(
            None,  # type: ignore[arg-type]
            Stats(),
            facts=dict,
            complain=lambda error: None,
            on_ready=lambda names: None,
        )
        inlet.add("q", message())
        inlet.add("q", message())
        with pytest.raises(BadMessage) as error:
            inlet.add("q", message())
        assert error.value.kind == "too many"

    asyncio.run(main())
