"""A project on SQLite, with nothing set: real dispatchers, killed and taking turns; nobody sees a locked database."""

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from django.db import connection
from django.utils import timezone
from pytest_django.plugin import DjangoDbBlocker

from django_dispatch.models import Lease, Run, Schedule
from tests.kit.project import Project
from tests.kit.waiting import wait_for
from tests.sqlite import default_on_sqlite

pytestmark = pytest.mark.slow

QUICK = ("--no-reload", "--metrics-port=0", "--lease-ttl=3", "--poll-interval=0.2")
PATIENCE_SECONDS = 180
# Whose turn it is, SQLite leaves to chance; what is due here is due as soon as the disk allows.
WAITS_SECONDS = 60
# As the web does: one by one, in a transaction, in bulk; and what would be duplicates.
WRITER = """
from django.db import transaction
from work.tasks import count

for number in range({rounds}):
    count.delay()
    with transaction.atomic():
        count.delay()
        count.apply_async(priority=5)
    count.delay_many([()] * 3)
    count.apply_async(idempotency_key=f"round {{number}}")
"""
OF_A_ROUND = 6


@pytest.fixture
def new_project(tmp_path: Path, django_db_blocker: DjangoDbBlocker) -> Iterator[Callable[..., Project]]:
    """Make a project whose database of runs is ours, too."""
    with ExitStack() as stack:
        stack.enter_context(django_db_blocker.unblock())

        def new(**options: Any) -> Project:
            project = Project(tmp_path, **options)
            stack.enter_context(default_on_sqlite(project.runs))
            stack.callback(project.close)
            return project

        yield new


def statuses() -> list[str]:
    return list(Run.objects.order_by("pk").values_list("status", flat=True))


def wait_until_all(status: str, *, log: Callable[[], str], seconds: float = PATIENCE_SECONDS) -> None:
    __tracebackhide__ = True
    wait_for(lambda: set(statuses()) == {status}, seconds, what=lambda: f"{Counter(statuses())}\n{log()}")


def test_a_new_project_runs_with_nothing_set_and_without_a_driver_of_postgresql(
    new_project: Callable[..., Project],
) -> None:
    project = new_project()
    project.shell(
        "from datetime import timedelta\n"
        "from work.tasks import add, add_async, count_once\n"
        "from work.models import Counter\n"
        "Counter.objects.create()\n"
        "add.delay(1, 2); add_async.delay(3, 4); add.apply_async((5, 6), countdown=timedelta(seconds=0.5))\n"
        "count_once.delay(False); count_once.apply_async((True,), max_attempts=1)"
    )
    dispatcher = project.dispatcher("a")
    ended = {"SUCCESSFUL", "FAILED"}
    wait_for(lambda: set(statuses()) <= ended, PATIENCE_SECONDS, what=lambda: dispatcher.log)
    assert list(Run.objects.order_by("pk").values_list("result", flat=True)) == [3, 7, 11, None, None]
    assert statuses() == [*["SUCCESSFUL"] * 4, "FAILED"]
    assert project.shell("from work.models import Counter; print(Counter.objects.get().value)").strip() == "1"
    Schedule.objects.create(name="once", task="work.tasks.add", args=[7, 8], once_at=timezone.now())
    project.shell("from work.tasks import leave_open; leave_open.delay()")
    wait_for(lambda: statuses()[5:] == ["SUCCESSFUL"] * 2, PATIENCE_SECONDS, what=lambda: dispatcher.log)
    assert Run.objects.get(schedule__isnull=False).result == 15
    assert "A body left a transaction open on default; it is rolled back." in dispatcher.log
    dispatcher.terminate()
    assert dispatcher.exit_code() == 0
    assert not Lease.objects.exists()
    said = project.manage("check")
    assert "django_dispatch.I001" in said
    assert "django_dispatch.W007" in said
    assert "ERROR" not in said


def test_a_killed_dispatcher_s_run_is_taken_back_and_a_body_is_stopped(new_project: Callable[..., Project]) -> None:
    project = new_project()
    project.shell("from work.tasks import hold; hold.delay()")
    first = project.dispatcher("a", *QUICK)
    wait_for(project.ledger, PATIENCE_SECONDS, what=lambda: first.log)
    first.kill9()
    second = project.dispatcher("b", *QUICK)
    wait_for(lambda: len(project.ledger()) == 2, PATIENCE_SECONDS, what=lambda: second.log)
    assert first.remains() == []
    run = Run.objects.get()
    assert (run.status, run.attempt, run.interruptions, run.epoch) == ("RUNNING", 2, 1, 2)
    assert run.errors[0]["kind"] == "lost"
    assert [line.split()[:3] for line in project.ledger()] == [["start", "1", "1"], ["start", "1", "2"]]

    project.shell("from django_dispatch import cancel; assert cancel(1) == 'requested'")
    wait_until_all("CANCELLED", log=lambda: second.log)
    project.shell("from work.tasks import hold; hold.delay()")
    wait_for(lambda: len(project.ledger()) == 3, PATIENCE_SECONDS, what=lambda: second.log)
    (project.folder / "open").touch()
    wait_for(lambda: statuses() == ["CANCELLED", "SUCCESSFUL"], PATIENCE_SECONDS, what=lambda: second.log)


def test_a_body_that_keeps_the_lock_for_longer_than_the_lease_is_killed_and_undone(
    new_project: Callable[..., Project],
) -> None:
    project = new_project()
    project.shell("from work.tasks import hog\nfrom work.models import Counter\nCounter.objects.create()\nhog.delay()")
    dispatcher = project.dispatcher("a", *QUICK)
    wait_for(lambda: len(project.ledger()) == 2, PATIENCE_SECONDS, what=lambda: dispatcher.log)
    (project.folder / "open").touch()
    wait_until_all("SUCCESSFUL", log=lambda: dispatcher.log)
    assert project.ledger() == ["start 1 1", "start 1 2"]
    assert project.shell("from work.models import Counter; print(Counter.objects.get().value)").strip() == "1"
    assert " is lost: " in dispatcher.log
    assert "(lease): database is locked; trying again" in dispatcher.log


@pytest.mark.parametrize(
    ("project_options", "mode"),
    [
        ({}, "wal"),
        ({"options": {"init_command": "PRAGMA journal_mode = DELETE", "transaction_mode": "IMMEDIATE"}}, "delete"),
        ({"has_queue": True, "options": {"transaction_mode": "IMMEDIATE", "timeout": WAITS_SECONDS}}, "wal"),
    ],
    ids=["as it is", "without WAL", "in a file of its own"],
)
def test_many_write_while_two_dispatchers_drain_and_each_run_is_run_once(
    new_project: Callable[..., Project], project_options: dict[str, Any], mode: str
) -> None:
    project = new_project(**project_options)
    project.shell("from work.models import Counter; Counter.objects.create()")
    dispatchers = [
        project.dispatcher(node, *QUICK, f"--lease-ttl={WAITS_SECONDS}", "--processes=2", "--async-concurrency=0")
        for node in "ab"
    ]
    rounds, count = 15, 3
    writers = [project.start(WRITER.format(rounds=rounds)) for _ in range(count)]
    for writer in writers:
        said, _ = writer.communicate(timeout=PATIENCE_SECONDS)
        assert writer.returncode == 0, said
    # Of each key, whoever was first.
    total = count * rounds * OF_A_ROUND + rounds
    assert Run.objects.count() == total
    logs = lambda: "\n".join(dispatcher.log for dispatcher in dispatchers)  # noqa: E731
    wait_until_all("SUCCESSFUL", log=logs)
    assert [run.errors for run in Run.objects.exclude(attempt=1)] == []
    assert sorted(map(int, project.ledger())) == sorted(Run.objects.values_list("pk", flat=True))
    assert project.shell("from work.models import Counter; print(Counter.objects.get().value)").strip() == f"{total}"
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode")
        assert cursor.fetchone() == (mode,)
    for dispatcher in dispatchers:
        dispatcher.terminate()
        assert dispatcher.exit_code() == 0
