"""Why a run is not running: each cause, as a sentence and as data, and the command that says it."""

import io
import json
from datetime import timedelta
from typing import Any
from uuid import UUID, uuid4

import pytest
from django.core.management import CommandError, call_command
from django.db.models.functions import Now
from django.utils import timezone

from django_dispatch import pause_queue
from django_dispatch.explain import Cause, explain
from django_dispatch.models import Bucket, Lease, PausedQueue, Run
from django_dispatch.patterns import private_queue
from tests.kit import tasks

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("any_database")]

HOUR = timedelta(hours=1)


def a_dispatcher(*queues: str, node: str = "a", slots: int = 4, lives: timedelta = HOUR, **columns: Any) -> UUID:
    lease = Lease.objects.create(id=uuid4(), node=node, host="h", pid=7, queues=list(queues), slots=slots, **columns)
    Lease.objects.filter(pk=lease.pk).update(expires_at=Now() + lives)
    return lease.pk


def a_run(**columns: Any) -> Run:
    return Run.objects.create(**{"task": "shop.add", **columns})


def a_running(lease_id: UUID, **columns: Any) -> Run:
    return a_run(status="RUNNING", lease_id=lease_id, attempt=2, started_at=Now(), **columns)


def causes(run: Run) -> dict[str, Cause]:
    return {cause.kind: cause for cause in run.explain().causes}


def the_cause(run: Run, kind: str) -> Cause:
    """Return the one cause, which is of this kind."""
    found = causes(run)
    assert list(found) == [kind]
    return found[kind]


@pytest.mark.parametrize("status", ["SUCCESSFUL", "FAILED", "CANCELLED"])
def test_a_run_that_has_ended(status: str) -> None:
    run = a_run(status=status, finished_at=Now(), errors=[{"kind": "lost", "message": "The dispatcher was lost."}])
    cause = the_cause(run, "final")
    assert cause.text.startswith(f"It ended {status} at 20")
    assert ("The dispatcher was lost." in cause.text) is (status != "SUCCESSFUL")


def test_a_run_that_runs_and_was_asked_to_stop() -> None:
    lease_id = a_dispatcher("*")
    assert "runs on a (pid 7 on h) since 20" in the_cause(a_running(lease_id), "running").text
    found = causes(a_running(lease_id, cancel_requested_at=Now()))
    assert list(found) == ["running", "cancel_requested"]
    assert found["running"].data["node"] == "a"


def test_a_lease_that_is_not_live() -> None:
    lease_id = a_dispatcher("*", lives=-timedelta(seconds=5))
    cause = the_cause(a_running(lease_id), "lease_expired")
    assert "held by a (pid 7 on h), which is not live" in cause.text
    assert cause.data["lease"] == str(lease_id)
    assert "does not exist any more" in the_cause(a_running(uuid4()), "lease_gone").text


def test_a_paused_queue() -> None:
    a_dispatcher("*")
    run = a_run(queue="mail")
    pause_queue("mail", reason="its server moves", until=HOUR, by="ann")
    cause = the_cause(run, "paused")
    assert "Queue 'mail' is paused by ann since 20" in cause.text
    assert cause.text.endswith(": its server moves.")
    assert (cause.data["reason"], cause.data["until"] is None) == ("its server moves", False)
    PausedQueue.objects.update(paused_until=Now() - HOUR)
    the_cause(run, "next")


def test_no_dispatcher() -> None:
    a_dispatcher("*", lives=-HOUR)
    assert "No dispatcher is live" in the_cause(a_run(), "no_dispatcher").text


def test_no_dispatcher_that_serves_the_queue() -> None:
    a_dispatcher("mail*", "-mail.slow")
    a_dispatcher("reports", node="b")
    cause = the_cause(a_run(queue="mail.slow"), "not_served")
    assert "No live dispatcher serves queue 'mail.slow' (they serve a: mail*,-mail.slow; b: reports)" in cause.text
    assert cause.data["nodes"] == ["a", "b"]
    the_cause(a_run(queue="mail.fast"), "next")


def test_only_dispatchers_that_drain() -> None:
    a_dispatcher("*", state="DRAINING")
    assert the_cause(a_run(), "draining").data["nodes"] == ["a"]
    a_dispatcher("*", node="b")
    assert "draining" not in causes(a_run())


def test_a_dispatcher_that_is_gone_for_which_alone_it_was() -> None:
    lease_id = a_dispatcher("mail")
    the_cause(a_run(queue=private_queue(lease_id)), "next")
    gone = uuid4()
    assert the_cause(a_run(queue=private_queue(gone)), "target_gone").data["lease"] == str(gone)


@pytest.mark.parametrize(
    ("columns", "reason", "said"),
    [
        ({}, "delay", "it was enqueued for then"),
        ({"attempt": 1, "errors": [{"kind": "exception"}]}, "exception", "it is tried again"),
        ({"attempt": 1, "errors": [{"kind": "lost"}]}, "lost", "it was lost"),
    ],
)
def test_a_run_that_is_due_later(columns: dict[str, Any], reason: str, said: str) -> None:
    a_dispatcher("*")
    cause = the_cause(a_run(status="SCHEDULED", run_after=Now() + HOUR, **columns), "due_later")
    assert (cause.data["reason"], cause.text.endswith(f": {said}.")) == (reason, True)


def test_a_run_that_is_due_and_has_two_causes() -> None:
    found = causes(a_run(status="SCHEDULED", run_after=Now() - HOUR))
    assert list(found) == ["due", "no_dispatcher"]


def test_a_task_that_nobody_knows() -> None:
    a_dispatcher("*")
    errors = [{"kind": "unknown_task", "executor": node} for node in ("b", "a", "b")]
    cause = the_cause(a_run(status="SCHEDULED", run_after=Now() + HOUR, errors=errors), "unknown_task")
    assert "No dispatcher that claimed it (a, b) knows the task 'shop.add'" in cause.text


def test_a_key_that_other_runs_hold() -> None:
    lease_id = a_dispatcher("*")
    run = a_run(status="BLOCKED", blocked_by="k", concurrency_key="k", concurrency_limit=2)
    first = a_running(lease_id, concurrency_key="k", places=1)
    a_running(lease_id, concurrency_key="other", places=1)
    assert the_cause(run, "admission").data == {"key": "k"}
    second = a_run(status="SCHEDULED", run_after=Now() + HOUR, concurrency_key="k", places=1)
    cause = the_cause(run, "key")
    assert cause.text == f"It waits at key 'k', which lets 2 run at once; held by run {first.pk}, {second.pk}."
    assert cause.data == {"key": "k", "limit": 2, "runs": [first.pk, second.pk]}


def test_a_queue_that_lets_so_many_run_at_once(settings: Any) -> None:
    settings.DISPATCH = {**settings.DISPATCH, "QUEUE_LIMITS": {"default": 1}}
    lease_id = a_dispatcher("*")
    run = a_run(status="BLOCKED", blocked_by="queue:default")
    assert the_cause(run, "admission").data == {"key": "queue:default"}
    holder = a_running(lease_id, places=2)
    cause = the_cause(run, "key")
    said = f"It waits at the limit of queue 'default', which lets 1 run at once; held by run {holder.pk}."
    assert (cause.text, cause.data["runs"]) == (said, [holder.pk])


def test_a_rate_that_lets_the_next_pass_later() -> None:
    a_dispatcher("*")
    run = a_run(status="BLOCKED", blocked_by="k", concurrency_key="k", rate_amount=2, rate_seconds=3600.0)
    assert the_cause(run, "admission").data == {"key": "k"}
    bucket = Bucket.objects.create(key="k", tokens=0.5, filled_at=timezone.now())
    cause = the_cause(run, "rate")
    assert cause.data["until"] == (bucket.filled_at + timedelta(minutes=15)).isoformat()
    assert cause.text.startswith("It waits at key 'k', whose rate lets the next run pass at ")
    Bucket.objects.update(filled_at=timezone.now() - timedelta(minutes=16))
    the_cause(run, "admission")


def test_a_run_that_has_expired() -> None:
    a_dispatcher("*")
    late = {"expires_at": Now() - HOUR}
    assert "will not be started" in the_cause(a_run(**late), "expired").text
    assert "expired" not in causes(a_run(attempt=1, **late))


def test_slots_that_are_all_taken_and_the_place_in_line() -> None:
    lease_id = a_dispatcher("*", slots=2)
    for _ in range(2):
        a_running(lease_id)
    first, low = a_run(), a_run(priority=-1)
    a_run(queue="mail", priority=5)
    a_run(priority=1)
    assert {kind: cause.data.get("runs") for kind, cause in causes(first).items()} == {"busy": 2, "behind": 1}
    assert causes(low)["behind"].data["runs"] == 2
    a_dispatcher("*", node="b", slots=1)
    assert list(causes(low)) == ["behind"]


def test_the_place_in_a_line_in_which_keys_take_turns() -> None:
    a_dispatcher("*")
    flood = [tasks.note.apply_async(fair_key="a") for _ in range(10)]
    run = tasks.note.apply_async(fair_key="b")
    assert causes(run)["behind"].data == {"queue": "default", "runs": 1, "is_more": False, "fair_key": "b"}
    assert causes(run)["behind"].text.endswith("Those of its fair key 'b' take turns with those of others.")
    assert causes(flood[-1])["behind"].data["runs"] == 10


def test_a_long_line_is_not_counted_to_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    a_dispatcher("*")
    for _ in range(3):
        a_run()
    run = a_run()
    assert causes(run)["behind"].data == {"queue": "default", "runs": 3, "is_more": False}
    monkeypatch.setattr("django_dispatch.explain.COUNTED", 2)
    assert causes(run)["behind"].text.startswith("More than 2 READY runs")


@pytest.mark.parametrize("errors", [{}, "x", [7], [None], []])
def test_odd_errors_hurt_nobody(errors: Any) -> None:
    a_dispatcher("*")
    the_cause(a_run(status="SCHEDULED", run_after=Now() + HOUR, errors=errors), "due_later")
    the_cause(a_run(status="FAILED", finished_at=Now(), errors=errors), "final")


def ctl(*words: object) -> str:
    out = io.StringIO()
    call_command("dispatcherctl", *map(str, words), stdout=out, skip_checks=True)
    return out.getvalue()


def test_the_command_says_it_in_words_and_as_json() -> None:
    run = a_run(queue="mail")
    assert ctl("explain", run.pk).startswith(f"Run {run.pk} (shop.add) is READY.\nNo dispatcher is live")
    document = json.loads(ctl("explain", run.pk, "--json"))
    assert document == explain(run.pk).as_document()
    assert (document["run"], document["queue"], document["causes"][0]["kind"]) == (run.pk, "mail", "no_dispatcher")
    with pytest.raises(CommandError, match="Run 999 does not exist"):
        ctl("explain", 999)


def test_the_commands_pause_and_resume_a_queue() -> None:
    assert ctl("pause-queue", "mail", "--reason=moving", "--by=ann") == "Queue 'mail' is paused until it is resumed.\n"
    paused = PausedQueue.objects.get()
    assert (paused.name, paused.reason, paused.paused_by, paused.paused_until) == ("mail", "moving", "ann", None)
    ctl("pause-queue", "mail", "--for=60")
    assert PausedQueue.objects.get().paused_until is not None
    ctl("pause-queue", "mail", "--until=2060-01-01T00:00+00:00")
    assert PausedQueue.objects.get().paused_until.year == 2060  # type: ignore[union-attr]
    assert ctl("resume-queue", "mail") == "Queue 'mail' is resumed.\n"
    assert ctl("resume-queue", "mail") == "Queue 'mail' was not paused.\n"
    for words in (
        ["--for=x"],
        ["--until=x"],
        ["--for=0"],
        ["--until=2001-01-01T00:00+00:00"],
        ["--for=1", "--until=x"],
    ):
        with pytest.raises(CommandError):
            ctl("pause-queue", "mail", *words)
    assert not PausedQueue.objects.exists()
