"""The package dispatcherd, as it comes from the registry, against our dispatchers: its clients, its flow, its CLI."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import dispatcherd.config
import psycopg
import pytest
import yaml
from dispatcherd.chunking import split_message
from dispatcherd.control import Control
from dispatcherd.factories import get_control_from_settings
from dispatcherd.processors.blocker import Blocker
from dispatcherd.processors.delayer import Delayer
from dispatcherd.publish import submit_task
from dispatcherd.publish import task as their_task

from django_dispatch.models import Run
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import wait_for_status, wait_until_final
from tests.kit.waiting import wait_for

REPLY_SECONDS = 20


def theirs(ours: Any) -> Any:
    """What their publisher knows of a task of ours: a function with its module and name."""

    def function(*args: Any, **kwargs: Any) -> None: ...

    function.__module__, function.__qualname__ = ours.path.rsplit(".", 1)
    return their_task(queue="test_channel")(function)


gated, note, agated, linger = map(theirs, (tasks.gated, tasks.note, tasks.agated, tasks.linger))


@pytest.fixture(scope="module")
def configuration(database_url: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Their configuration, in a file as their commands want it."""
    conninfo = psycopg.conninfo.conninfo_to_dict(database_url)
    broker = {
        "config": conninfo,
        "channels": ["test_channel"],
        "default_publish_channel": "test_channel",
        "sync_connection_factory": "dispatcherd.brokers.pg_notify.connection_saver",
    }
    file = tmp_path_factory.mktemp("dispatcherd") / "dispatcher.yml"
    file.write_text(yaml.safe_dump({"version": 2, "brokers": {"pg_notify": broker}, "producers": {}}))
    return file


@pytest.fixture
def control(configuration: Path) -> Iterator[Control]:
    dispatcherd.config.setup(file_path=str(configuration))
    yield get_control_from_settings()
    from dispatcherd.brokers.pg_notify import connection_save

    if connection_save._connection is not None:
        connection_save._connection.close()
        connection_save._connection = None


def ask(control: Control, command: str, data: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    replies = control.control_with_reply(command, expected_replies=2, timeout=REPLY_SECONDS, data=data)
    assert sorted(reply["node_id"] for reply in replies) == ["a", "b"]
    return {reply["node_id"]: reply for reply in replies}


def shown(replies: dict[str, dict[str, Any]]) -> set[str]:
    """The uuids that the replies speak of."""
    return {
        value["uuid"]
        for reply in replies.values()
        for key, value in reply.items()
        if key.startswith("run-") and "uuid" in value
    }


def run_of(message: dict[str, Any]) -> Run:
    """Wait for the run of a message."""
    wait_for(lambda: Run.objects.filter(uuid=message["uuid"]).exists(), what=f"a run of {message}")
    return Run.objects.get(uuid=message["uuid"])


def test_the_flow_of_their_demo(pair: Kit, control: Control) -> None:
    # submit
    message, channel = submit_task(note, args=("hello",))
    assert channel == "test_channel"
    run = wait_until_final(run_of(message))[0]
    assert (run.result, run.queue, run.source) == ("hello", "default", "notify")
    later, _ = submit_task(note, args=(2,), processor_options=(Delayer.Params(delay=0.5),), timeout=45.0)
    scheduled = wait_until_final(run_of(later))[0]
    assert scheduled.timeout == timedelta(seconds=45)
    assert scheduled.started_at is not None
    assert scheduled.started_at - scheduled.enqueued_at >= timedelta(seconds=0.5)
    note.apply_async(args=[3])
    wait_for(lambda: Run.objects.filter(args=[3], status="SUCCESSFUL").count() == 1)

    # discard a duplicate
    option = (Blocker.Params(on_duplicate="discard"),)
    first, _ = submit_task(gated, args=("twin",), processor_options=option)
    pair.gate.wait_until_reached("twin")
    second, _ = submit_task(gated, args=("twin",), processor_options=option)
    marker, _ = submit_task(agated, args=("marker",))
    pair.gate.wait_until_reached("marker")
    assert not Run.objects.filter(uuid=second["uuid"]).exists()

    # running, by nothing, by uuid and by task
    assert shown(ask(control, "running")) == {first["uuid"], marker["uuid"]}
    assert shown(ask(control, "running", {"uuid": marker["uuid"]})) == {marker["uuid"]}
    assert shown(ask(control, "running", {"task": tasks.gated.path})) == {first["uuid"]}
    assert shown(ask(control, "running", {"task": "nothing"})) == set()

    # workers, alive, status and the rest
    workers = [one for reply in ask(control, "workers").values() for key, one in reply.items() if "worker-" in key]
    assert {one["current_task_uuid"] for one in workers} == {first["uuid"], marker["uuid"], None}
    assert ask(control, "alive").keys() == {"a", "b"}
    for reply in ask(control, "status").values():
        assert {"running", "workers", "producers", "metrics", "main", "chunks", "aio_tasks"} <= reply.keys()
    for reply in ask(control, "main").values():
        assert reply["received_count"] > reply["control_count"] > 0
    for command in ("producers", "aio_tasks", "metrics"):
        ask(control, command)
    for reply in ask(control, "set_log_level", {"level": "INFO"}).values():
        assert (reply["level"], reply["logger"]) == ("INFO", "django_dispatch")

    # cancel by uuid and by task
    ask(control, "cancel", {"uuid": marker["uuid"]})
    ask(control, "cancel", {"task": tasks.gated.path})
    for cancelled in (marker, first):
        assert wait_until_final(run_of(cancelled))[0].status == "CANCELLED"


def test_a_megabyte_comes_in_chunks_and_half_of_one_is_seen(pair: Kit, control: Control) -> None:
    text = '😀"\\é' * 50_000 + "x" * 800_000
    message, _ = submit_task(note, args=(text,))
    assert wait_until_final(run_of(message), seconds=60)[0].result == text
    half = {"task": tasks.note.path, "uuid": str(uuid4()), "args": ["y" * 20_000]}
    begun, *rest = split_message(json.dumps(half), max_bytes=8000)
    send(pair, begun)
    message_id = json.loads(begun)["message_id"]
    for reply in ask(control, "chunks").values():
        assert reply["status"]["active_messages"] == 1
        assert reply["status"]["successful_assemblies"] > 0
        assert [one["chunk_id"] for one in reply["partials"][message_id]["chunks"]] == [0]
    send(pair, *reversed(rest))
    assert wait_until_final(run_of(half))[0].args == half["args"]
    assert all(reply["partials"] == {} for reply in ask(control, "chunks").values())


def test_a_reply_larger_than_a_notify_arrives_whole(pair: Kit, control: Control) -> None:
    runs = tasks.linger.delay_many([()] * 100)
    expected = {f"run-{run.id}" for run in runs}

    def seen() -> set[str]:
        return {key for reply in ask(control, "running").values() for key in reply if key.startswith("run-")}

    wait_for(lambda: seen() == expected, 60, what="all of them, in replies in chunks")
    replies = ask(control, "status").values()
    assert max(len(json.dumps(reply)) for reply in replies) > 8000
    assert {key for reply in replies for key in reply["running"]} == expected
    ask(control, "cancel", {"task": tasks.linger.path})
    assert {run.status for run in wait_until_final(*runs)} == {"CANCELLED"}


def test_run_by_control_is_acknowledged_and_made_once(pair: Kit, control: Control) -> None:
    data = {"task": tasks.note.path, "args": [7], "uuid": str(uuid4())}
    replies = ask(control, "run", data)
    assert len({reply["run_id"] for reply in replies.values()}) == 1
    assert all(reply["ack"] == data for reply in replies.values())
    assert wait_until_final(run_of(data))[0].result == 7


def test_a_bare_notify_is_a_run_however_often_it_is_sent(pair: Kit) -> None:
    uuids = [str(uuid4()) for _ in range(50)]
    for uuid in uuids * 2:
        send(pair, json.dumps({"task": tasks.note.path, "args": [uuid], "kwargs": {}, "uuid": uuid}))
    runs = wait_until_final(*(run_of({"uuid": uuid}) for uuid in uuids), seconds=60)
    assert [run.result for run in runs] == uuids
    assert {pair.ledger.starts(run) for run in runs} == {1}


def test_what_is_no_task_is_refused_told_once_and_never_evaluated(pair: Kit, control: Control, tmp_path: Path) -> None:
    trap = tmp_path / "evaluated"
    evil = f"lambda: __import__('pathlib').Path({str(trap)!r}).touch()"
    before = {node: reply["producers"]["messages"]["refused"] for node, reply in ask(control, "status").items()}
    count = Run.objects.count()
    for _ in range(5):
        send(pair, evil, json.dumps({"task": evil, "uuid": "u"}), json.dumps({"task": "os.system", "uuid": "u2"}))
        send(pair, json.dumps({"task": tasks.note.path}), json.dumps({"uuid": "u3"}), "[]")
        send(pair, json.dumps({"task": tasks.note.path, "uuid": "u4", "args": ["a\0b"]}))
    after = submit_task(note, args=("after",))[0]  # what came before it has been looked at, too
    wait_until_final(run_of(after))
    for node, reply in ask(control, "status").items():
        refused = reply["producers"]["messages"]["refused"]
        counts = {kind: refused[kind] - before[node].get(kind, 0) for kind in refused}
        assert {kind: counts[kind] for kind in ("not JSON", "unknown task", "no uuid", "no task", "bad value")} == {
            "not JSON": 5,
            "unknown task": 10,
            "no uuid": 5,
            "no task": 5,
            "bad value": 5,
        }
        assert counts["no object"] == 5
    for dispatcher in pair.dispatchers.all:
        assert dispatcher.log.count("A message is wrong (unknown task)") == 1
    assert Run.objects.count() == count + 1
    assert not trap.exists()


def test_their_command_line(pair: Kit, configuration: Path) -> None:
    program = Path(sys.executable).parent / "dispatcherctl"
    words = ["running", "--expected-replies=2", "--log-level=ERROR", f"--config={configuration}"]
    message, _ = submit_task(linger)
    run = wait_for_status(run_of(message), "RUNNING")

    def found() -> list[dict[str, Any]]:
        done = subprocess.run([program, *words], capture_output=True, text=True, env=os.environ, check=False)
        replies: list[dict[str, Any]] = yaml.safe_load(done.stdout) or []
        return replies if len(replies) == 2 else []

    replies = wait_for(found, 60, what="their CLI, which has one second for all replies")
    assert [reply[f"run-{run.id}"]["uuid"] for reply in replies if f"run-{run.id}" in reply] == [message["uuid"]]
    get_control_from_settings().control("cancel", data={"uuid": message["uuid"]})
    assert wait_until_final(run)[0].status == "CANCELLED"


def send(pair: Kit, *payloads: str) -> None:
    for payload in payloads:
        pair.sql.execute("SELECT pg_notify('test_channel', %s)", [payload])
