"""Dispatchers that are told of runs only while they say that they wait, or never: none is late that was not told of.

But where the poll is what is tested, it is too far away to help.
"""

from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest

from django_dispatch.control import ask
from django_dispatch.models import Run, Waiter
from tests.kit import tasks
from tests.kit.dispatchers import Dispatcher
from tests.kit.fixtures import Kit
from tests.kit.runs import wait_for_status, wait_until_final
from tests.kit.waiting import wait_for
from tests.wakeups import Ear

FAR_AWAY = {"lease_ttl": 60, "poll_interval": 50}
IDLE = {"NOTIFY": "idle"}
INSERT = "INSERT INTO django_dispatch_run (task, queue) VALUES ('tests.kit.tasks.note', %s) RETURNING id"


@pytest.fixture
def ear(kit: Kit) -> Iterator[Ear]:
    ear = Ear()
    yield ear
    ear.close()


@pytest.fixture(autouse=True)
def idle(settings: Any) -> None:
    """This process asks whether somebody waits, too."""
    settings.DISPATCH = {"METRICS_PORT": 0, **IDLE}


def is_waiting() -> list[bool]:
    return list(Waiter.objects.values_list("is_waiting", flat=True))


def wait_until_waiting(*, is_it: bool = True) -> None:
    wait_for(lambda: is_waiting() == [is_it], what=f"a dispatcher that says {is_it}")


def is_told() -> bool:
    """Return whether the one dispatcher takes it that it will be told of each run."""
    (answer,) = ask("producers", timeout=20).answers
    return bool(answer["listener"]["is_told"])


def version(kit: Kit) -> Any:
    """Return what changes with every write of the row."""
    return kit.sql.execute("SELECT lease_id, xmin::text, ctid::text FROM django_dispatch_waiter").fetchall()


def occupy(kit: Kit) -> Run:
    """Give the dispatcher's one slot to a run that stays there, until that has been said."""
    run = tasks.gated.delay("held")
    kit.gate.wait_until_reached("held")
    wait_until_waiting(is_it=False)
    return run


def insert(session: psycopg.Connection[Any], queue: str = "default") -> Run:
    (pk,) = session.execute(INSERT, [queue]).fetchone() or (0,)
    return Run(pk=pk)


@pytest.fixture
def writer(database_url: str) -> Iterator[psycopg.Connection[Any]]:
    """A session with a transaction that stays open until the test commits it."""
    with psycopg.connect(database_url) as writer:
        yield writer


def ready(kit: Kit, **options: Any) -> Dispatcher:
    a = kit.dispatchers(settings=IDLE, **(FAR_AWAY | options))
    wait_until_waiting()
    wait_for(lambda: kit.cut.sessions("listener"), what="the listening session")
    return a


@pytest.mark.parametrize("queue", ["default", "one that nobody knew"])
def test_a_run_that_was_written_before_we_waited_and_committed_after_is_found(
    kit: Kit, ear: Ear, writer: psycopg.Connection[Any], queue: str
) -> None:
    """Nobody tells of it: its transaction does not see that we wait. It is looked for."""
    ready(kit)
    held = occupy(kit)
    ear.heard()
    run = insert(writer, queue)
    kit.gate.open("held")
    wait_until_final(held)
    wait_until_waiting()
    assert not is_told(), "while that transaction is open"
    writer.commit()
    (run,) = wait_until_final(run, seconds=25)
    assert run.status == "SUCCESSFUL"
    assert not [payload for payload in ear.heard() if payload.startswith("ready:")]
    wait_for(is_told, what="a dispatcher that has nothing more to look for")


def test_a_run_that_was_kept_from_notifying_by_one_that_did_not_see_us_wait_is_found(
    kit: Kit, ear: Ear, writer: psycopg.Connection[Any], database_url: str
) -> None:
    """One transaction at a time may notify: that one looked before we waited, and is open when the other writes."""
    ready(kit)
    held = occupy(kit)
    ear.heard()
    first = insert(writer)
    kit.gate.open("held")
    wait_until_final(held)
    wait_until_waiting()
    with psycopg.connect(database_url) as other:
        second = insert(other)
        writer.commit()
        (first,) = wait_until_final(first, seconds=25)
        assert not is_told(), "while the other transaction is open"
        other.commit()
    (second,) = wait_until_final(second, seconds=25)
    assert second.status == "SUCCESSFUL"
    assert not [payload for payload in ear.heard() if payload.startswith("ready:")]


def test_nobody_is_told_of_what_is_enqueued_while_all_are_busy(
    kit: Kit, ear: Ear, writer: psycopg.Connection[Any]
) -> None:
    ready(kit)
    held = occupy(kit)
    assert not is_told()
    ear.heard()
    runs = [insert(kit.sql), tasks.note.delay(), *tasks.note.delay_many([()] * 3), insert(writer)]
    writer.commit()
    assert not [payload for payload in ear.heard() if payload.startswith("ready:")]
    kit.gate.open("held")
    assert {run.status for run in wait_until_final(held, *runs, seconds=25)} == {"SUCCESSFUL"}


def test_a_dispatcher_that_has_little_to_do_writes_nothing_and_is_told_of_each_run(kit: Kit, ear: Ear) -> None:
    ready(kit)
    wait_for(is_told, what="a dispatcher that is told of runs")
    before = version(kit)
    for enqueue in (lambda: insert(kit.sql), tasks.note.delay) * 5:
        enqueue_one: Callable[[], Run] = enqueue
        (run,) = wait_until_final(enqueue_one(), seconds=25)
        assert run.status == "SUCCESSFUL"
    assert version(kit) == before
    assert [payload for payload in ear.heard() if payload.startswith("ready:")] == ["ready:default"] * 10


def test_the_word_of_a_dispatcher_that_was_killed_ends_with_its_lease(kit: Kit, ear: Ear) -> None:
    """Meanwhile whoever enqueues notifies for nothing; afterwards only those do whom others wait for."""
    a = ready(kit, lease_ttl=2, poll_interval=0.5, queues="a")
    assert Waiter.objects.get().queues == ["a"]
    a.kill9()
    insert(kit.sql, "a")
    assert "ready:a" in ear.heard()
    kit.dispatchers("b", settings=IDLE, queues="b*", **FAR_AWAY)
    wait_for(lambda: [waiter.queues for waiter in Waiter.objects.all()] == [["b*"]], what="b alone to have a word")
    ear.heard()
    insert(kit.sql, "a")
    (run,) = wait_until_final(insert(kit.sql, "b1"), seconds=25)
    assert run.status == "SUCCESSFUL"
    assert [payload for payload in ear.heard() if payload.startswith("ready:")] == ["ready:b1"]


def test_a_dispatcher_that_ends_takes_its_word_along(kit: Kit) -> None:
    a = ready(kit)
    a.terminate()
    assert a.exit_code() == 0
    assert is_waiting() == []


def test_what_was_said_is_said_again_after_trouble(kit: Kit) -> None:
    """A failover may have lost it."""
    a = ready(kit)
    Waiter.objects.update(is_waiting=False)
    kit.cut("store")
    insert(kit.sql)
    tasks.note.apply_async(countdown=60)
    a.wait_for_log("Trouble with the database", seconds=30)
    wait_until_waiting()


@pytest.mark.slow
def test_off_means_that_nobody_is_told_and_polls_are_not_far_apart(kit: Kit, ear: Ear, settings: Any) -> None:
    """Though the dispatcher listens, for what else there is to hear."""
    settings.DISPATCH = {"METRICS_PORT": 0, "NOTIFY": "off"}
    kit.dispatchers(settings={"NOTIFY": "off"}, lease_ttl=30, poll_interval=3)
    wait_until_waiting(is_it=False)
    wait_for(lambda: kit.cut.sessions("listener"), what="the listening session")
    wait_until_final(tasks.note.delay())
    ear.heard()
    runs = []
    for enqueue in (lambda: insert(kit.sql), tasks.note.delay, lambda: tasks.note.delay_many([()])[0]):
        enqueue_one: Callable[[], Run] = enqueue
        runs += wait_until_final(enqueue_one(), seconds=25)
    waits = [(kit.ledger.rows(run)[0].started_at - run.enqueued_at).total_seconds() for run in runs]
    assert max(waits) < 9  # after 3.6 s at most; if polls were five times as far apart, after 12 at least
    assert not [payload for payload in ear.heard() if payload.startswith(("ready:", "scheduled:"))]


def test_always_says_nothing(kit: Kit) -> None:
    kit.dispatchers(**FAR_AWAY)
    (run,) = wait_until_final(insert(kit.sql), seconds=25)
    assert run.status == "SUCCESSFUL"
    assert is_waiting() == []
    wait_for_status(run, "SUCCESSFUL")
