"""The command: what it refuses, what it serves, when it ends, and how it starts afresh."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings

from django_dispatch.models import Lease, Run
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import fresh, wait_until_final
from tests.kit.waiting import wait_for


@pytest.mark.parametrize(
    ("option", "named"),
    [
        ("--processes=0", "PROCESSES"),
        ("--processes=1000000", "PROCESSES"),
        ("--async-concurrency=-1", "ASYNC_CONCURRENCY"),
        ("--poll-interval=0", "POLL_INTERVAL"),
        ("--poll-interval=20", "POLL_INTERVAL"),
        ("--lease-ttl=0.5", "LEASE_TTL"),
        ("--shutdown-timeout=-1", "SHUTDOWN_TIMEOUT"),
        ("--queues=", "QUEUES"),
        ("--queues=mail,mail", "QUEUES"),
        ("--max-runs=0", "--max-runs"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name(option: str, named: str) -> None:
    with pytest.raises(CommandError, match=named):
        call_command("rundispatcher", option, skip_checks=True)


@override_settings(DISPATCH={"LEASE_TLL": 15})
def test_an_unknown_setting_stops_the_command_and_is_named() -> None:
    with pytest.raises(CommandError, match="LEASE_TLL"):
        call_command("rundispatcher", "--burst", skip_checks=True)


def test_the_banner_says_what_is_served_and_how(kit: Kit) -> None:
    dispatcher = kit.dispatchers("teapot", queues="mail,default", processes=1, no_listen=True)
    for text in ("dispatcher teapot", "mail, default", "1 sync", "wakeups    none"):
        assert text in dispatcher.log
    assert list(Lease.objects.values_list("node", "queues")) == [("teapot", ["mail", "default"])]


def test_a_burst_runs_all_that_is_due_and_leaves_what_is_not(kit: Kit) -> None:
    due = [tasks.note.delay(1), tasks.anote.delay(2), tasks.note.apply_async((3,), queue="elsewhere")]
    later = tasks.note.apply_async((4,), countdown=3600)
    assert kit.dispatchers(burst=True, async_concurrency=4, is_awaited=False).exit_code() == 0
    assert [run.result for run in wait_until_final(*due, seconds=0.1)] == [1, 2, 3]
    assert fresh(later).status == "SCHEDULED"
    assert not Lease.objects.exists()


def test_a_burst_with_nothing_to_do_ends(kit: Kit) -> None:
    assert kit.dispatchers(burst=True, is_awaited=False).exit_code() == 0


def test_max_runs_are_run_and_no_more(kit: Kit) -> None:
    runs = tasks.note.delay_many([(number,) for number in range(7)])
    assert kit.dispatchers(max_runs=3, processes=2, is_awaited=False).exit_code() == 0
    assert [fresh(run).status for run in runs] == ["SUCCESSFUL"] * 3 + ["READY"] * 4


def test_only_the_queues_that_were_named_are_served(kit: Kit) -> None:
    mail = tasks.note.apply_async((1,), queue="mail")
    other = tasks.note.apply_async((1,), queue="other")
    kit.dispatchers(queues="mail", burst=True, is_awaited=False).exit_code()
    assert (fresh(mail).status, fresh(other).status) == ("SUCCESSFUL", "READY")


def test_a_queue_that_nobody_knew_is_served_by_default(kit: Kit) -> None:
    kit.dispatchers()
    (run,) = wait_until_final(tasks.note.apply_async((1,), queue="brand new"))
    assert run.status == "SUCCESSFUL"


def test_without_listening_work_is_found_by_polling(kit: Kit) -> None:
    dispatcher = kit.dispatchers(no_listen=True)
    assert kit.cut.sessions("listener") == []
    (run,) = wait_until_final(tasks.note.delay(1))
    assert run.result == 1
    dispatcher.terminate()
    assert dispatcher.exit_code() == 0


def test_executors_are_replaced_after_so_many_runs_and_no_run_is_lost(kit: Kit) -> None:
    kit.dispatchers(settings={"EXECUTOR_MAX_RUNS": 3}, processes=2)
    runs = wait_until_final(*tasks.note.delay_many([(number,) for number in range(30)]))
    assert [run.result for run in runs] == list(range(30))
    assert {run.attempt for run in runs} == {1}
    counts = kit.sql.execute("SELECT count(*) FROM kit_ledger GROUP BY pid").fetchall()
    assert len(counts) >= 10
    assert max(count for (count,) in counts) <= 3


def test_an_executor_that_grew_too_large_is_replaced(kit: Kit) -> None:
    kit.dispatchers(settings={"EXECUTOR_MAX_MEMORY_MB": 1}, processes=1, no_listen=True)  # which it needs no wakeup for
    wait_until_final(*[tasks.note.delay(number) for number in range(3)])
    assert kit.sql.execute("SELECT count(DISTINCT pid) FROM kit_ledger").fetchone() == (3,)


@pytest.fixture
def app(tmp_path: Path) -> Path:
    """A project of one file, to be edited."""
    folder = tmp_path / "edited"
    folder.mkdir()
    (folder / "__init__.py").touch()
    (folder / "tasks.py").write_text("from django_dispatch import task\n")
    return folder


@pytest.fixture(params=[(), ("--no-listen",)], ids=["listening", "polling"])
def reloading(
    kit: Kit, app: Path, database_url: str, request: pytest.FixtureRequest
) -> "Iterator[subprocess.Popen[bytes]]":
    environment = os.environ | {
        "DJANGO_SETTINGS_MODULE": "tests.settings",
        "DATABASE_URL": database_url,
        "PYTHONPATH": os.pathsep.join([str(app.parent), os.getcwd()]),
        "KIT_APPS": "edited",
    }
    command = [
        sys.executable,
        "manage.py",
        "rundispatcher",
        "--reload",
        "--processes=1",
        "--node=edited",
        *request.param,
    ]
    supervisor = subprocess.Popen(command, env=environment)
    yield supervisor
    supervisor.terminate()
    supervisor.wait(timeout=30)


@pytest.mark.slow
def test_an_edit_starts_the_dispatcher_afresh_and_a_signal_ends_it(
    kit: Kit, app: Path, reloading: "subprocess.Popen[bytes]"
) -> None:
    def lease() -> Lease | None:
        return Lease.objects.filter(node="edited").first()

    first = wait_for(lease, what="the first lease")
    run = Run.objects.create(task="edited.tasks.later")
    (app / "tasks.py").write_text("from django_dispatch import task\n\n@task\ndef later() -> int:\n    return 42\n")
    wait_for(lambda: (now := lease()) and now.pid != first.pid, what="the lease of another process")
    Run.objects.filter(pk=run.pk, status="SCHEDULED").update(status="READY", run_after=None)  # held as unknown before
    assert wait_until_final(run)[0].result == 42
    reloading.send_signal(signal.SIGINT)
    assert reloading.wait(timeout=30) == 0
    assert lease() is None
