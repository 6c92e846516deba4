"""LISTEN first, then look at the table; after every reconnect look again; when a slot frees look again.

The poll is too far away to help in all of these, so what is found was found for the reason that is tested.
"""

from django_dispatch.models import Run
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.relay import Relay
from tests.kit.runs import wait_until_final
from tests.kit.waiting import wait_for

FAR_AWAY = {"lease_ttl": 60, "poll_interval": 50}


def test_a_wakeup_missed_while_disconnected_is_made_up_for_by_a_look(kit: Kit, relay: Relay) -> None:
    a = kit.dispatchers(settings={"LISTEN_DSN": relay.url}, **FAR_AWAY)
    wait_for(lambda: kit.cut.sessions("listener"), what="the listening session")
    wait_until_final(tasks.note.delay(), seconds=5)
    relay.refuse()
    a.wait_for_log("Trouble with the database (listener)")
    missed = tasks.note.apply_async(queue="in one that nobody knew, too")
    assert kit.ledger.starts(missed) == 0
    relay.forward()
    (missed,) = wait_until_final(missed, seconds=12)
    assert missed.status == "SUCCESSFUL"
    (heard,) = wait_until_final(tasks.note.delay(), seconds=5)
    assert heard.status == "SUCCESSFUL"


def test_a_terminated_listener_listens_again(kit: Kit) -> None:
    a = kit.dispatchers(**FAR_AWAY)
    (session,) = wait_for(lambda: kit.cut.sessions("listener"))
    kit.cut("listener")
    a.wait_for_log("Trouble with the database (listener)")
    wait_for(lambda: set(kit.cut.sessions("listener")) - {session}, what="another listening session")
    (run,) = wait_until_final(tasks.note.delay(), seconds=8)
    assert run.status == "SUCCESSFUL"


def test_the_listening_session_is_never_in_a_transaction(kit: Kit) -> None:
    """One that were would keep PostgreSQL from forgetting notifications, until there is no room for another."""
    kit.dispatchers()
    runs = tasks.quick.delay_many([()] * 300)
    states = set()
    seen = """
        SELECT state, xact_start FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = 'django_dispatch listener'
    """

    def is_done() -> bool:
        states.update(kit.sql.execute(seen).fetchall())
        return not Run.objects.filter(finished_at=None).exists()

    wait_for(is_done, 60, what=f"{len(runs)} runs")
    assert states == {("idle", None)}


def test_what_there_was_no_slot_for_is_found_when_one_frees(kit: Kit) -> None:
    first, *others = tasks.gated.delay_many([("work",)] + [("open",)] * 3)
    kit.gate.open("open")
    kit.dispatchers(no_listen=True, **FAR_AWAY)
    kit.gate.wait_until_reached("work")
    kit.gate.open("work")
    runs = wait_until_final(first, *others, seconds=10)
    assert [run.status for run in runs] == ["SUCCESSFUL"] * 4


def test_without_wakeups_the_poll_finds_everything(kit: Kit) -> None:
    """A wakeup carries no work: losing every one of them costs latency, at most one poll interval."""
    kit.dispatchers(no_listen=True, poll_interval=0.5)
    assert kit.cut.sessions("listener") == []
    (run,) = wait_until_final(tasks.note.delay(), seconds=5)
    (row,) = kit.ledger.rows(run)
    assert (row.started_at - run.enqueued_at).total_seconds() < 3


def test_what_is_due_before_the_next_poll_starts_when_it_is_due(kit: Kit) -> None:
    """A run that is enqueued for later, by one call or by many, and the retry of one that failed."""
    kit.dispatchers(**FAR_AWAY)
    wait_for(lambda: kit.cut.sessions("listener"))
    kit.gate.open("open")
    runs = [
        tasks.note.apply_async(countdown=1.5),
        *tasks.note.delay_many([()], countdown=0.5),
        tasks.raises.delay("open"),
    ]
    found = wait_until_final(*runs, seconds=25)
    assert [run.status for run in found] == ["SUCCESSFUL", "SUCCESSFUL", "FAILED"]
    assert found[2].attempt == 2


def test_a_queue_nobody_knew_of_is_served_at_its_first_wakeup(kit: Kit) -> None:
    kit.dispatchers(**FAR_AWAY)
    wait_for(lambda: kit.cut.sessions("listener"))
    (run,) = wait_until_final(tasks.note.apply_async(queue="new"), seconds=8)
    assert run.status == "SUCCESSFUL"
