"""The command against two real dispatchers: who is asked, what is done, what is shown, and the exit code."""

import asyncio
import io
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import psutil
import pytest
from django.core.management import CommandError, call_command
from django.db import connection, transaction
from django.http import HttpRequest, HttpResponse, JsonResponse
from django.test import Client
from django.urls import path

from django_dispatch.control import aask, ask, send
from django_dispatch.models import FINAL, Lease, Run
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import fresh, wait_for_status, wait_until_final
from tests.kit.waiting import wait_for


@pytest.fixture(autouse=True)
def resumed(pair: Kit) -> Iterator[None]:
    yield
    ask("resume", timeout=20)


def ctl(*words: object) -> list[dict[str, Any]]:
    """Run the command, here; return its replies, by node."""
    out = io.StringIO()
    call_command("dispatcherctl", *map(str, words), "--json", "--timeout=20", stdout=out, skip_checks=True)
    replies: list[dict[str, Any]] = json.JSONDecoder().raw_decode(out.getvalue())[0]
    return replies


def runs_of(replies: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Merge what the dispatchers say of runs."""
    return {key: value for reply in replies for key, value in reply.items() if key.startswith("run-")}


def test_every_dispatcher_with_a_live_lease_replies(pair: Kit) -> None:
    replies = ctl("alive")
    assert [(reply["node_id"], reply["is_healthy"], reply["late"]) for reply in replies] == [
        ("a", True, []),
        ("b", True, []),
    ]
    assert {reply["lease_id"] for reply in replies} == {str(lease.id) for lease in Lease.objects.all()}
    assert [reply["node_id"] for reply in ctl("alive", "--node=b")] == ["b"]


def test_a_node_that_does_not_exist_is_an_error(pair: Kit) -> None:
    with pytest.raises(CommandError, match="No dispatcher named 'c' has a live lease"):
        ctl("alive", "--node=c")


def test_a_frozen_dispatcher_is_named_as_missing(pair: Kit) -> None:
    b = pair.dispatchers.all[1]
    pair.freeze(b.pid)
    try:
        replies = ask("alive", timeout=2)
        with pytest.raises(CommandError, match=rf"No reply from b \(pid {b.pid} on .*\)\. 1 of 2 replies") as error:
            call_command("dispatcherctl", "alive", timeout=1, stdout=io.StringIO(), skip_checks=True)
    finally:
        pair.freeze.thaw(b.pid)
    assert error.value.returncode == 1
    assert ([reply["node_id"] for reply in replies], [one.pid for one in replies.missing]) == (["a"], [b.pid])
    assert not replies.is_complete
    assert len(ask("alive", timeout=20, expected_replies=2)) == 2


def test_a_run_that_waits_is_cancelled_without_having_been_started(pair: Kit) -> None:
    ctl("pause")
    ready, other = tasks.note.delay(1), tasks.note.apply_async((1,), queue="others")
    later = tasks.note.apply_async((1,), countdown=3600)
    try:
        cancelled = runs_of(ctl("cancel", f"--run={ready.id}"))[f"run-{ready.id}"]
        assert cancelled["answer"] in ("cancelled", "already final"), "by one, as the other says"
        assert runs_of(ctl("cancel", f"--task={tasks.note.path}", "--queue=default")).keys() == {f"run-{later.id}"}
    finally:
        ctl("resume")
    for run in map(fresh, (ready, later)):
        assert (run.status, run.errors, run.started_at, run.attempt) == ("CANCELLED", [], None, 0)
    assert wait_until_final(other)[0].status == "SUCCESSFUL"


@pytest.mark.parametrize("body", [tasks.gated, tasks.agated], ids=["sync", "async"])
def test_a_run_is_shown_where_it_is_and_cancelled(pair: Kit, body: Any) -> None:
    gate = f"shown-{body.path}"
    run = body.delay(gate)
    pair.gate.wait_until_reached(gate)
    shown = runs_of(ctl("running", f"--run={run.id}"))[f"run-{run.id}"]
    (row,) = pair.ledger.rows(run)
    assert (shown["task"], shown["state"], shown["executor"]) == (body.path, "running", row.pid)
    assert runs_of(ctl("running", "--queue=other")) == {}
    stack = runs_of(ctl("stacks", f"--run={run.id}"))[f"run-{run.id}"]["stack"]
    assert "ledger.py" in stack
    assert "django_dispatch/executors" not in stack
    assert runs_of(ctl("cancel", f"--run={run.id}"))[f"run-{run.id}"]["answer"] == "requested"
    assert wait_until_final(run)[0].status == "CANCELLED"
    with pytest.raises(CommandError, match=f"No dispatcher has run {run.id}"):
        ctl("stacks", f"--run={run.id}")


def test_the_stack_of_a_body_that_holds_the_interpreter_in_c(pair: Kit) -> None:
    run = tasks.spin_in_c.delay("spin")
    pair.gate.wait_until_reached("spin")
    wait_for(
        lambda: "in spin_in_c" in runs_of(ctl("stacks", f"--run={run.id}"))[f"run-{run.id}"]["stack"].splitlines()[1],
        what="the call into C",
    )
    (row,) = pair.ledger.rows(run)
    psutil.Process(row.pid).kill()  # nothing else would end it soon
    wait_for_status(run, "READY", "RUNNING", "SUCCESSFUL", "FAILED")
    ctl("cancel", f"--run={run.id}")
    with suppress(psutil.NoSuchProcess):
        wait_for(lambda: len(pair.ledger.rows(run)) > 1 or fresh(run).is_final)
        for row in pair.ledger.rows(run):
            psutil.Process(row.pid).kill()
    wait_until_final(run)


def test_the_stack_of_a_blocked_event_loop(pair: Kit) -> None:
    run = tasks.ablock.delay("blocked")
    pair.gate.wait_until_reached("blocked")
    stack = runs_of(ctl("stacks", f"--run={run.id}"))[f"run-{run.id}"]["stack"]
    pair.gate.open("blocked")
    assert stack.startswith("The event loop is blocked:")
    assert "in ablock" in stack
    wait_until_final(run)


def test_a_stopped_executor_is_said_not_to_answer(pair: Kit) -> None:
    run = tasks.gated.delay("stopped")
    pair.gate.wait_until_reached("stopped")
    (row,) = pair.ledger.rows(run)
    pair.freeze(row.pid)
    try:
        stack = runs_of(ctl("stacks", f"--run={run.id}"))[f"run-{run.id}"]["stack"]
    finally:
        pair.freeze.thaw(row.pid)
    pair.gate.open("stopped")
    assert stack.startswith("Its executor does not answer")
    wait_until_final(run)


def test_hundreds_of_runs_are_shown_and_cancelled_at_once(pair: Kit) -> None:
    ctl("pause", "--node=b")
    lingering = tasks.linger.delay_many([()] * 500)
    wait_for(lambda: len(runs_of(ctl("running", f"--task={tasks.linger.path}"))) == 500, 60)
    assert len(json.dumps(ctl("status"))) > 100_000
    cancelled = runs_of(ctl("cancel", f"--task={tasks.linger.path}"))
    ctl("resume", "--node=b")
    assert len(cancelled) == 500
    assert {run.status for run in wait_until_final(*lingering, seconds=60)} == {"CANCELLED"}


def test_a_paused_fleet_finishes_what_it_has_and_claims_nothing(pair: Kit) -> None:
    begun = tasks.gated.delay("paused", "done")
    pair.gate.wait_until_reached("paused")
    assert [reply["state"] for reply in ctl("pause")] == ["paused", "paused"]
    waiting = tasks.note.delay(1)
    pair.gate.open("paused")
    assert wait_until_final(begun)[0].result == "done"
    polls = [reply["loops"]["poll"]["seconds_since_success"] for reply in ctl("main")]
    wait_for(lambda: all(reply["loops"]["poll"]["seconds_since_success"] < 1 for reply in ctl("main")), what=str(polls))
    assert fresh(waiting).status == "READY"
    assert [reply["state"] for reply in ctl("resume")] == ["active", "active"]
    assert wait_until_final(waiting)[0].result == 1


def test_a_task_is_run_once_and_waited_for(pair: Kit) -> None:
    out = io.StringIO()
    before = Run.objects.count()
    call_command(
        *("dispatcherctl", "run", tasks.note.path, "--args", '[{"é": [1]}]', "--wait=60", "--timeout=20"),
        stdout=out,
        skip_checks=True,
    )
    assert json.loads(out.getvalue().splitlines()[-1])["result"] == {"é": [1]}
    assert Run.objects.count() == before + 1
    with pytest.raises(CommandError, match=r"There is no task 'os\.system' here"):
        ctl("run", "os.system", "--args", '["true"]')
    with pytest.raises(SystemExit, match="1"):
        call_command(
            *("dispatcherctl", "run", tasks.awful.path, "--args", '["raise_nul"]', "--wait=60", "--timeout=20"),
            stdout=out,
            stderr=out,
            skip_checks=True,
        )
    assert "is FAILED: x" in out.getvalue()


def test_executors_are_scaled_up_and_down_without_harm(pair: Kit) -> None:
    run = tasks.gated.delay("scaled", "unharmed")
    pair.gate.wait_until_reached("scaled")

    def sync_workers() -> list[int]:
        return [
            sum(key.startswith("worker-") and one["kind"] == "sync" for key, one in reply.items() if "-" in key)
            for reply in ctl("workers")
        ]

    assert [reply["before"] for reply in ctl("scale", "--processes=4")] == [1, 1]
    wait_for(lambda: sync_workers() == [4, 4], what="eight executors")
    wait_for(lambda: set(Lease.objects.values_list("slots", flat=True)) == {604}, what="shown on the leases")
    ctl("scale", "--processes=1")
    wait_for(lambda: sync_workers() == [1, 1], what="two executors")
    pair.gate.open("scaled")
    (ended,) = wait_until_final(run)
    assert (ended.result, ended.attempt) == ("unharmed", 1)
    with pytest.raises(CommandError, match="from 1 to 512"):
        ctl("scale", "--processes=0")


def test_recycling_replaces_zygote_and_executors_without_harm(pair: Kit) -> None:
    a = pair.dispatchers.all[0]
    ctl("pause", "--node=b")
    run = tasks.gated.delay("recycled", "unharmed")
    pair.gate.wait_until_reached("recycled")
    (row,) = pair.ledger.rows(run)
    zygote, executors = a.zygote_pid, set(a.executor_pids)
    assert ctl("recycle", "--node=a")[0]["is_new"]
    wait_for(lambda: ctl("main", "--node=a")[0]["zygote"] not in (zygote, None), 60, what="another zygote")
    after = tasks.note.delay("new")
    assert wait_until_final(after)[0].result == "new"
    assert pair.ledger.rows(after)[0].pid not in executors
    assert fresh(run).status == "RUNNING"
    pair.gate.open("recycled")
    (ended,) = wait_until_final(run)
    assert (ended.result, ended.attempt) == ("unharmed", 1)
    wait_for(lambda: not any(map(psutil.pid_exists, (zygote, row.pid))), what="the old zygote gone")
    ctl("resume", "--node=b")


def test_the_level_of_the_log_is_set(pair: Kit) -> None:
    (before,) = ctl("set-log-level", "DEBUG", "--node=a")
    pair.dispatchers.all[0].wait_for_log("The level of the log is DEBUG now")
    (after,) = ctl("set-log-level", before["previous_level"], "--node=a")
    assert after["previous_level"] == "DEBUG"


def test_where_the_dispatchers_own_tasks_wait(pair: Kit) -> None:
    for reply in ctl("aio-tasks", "--limit=2"):
        assert "housekeeping.py" in reply["poll"]["stack"]
        assert reply["claims"]["stack"].count("File ") <= 2
        assert "service.py" in reply["main"]["stack"]


def test_an_unknown_command_and_unknown_fields_do_no_harm(pair: Kit) -> None:
    a = pair.dispatchers.all[0]
    for reply in ask("self_destruct", {"now": True}, timeout=20):
        assert "There is no control command 'self_destruct'" in reply["error"]
    a.wait_for_log("There is no control command 'self_destruct'")
    assert len(ask("alive", {"colour": "red"}, timeout=20)) == 2
    assert all("Unknown fields ['colour']" in reply["error"] for reply in ask("cancel", {"run": 1, "colour": 2}))
    assert all("it does not cancel everything" in reply["error"] for reply in ask("cancel", timeout=20))
    for reply in ask("running", {"run": "5"}, timeout=20):
        assert reply["error"] == "run must be of type int, not '5'."
    whatever = [None, 5, -1.5, True, "", "x" * 100, "a\0", "\ud800", [], [[]], {}, {"a": []}]
    for value in whatever:
        for document in (
            value,
            {"control": value, "reply_to": "nobody"},
            {"control": "alive", "reply_to": value},
            {"control": "alive", "node": value},
            {"control": "running", "control_data": value, "reply_to": "nobody"},
            *({"control": "running", "control_data": {name: value}} for name in ("run", "uuid", "args", "kwargs")),
            {"control": "run", "control_data": {"task": value, "uuid": value, "queue": value}},
            {"control": "scale", "control_data": {"processes": value}},
            {"control": "set_log_level", "control_data": {"level": value}},
            {"control": "aio_tasks", "control_data": {"limit": value}},
            {"task": tasks.note.path, "uuid": "u", "on_duplicate": value, "delay": value, "args": [float("nan")]},
            {"__dispatcherd_chunk__": value},
            {"__dispatcherd_chunk__": "v1", "message_id": value, "index": value, "total": value, "payload": value},
        ):
            pair.sql.execute("SELECT pg_notify('test_channel', %s)", [json.dumps(document)])
    assert len(ask("alive", timeout=20)) == 2
    assert all(dispatcher.is_ready() for dispatcher in pair.dispatchers.all)
    assert "could not be taken" not in a.log
    assert "failed, see" not in a.log
    assert "Traceback" not in a.log


def test_asking_within_a_transaction_is_answered_at_once(pair: Kit) -> None:
    with transaction.atomic():
        run = tasks.note.delay("rolled back")
        assert len(ask("alive", timeout=20)) == 2
        assert ask("cancel", {"run": run.id}, timeout=20).answers[0].keys() == {"node_id", "lease_id"}
        send("set_log_level", {"level": "INFO"})
        transaction.set_rollback(True)


def ask_all(request: HttpRequest) -> HttpResponse:
    run = tasks.note.delay("seen when the request is over")
    replies = ask("cancel", {"run": run.id}, timeout=20)
    return JsonResponse({"run": run.id, "replies": len(replies), "in_atomic": connection.in_atomic_block})


urlpatterns = [path("ask", ask_all)]


def test_asking_in_a_view_with_atomic_requests_is_answered(pair: Kit, settings: Any, client: Client) -> None:
    settings.ROOT_URLCONF = __name__
    connection.settings_dict["ATOMIC_REQUESTS"] = True
    try:
        answer = client.get("/ask").json()
    finally:
        connection.settings_dict["ATOMIC_REQUESTS"] = False
    assert (answer["in_atomic"], answer["replies"]) == (True, 2)
    assert wait_until_final(Run.objects.get(id=answer["run"]))[0].status == "SUCCESSFUL"


def test_asking_from_a_coroutine(pair: Kit) -> None:
    assert len(asyncio.run(aask("alive", timeout=20))) == 2


@pytest.mark.parametrize("body", [tasks.ask_dispatcher, tasks.aask_dispatcher], ids=["sync", "async"])
def test_a_body_asks_its_own_dispatcher(pair: Kit, body: Any) -> None:
    (run,) = wait_until_final(body.delay("running"), seconds=60)
    assert [one["run_id"] for one in run.result.values()] == [run.id]
    (starter,) = wait_until_final(body.delay("run", {"task": tasks.note.path, "args": [5]}))
    (started,) = wait_until_final(Run.objects.get(id=starter.result["run_id"]))
    assert (started.result, started.source) == (5, "notify")
    (refused,) = wait_until_final(body.delay("nonsense"))
    assert "There is no control command 'nonsense'" in refused.result["error"]


def test_a_stop_in_the_middle_of_a_question_spoils_nothing(pair: Kit) -> None:
    ctl("pause", "--node=b")  # so that all happens to one executor
    for number in range(10):
        run = tasks.keep_asking.delay(f"asking{number}")
        pair.gate.wait_until_reached(f"asking{number}")
        ctl("cancel", f"--run={run.id}")
        assert wait_until_final(run)[0].status == "CANCELLED"
    (last,) = wait_until_final(tasks.ask_dispatcher.delay("alive"))
    assert last.result == {"is_healthy": True, "late": []}
    assert len({row.pid for row in pair.ledger.rows() if row.run_id >= run.id - 9}) == 1


def test_the_figures_are_those_of_the_database_and_the_kernel(pair: Kit) -> None:
    def finished() -> dict[tuple[str, str, str], int]:
        counts: Counter[tuple[str, str, str]] = Counter()
        for reply in ctl("metrics"):
            for one in reply["django_dispatch_runs_finished_total"]:
                counts[one["task"], one["queue"], one["status"]] += one["value"]
        return {key: count for key, count in counts.items() if key[2] in FINAL and key[0] != tasks.spin_in_c.path}

    ctl("scale", "--processes=4")
    wait_until_final(*tasks.quick.delay_many([()] * 1000), seconds=60)
    wait_until_final(tasks.quick.apply_async(queue="figures"))
    # The one whose executor was killed was cancelled by its end, or while it waited for another attempt.
    started = Run.objects.filter(started_at__isnull=False).exclude(task=tasks.spin_in_c.path)
    started = started.values_list("task", "queue", "status")
    wait_for(lambda: finished() == Counter(started), what=lambda: f"{finished()} to be {Counter(started)}")

    def everybody() -> set[int]:
        return {pid for dispatcher in pair.dispatchers.all for pid in dispatcher.executor_pids}

    wait_for(
        lambda: (
            {one["pid"] for reply in ctl("workers") for key, one in reply.items() if "worker-" in key} == everybody()
            and len(everybody()) >= 8
        ),
        what="all executors known by their pids",
    )
    for reply, dispatcher in zip(ctl("status"), pair.dispatchers.all, strict=True):
        workers = {one["pid"]: one for one in reply["workers"].values()}
        assert workers.keys() == set(dispatcher.executor_pids)
        for pid, worker in workers.items():
            rss_kb = psutil.Process(pid).memory_info().rss // 1024
            assert abs(worker["rss_kb"] - rss_kb) < 20_000
        assert (reply["main"]["pid"], reply["main"]["zygote"]) == (dispatcher.pid, dispatcher.zygote_pid)
        assert reply["main"]["lease_id"] == str(dispatcher.lease_id)
        assert reply["main"]["late"] == []
        assert reply["running"] == {}
    ctl("scale", "--processes=1")


def test_as_a_command_of_the_shell(pair: Kit) -> None:
    """In a process of its own: output, exit code, and a reader that leaves early."""
    a = pair.dispatchers.all[0]
    environment = dict(psutil.Process(a.pid).environ())
    command = [sys.executable, "manage.py", "dispatcherctl"]

    def run(*words: str) -> "subprocess.CompletedProcess[str]":
        return subprocess.run([*command, *words], capture_output=True, text=True, env=environment, check=False)

    table = run("workers", "--timeout=20")
    assert table.returncode == 0, table.stderr
    assert table.stdout.splitlines()[0] == "a"
    assert "worker_id" in table.stdout.splitlines()[1]
    yaml = run("alive", "--yaml", "--node=b", "--timeout=20")
    assert "node_id: b" in yaml.stdout
    closed = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", *command, "alive", "--timeout=20"]
    assert subprocess.run(closed, env=environment, check=False).returncode == 0
    failed = run("cancel", "--timeout=20")
    assert (failed.returncode, "does not cancel everything" in failed.stderr) == (1, True)
