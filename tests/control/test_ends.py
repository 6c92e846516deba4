"""How dispatchers end when they are told to: they reply first, and leave nothing behind; where nobody can be told."""

from io import StringIO
from pathlib import Path

import pytest
from django.core.management import call_command
from pytest_django.plugin import DjangoDbBlocker

from django_dispatch.control import ask, send
from django_dispatch.exceptions import ControlError
from django_dispatch.models import Lease, PausedQueue
from tests.kit import sabotage, tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import fresh, wait_until_final
from tests.kit.waiting import wait_for
from tests.sqlite import own_file

from .conftest import SETTINGS


def test_drained_and_shut_down_dispatchers_reply_first(kit: Kit) -> None:
    c = kit.dispatchers("c", lease_ttl=15, settings=SETTINGS)
    d = kit.dispatchers("d", lease_ttl=15, settings=SETTINGS)
    stuck = tasks.stubborn.delay("stuck")
    kit.gate.wait_until_reached("stuck")
    (busy,) = [reply["node_id"] for reply in ask("running", {"run": stuck.id}, timeout=20) if len(reply) > 2]
    idle = "d" if busy == "c" else "c"
    (reply,) = ask("drain", node=idle, timeout=20)
    assert (reply["state"], reply["running"]) == ("draining", 0)
    (reply,) = ask("drain", node=busy, timeout=20)
    assert (reply["state"], reply["running"]) == ("draining", 1)
    assert {"c": c, "d": d}[idle].exit_code() == 0
    wait_for(lambda: Lease.objects.get(node=busy).state == "DRAINING")
    (reply,) = ask("running", timeout=20)
    assert reply[f"run-{stuck.id}"]["state"] == "running", "it still answers"
    (reply,) = ask("shutdown", node=busy, timeout=20)
    assert reply["running"] == 1
    assert {"c": c, "d": d}[busy].exit_code() == 0
    assert fresh(stuck).status == "READY"
    assert not Lease.objects.exists()
    assert len(ask("alive", timeout=20)) == 0


def test_code_that_cannot_be_imported_replaces_nothing(kit: Kit) -> None:
    """Neither a project that does not start, nor one with a task module that does not."""
    c = kit.dispatchers("c", lease_ttl=15, settings=SETTINGS)
    before = c.zygote_pid, c.executor_pids
    (kit.gate.folder / sabotage.FILE).write_text("zygote raise")
    assert ask("recycle", timeout=20).answers[0]["is_new"]
    c.wait_for_log("The project could not be imported afresh")
    (kit.gate.folder / sabotage.FILE).write_text("zygote break_a_task_module")
    assert ask("recycle", timeout=20).answers[0]["is_new"]
    c.wait_for_log("The project was not imported afresh, the old code goes on: module tests.kit.tasks: ")
    assert wait_until_final(tasks.note.delay(1))[0].result == 1
    wait_for(lambda: len(c.processes()) == 3, what="none but dispatcher, zygote and executor")
    assert (c.zygote_pid, c.executor_pids) == before


def test_on_sqlite_a_command_is_refused_with_the_reason_and_what_works(
    sqlite_template: Path, tmp_path: Path, django_db_blocker: DjangoDbBlocker
) -> None:
    with django_db_blocker.unblock(), own_file(sqlite_template, tmp_path):
        for call in (ask, send):
            with pytest.raises(ControlError, match=r"'alive'.*by NOTIFY of PostgreSQL.*on SQLite.*pause-queue"):
                call("alive")
        call_command("dispatcherctl", "pause-queue", "mail", stdout=StringIO())
        assert PausedQueue.objects.get().name == "mail"
