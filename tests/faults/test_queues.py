"""Queues of real dispatchers: patterns, pauses, aging."""

from datetime import timedelta

from django.db.models.functions import Now

from django_dispatch import pause_queue, resume_queue
from django_dispatch.models import Lease, PausedQueue, Run
from tests.kit import limited, tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import fresh, wait_for_status, wait_until_final
from tests.kit.waiting import wait_for


def test_a_paused_queue_waits_its_body_runs_on_and_patterns_say_what_is_served(kit: Kit) -> None:
    kit.dispatchers(queues="mail*,-mail.slow", processes=2, poll_interval=1)
    assert Lease.objects.get().queues == ["mail*", "-mail.slow"]
    running = tasks.gated.apply_async(("end",), queue="mail.a")
    wait_for_status(running, "RUNNING")
    pause_queue("mail.a", reason="its server moves")
    waiting = tasks.note.apply_async((1,), queue="mail.a")
    not_served = [tasks.note.apply_async((2,), queue=queue) for queue in ("mail.slow", "default")]
    # The dispatcher looks, and takes what is beside: so the others were seen, and left.
    for _ in range(3):
        (beside,) = wait_until_final(tasks.note.apply_async((3,), queue="mail.b"))
        assert beside.status == "SUCCESSFUL"
    assert {fresh(run).status for run in (waiting, *not_served)} == {"READY"}
    kit.gate.open("end")
    assert wait_until_final(running)[0].status == "SUCCESSFUL"
    assert fresh(waiting).status == "READY"
    resume_queue("mail.a")
    assert wait_until_final(waiting)[0].status == "SUCCESSFUL"

    pause_queue("mail.a", until=timedelta(hours=1))
    waiting = tasks.note.apply_async((1,), queue="mail.a")
    wait_until_final(tasks.note.apply_async((3,), queue="mail.b"))
    assert fresh(waiting).status == "READY"
    PausedQueue.objects.update(paused_until=Now())
    assert wait_until_final(waiting)[0].status == "SUCCESSFUL"  # found by the poll


def test_flooded_queues_are_served_by_weight(kit: Kit) -> None:
    runs = {queue: tasks.note.delay_many([()] * 80, queue=queue) for queue in ("a", "b")}
    kit.dispatchers(settings={"QUEUE_WEIGHTS": {"a": 3}, "CLAIM_LIMIT": 4})
    wait_until_final(*runs["a"])
    of_b = {run.pk for run in runs["b"]}
    first = [row.run_id in of_b for row in kit.ledger.rows()[:80]]
    assert 14 <= sum(first) <= 26
    assert any(first[:12])


def test_a_tenant_is_served_beside_the_flood_of_another(kit: Kit) -> None:
    """Whether its runs come after the flood, or in the middle of it."""
    flood = [("a", "middle" if number >= 20 else "") for number in range(150)]
    limited.of_tenant.delay_many(flood)
    early = limited.of_tenant.delay_many([("b",)] * 5)
    for node in ("x", "y"):
        kit.dispatchers(node, processes=1, settings={"CLAIM_LIMIT": 4})
    kit.gate.wait_until_reached("middle", times=2)
    started = kit.ledger.rows()
    assert sum(row.note == "b" for row in started[:20]) == len(early)
    late = limited.of_tenant.delay_many([("b",)] * 5)
    kit.gate.open("middle")
    wait_until_final(*late)
    # Before them there were those that the dispatchers had claimed already.
    after = [row.note for row in kit.ledger.rows()[len(started) :]]
    assert after[:40].count("b") == len(late)
    assert Run.objects.filter(status="READY", fair_key="tenant-a").exists()


def test_a_run_of_low_priority_has_its_turn_in_an_endless_flow_of_high_ones(kit: Kit) -> None:
    low = tasks.note.apply_async(("low",), priority=-100)
    flow = [tasks.note.apply_async((number,), priority=100) for number in range(400)]
    kit.dispatchers(settings={"PRIORITY_AGING": 1, "CLAIM_LIMIT": 1})

    def is_started() -> bool:
        flow.extend(tasks.note.apply_async((number,), priority=100) for number in range(5))
        return bool(kit.ledger.rows(low))

    wait_for(is_started, 60, what="the run of low priority started")
    assert fresh(low).priority == 100
    assert any(fresh(run).status == "READY" for run in flow[-10:])


def test_a_dispatcher_deletes_runs_past_the_retention_of_their_own(kit: Kit) -> None:
    ended = {"task": "shop.add", "status": "SUCCESSFUL", "finished_at": Now() - timedelta(hours=1)}
    gone = Run.objects.create(**ended, retention={"SUCCESSFUL": 60.0})
    stay = [
        Run.objects.create(**ended, retention={"SUCCESSFUL": 86_400.0}),
        Run.objects.create(**{**ended, "finished_at": Now() - timedelta(days=9)}, retention={"SUCCESSFUL": None}),
    ]
    by_default = Run.objects.create(**{**ended, "finished_at": Now() - timedelta(days=9)})
    kit.dispatchers()
    wait_for(lambda: not Run.objects.filter(pk__in=[gone.pk, by_default.pk]).exists(), what="both deleted")
    assert set(Run.objects.all()) == set(stay)
