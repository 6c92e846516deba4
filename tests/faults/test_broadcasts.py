"""A broadcast to three dispatchers, one of which dies before it has run its part."""

from django_dispatch.models import Run
from django_dispatch.patterns import private_queue
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.runs import fresh, wait_until_final


def test_each_dispatcher_runs_its_part_once_and_nobody_runs_that_of_a_dead_one(kit: Kit) -> None:
    a, b, c = (kit.dispatchers(node, is_awaited=False) for node in "abc")
    for dispatcher in (a, b, c):
        dispatcher.wait_until_ready()
    leases = {dispatcher.pid: dispatcher.lease_id for dispatcher in (a, b, c)}
    kit.freeze(c.pid)
    tasks.note_everywhere.delay()
    parts = {run.queue: run for run in Run.objects.all()}
    assert len(parts) == 3
    part = {pid: parts[private_queue(lease_id)] for pid, lease_id in leases.items() if lease_id}
    for dispatcher in (a, b):
        (run,) = wait_until_final(part[dispatcher.pid])
        assert (run.status, run.result) == ("SUCCESSFUL", dispatcher.pid)
        assert kit.ledger.starts(run) == 1
    assert fresh(part[c.pid]).status == "READY"
    c.kill9()
    (run,) = wait_until_final(part[c.pid])
    assert (run.status, run.errors[0]["kind"]) == ("CANCELLED", "unreachable")
    assert kit.ledger.rows(run) == []
    # The next broadcast is to those that live, and to a new one.
    c = kit.dispatchers("c")
    tasks.note_everywhere.delay()
    runs = wait_until_final(*Run.objects.exclude(pk__in=[run.pk for run in parts.values()]))
    assert sorted(run.result for run in runs) == sorted([a.pid, b.pid, c.pid])
