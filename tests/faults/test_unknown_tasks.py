"""Only registered tasks run, payloads are JSON, and a row that makes no sense harms nobody but itself."""

import os
from pathlib import Path

import pytest
from django.contrib.auth import get_user_model
from django.test import Client

from django_dispatch.models import Run
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import fresh, wait_for_status, wait_until_final
from tests.kit.waiting import wait_for

UNKNOWN = [
    "nowhere.tasks.gone",
    "kit_raises.tasks.fine",
    "kit_syntax.tasks.fine",
    "tests.kit.tasks.gone",
    "tests.kit.tasks.Entry",
    "os.system",
    "builtins.eval",
]


def insert(task: str, args: object = (), kwargs: object = ()) -> Run:
    """Enqueue as no door of ours would."""
    return Run.objects.create(task=task, args=args, kwargs=kwargs or {})


def write_app(folder: Path, name: str, text: str) -> None:
    (folder / name).mkdir()
    (folder / name / "__init__.py").touch()
    (folder / name / "tasks.py").write_text(text)


@pytest.fixture
def broken_apps(tmp_path: Path) -> dict[str, str]:
    """Two installed apps whose tasks cannot be imported, as a dispatcher's environment."""
    fine = "from django_dispatch import task\n@task\ndef fine(): pass\n"
    write_app(tmp_path, "kit_raises", fine + "raise RuntimeError('at import')\n")
    write_app(tmp_path, "kit_syntax", "def broken(:\n")
    return {"KIT_APPS": "kit_raises kit_syntax", "PYTHONPATH": f"{tmp_path}:{os.getcwd()}"}


@pytest.mark.slow
def test_runs_of_unknown_tasks_are_held_then_failed_and_nobody_else_is_hurt(
    kit: Kit, tmp_path: Path, broken_apps: dict[str, str]
) -> None:
    """A newer dispatcher may know the task: its run waits half a minute and more, costs no attempt, and has a cap."""
    proof = tmp_path / "proof"
    bad = [insert(task, [f"touch {proof}"]) for task in UNKNOWN]
    good = [tasks.note.delay(number) for number in range(5)]
    a = kit.dispatchers(env=broken_apps)
    assert {run.status for run in wait_until_final(*good)} == {"SUCCESSFUL"}
    for number in (1, 2):
        held = Run.objects.filter(status="SCHEDULED", interruptions=number)
        wait_for(lambda held=held: held.count() == len(bad), what="all held")  # type: ignore[misc]
        for run in map(fresh, bad):
            assert (run.attempt, run.failures) == (0, 0)
            assert [error["kind"] for error in run.errors] == ["unknown_task"] * number
            assert run.run_after
            assert (run.errors[-1]["executor"], run.explain().causes[0].kind) == ("a", "unknown_task")
        Run.objects.filter(status="SCHEDULED").update(run_after="2000-01-01T00:00Z")
    for run in wait_until_final(*bad):
        assert (run.status, run.attempt, len(run.errors)) == ("FAILED", 0, 3)
        assert run.errors[0]["message"] == f"This dispatcher has no task {run.task!r}."
    assert not proof.exists()
    assert "The task module kit_raises.tasks cannot be imported: RuntimeError: at import" in a.log
    assert "The task module kit_syntax.tasks cannot be imported: SyntaxError" in a.log
    a.terminate()
    assert a.exit_code() == 0


def test_an_unknown_task_waits_for_a_dispatcher_that_knows_it(kit: Kit) -> None:
    """The first look of one that does not know it leaves it whole."""
    run = insert("kit_later.tasks.fine")
    old = kit.dispatchers("old")
    run = wait_for_status(run, "SCHEDULED")
    delay = Run.objects.get(pk=run.pk).run_after
    assert delay
    (seconds,) = kit.sql.execute("SELECT extract(epoch FROM %s - clock_timestamp())", [delay]).fetchone() or (0,)
    assert 20 < seconds <= 30
    old.terminate()
    assert old.exit_code() == 0
    write_app(kit.gate.folder, "kit_later", "from django_dispatch import task\n@task\ndef fine(): return 'found'\n")
    env = {"KIT_APPS": "kit_later", "PYTHONPATH": f"{kit.gate.folder}:{os.getcwd()}"}
    Run.objects.update(run_after="2000-01-01T00:00Z")
    kit.dispatchers("new", env=env)
    (run,) = wait_until_final(run)
    assert (run.status, run.result, run.attempt) == ("SUCCESSFUL", "found", 1)


ODD_ARGUMENTS = [
    ([1, 2, 3], {}),
    ([], {"unheard_of": 1}),
    ({"not": "a list"}, {}),
    ("x", {}),
    ([], [1]),
    (7, {}),
    ("too deep", {}),
]


@pytest.mark.parametrize("task", ["note", "anote"])
def test_arguments_that_do_not_fit_fail_their_run_and_no_other(kit: Kit, task: str) -> None:
    """Whatever JSON somebody's INSERT left in the row: the run has an outcome, and the executor goes on."""
    bad = [insert(f"tests.kit.tasks.{task}", args, kwargs) for args, kwargs in ODD_ARGUMENTS]
    deep = "[" * 5000 + "]" * 5000
    kit.sql.execute("UPDATE django_dispatch_run SET args = %s::jsonb WHERE args = '\"too deep\"'", [deep])
    good = insert(f"tests.kit.tasks.{task}")
    kit.dispatchers(async_concurrency=1, settings={"EXECUTOR_MAX_RUNS": 100})
    *bad, good = wait_until_final(*bad, good)
    assert [(run.status, run.failures, run.attempt) for run in bad] == [("FAILED", 1, 1)] * len(bad)
    assert {error["kind"] for run in bad for error in run.errors} == {"exception"}
    assert (good.status, {row.run_id for row in kit.ledger.rows()}) == ("SUCCESSFUL", {good.pk})


def test_the_admin_opens_for_runs_that_no_code_knows(kit: Kit) -> None:
    run = insert("nowhere.tasks.gone", [1])
    user = get_user_model().objects.create_superuser("kit", password="kit")
    try:
        client = Client()
        client.force_login(user)
        for page in ("", f"{run.pk}/change/"):
            response = client.get(f"/admin/django_dispatch/run/{page}")
            assert response.status_code == 200
            assert b"nowhere.tasks.gone" in response.content
    finally:
        user.delete()
    assert fresh(run).status == "READY"


def test_the_dispatcher_itself_never_imports_a_task(kit: Kit, tmp_path: Path) -> None:
    """It passes payload text through undecoded and knows tasks from hearsay: the zygote imports them."""
    tell = f"import os\nopen({str(tmp_path / 'imported')!r}, 'a').write(f'{{os.getpid()}}\\n')\n"
    write_app(tmp_path, "kit_tells", tell + "from django_dispatch import task\n@task\ndef fine(): pass\n")
    a = kit.dispatchers(env={"KIT_APPS": "kit_tells", "PYTHONPATH": f"{tmp_path}:{os.getcwd()}"})
    (run,) = wait_until_final(insert("kit_tells.tasks.fine"))
    assert run.status == "SUCCESSFUL"
    assert (tmp_path / "imported").read_text().split() == [str(a.zygote_pid)]
