"""Housekeeping and its neighbours: whom it knows, when it asks, and whom it takes for dead."""

import asyncio
import subprocess
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock
from uuid import UUID

import pytest
from django.db import OperationalError

from django_dispatch.dispatcher import process
from django_dispatch.dispatcher.agenda import Agenda
from django_dispatch.dispatcher.housekeeping import Housekeeping
from django_dispatch.dispatcher.stats import Stats
from django_dispatch.dispatcher.store_thread import StoreThread
from django_dispatch.dispatcher.trouble import Trouble
from django_dispatch.models import Lease
from django_dispatch.store.postgres import open_store
from tests.store.tables import FAR_OFF, LONG_AGO

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture(scope="module")
def dead() -> dict[str, Any]:
    """The identity of a dispatcher that has died on this host."""
    ended = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    identity = {**process.identity("a mark that nobody has"), "dispatcher": [ended.pid, process.start_time(ended.pid)]}
    ended.kill()
    ended.wait()
    return identity


def add_lease(number: int, identity: dict[str, Any]) -> UUID:
    """Add a lease of this host without a wakeup."""
    lease = Lease(id=UUID(int=number), node="n", host=process.host_name(), process=identity, expires_at=FAR_OFF)
    lease.save(force_insert=True)
    return lease.id


@pytest.fixture
def store() -> Iterator[StoreThread]:
    thread = StoreThread(open_store("default", "test", statement_timeout_seconds=10), deadline_seconds=10)
    yield thread
    asyncio.run(thread.close())


@pytest.fixture
def new_housekeeping(store: StoreThread) -> Callable[[bool], Housekeeping]:
    def new(is_listening: bool) -> Housekeeping:
        return Housekeeping(
            store,
            ttl_seconds=30,
            poll_pause=lambda: 1,
            max_interruptions=3,
            retention={},
            queue_limits={},
            own_lease=lambda: None,
            on_ready=lambda _: None,
            is_listening=lambda: is_listening,
            trouble=Mock(spec=Trouble),
            stats=Stats(),
        )

    return new


def leases() -> set[UUID]:
    return set(Lease.objects.values_list("pk", flat=True))


def test_the_first_look_finds_who_is_dead(new_housekeeping: Callable[[bool], Housekeeping], dead: Any) -> None:
    add_lease(1, dead)
    elsewhere = add_lease(2, {**dead, "pid_namespace": "pid:[1]"})
    asyncio.run(new_housekeeping(True).look_at_neighbours())
    assert leases() == {elsewhere}, "a container of the same host name is not mistaken"


@pytest.mark.parametrize("way", ["a wakeup", "a sweep", "the agenda"])
def test_who_listens_asks_when_told_and_with_each_sweep(
    new_housekeeping: Callable[[bool], Housekeeping], dead: Any, way: str
) -> None:
    housekeeping = new_housekeeping(True)
    asyncio.run(housekeeping.look_at_neighbours())
    lease_id = add_lease(1, dead)
    asyncio.run(housekeeping.look_at_neighbours())
    assert leases() == {lease_id}, "an idle look does not ask the database"
    if way == "a wakeup":
        housekeeping.learn_neighbours()
    elif way == "the agenda":
        housekeeping.note_neighbours([lease_id])
    else:
        asyncio.run(housekeeping.reclaim())
        assert leases() == {lease_id}
    asyncio.run(housekeeping.look_at_neighbours())
    assert leases() == set()


def test_who_hears_nothing_asks_every_second(
    new_housekeeping: Callable[[bool], Housekeeping], dead: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    housekeeping = new_housekeeping(False)
    asyncio.run(housekeeping.look_at_neighbours())
    lease_id = add_lease(1, dead)
    monkeypatch.setattr("django_dispatch.dispatcher.housekeeping.LEARN_SECONDS", 1000.0)
    asyncio.run(housekeeping.look_at_neighbours())
    assert leases() == {lease_id}
    monkeypatch.setattr("django_dispatch.dispatcher.housekeeping.LEARN_SECONDS", 0.0)
    asyncio.run(housekeeping.look_at_neighbours())
    assert leases() == set()


def test_a_question_that_failed_is_asked_again(
    new_housekeeping: Callable[[bool], Housekeeping], dead: Any, store: StoreThread
) -> None:
    housekeeping = new_housekeeping(True)
    asyncio.run(housekeeping.look_at_neighbours())
    add_lease(1, dead)
    housekeeping.learn_neighbours()
    store.store.abort()
    with pytest.raises(OperationalError):
        asyncio.run(housekeeping.look_at_neighbours())
    asyncio.run(housekeeping.look_at_neighbours())
    assert leases() == set()


@pytest.mark.parametrize(("who", "expected"), [("nobody", False), ("somebody", True), ("we", True)])
def test_the_agenda_has_reclaimed_what_anybody_lost(
    store: StoreThread, new_housekeeping: Callable[[bool], Housekeeping], dead: Any, who: str, expected: bool
) -> None:
    """Also what we lost ourselves and could not give back: nobody else sees that before the lease expires."""
    add_lease(1, dead)
    if who == "somebody":
        Lease.objects.update(expires_at=LONG_AGO)
    housekeeping = new_housekeeping(True)
    if who == "we":
        housekeeping.lost_leases.add(UUID(int=1))
    looks = Mock(pause=lambda: 1.0)
    dispatcher = SimpleNamespace(store=store, housekeeping=housekeeping, looks=looks, pool=SimpleNamespace(facts={}))
    assert asyncio.run(Agenda(dispatcher).read()) == 1.0  # type: ignore[arg-type]
    assert housekeeping._hurries["reclaim"].is_set() is expected
