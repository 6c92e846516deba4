"""The LeaseKeeper on a real store, with answers as late as they can be: the board never promises what is not so."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from unittest.mock import Mock
from uuid import UUID

from django_dispatch.dispatcher.lease import LeaseKeeper
from django_dispatch.dispatcher.trouble import Trouble
from django_dispatch.executors.fence import NEVER, Board, now_ns
from django_dispatch.models import Lease
from django_dispatch.store.postgres import PostgresStore, open_store
from django_dispatch.store.values import NewLease
from tests.kit.fixtures import Kit
from tests.kit.waiting import wait_for

TEMPLATE = NewLease(UUID(int=0), "test", "host", 1, {}, ["*"], 1, "0")
TTL_SECONDS, RENEW_SECONDS, MARGIN_SECONDS = 3.0, 0.5, 1.5


class LateStore(PostgresStore):
    """A store whose answers come when the test lets them."""

    def __init__(self) -> None:
        super().__init__(open_store("default", "keeper", statement_timeout_seconds=10).session)
        self.is_prompt = threading.Event()
        self.has_renewed = threading.Event()
        self.is_aborted = False
        self.is_prompt.set()

    def acquire(self, lease: NewLease, *, ttl_seconds: float) -> None:
        super().acquire(lease, ttl_seconds=ttl_seconds)
        self.is_prompt.wait()

    def renew(self, lease_id: UUID, *, ttl_seconds: float, is_draining: bool, slots: int | None = None) -> bool:
        is_ours = super().renew(lease_id, ttl_seconds=ttl_seconds, is_draining=is_draining, slots=slots)
        if not self.is_prompt.is_set():
            self.has_renewed.set()
        self.is_prompt.wait()
        return is_ours

    def abort(self) -> None:
        self.is_aborted = True
        super().abort()


class Scene:
    """A keeper, the board that it writes, and what it has told: each with whether the board allowed the lease then."""

    def __init__(
        self, store: LateStore, *, ttl_seconds: float = TTL_SECONDS, renew_seconds: float = RENEW_SECONDS
    ) -> None:
        self.store = store
        self.board = Board.create(slots=1)
        self.acquired: list[tuple[UUID, bool]] = []
        self.lost: list[tuple[UUID, bool]] = []
        self.keeper = LeaseKeeper(
            store,
            self.board,
            TEMPLATE,
            ttl_seconds=ttl_seconds,
            renew_seconds=renew_seconds,
            margin_seconds=MARGIN_SECONDS,
            on_acquired=lambda lease_id: self.acquired.append((lease_id, self.board.allows(lease_id.bytes))),
            on_lost=lambda lease_id: self.lost.append((lease_id, self.board.allows(lease_id.bytes))),
            trouble=Mock(spec=Trouble),
        )


@contextmanager
def kept(scene: Scene) -> Iterator[Scene]:
    scene.keeper.start()
    try:
        yield scene
    finally:
        scene.store.is_prompt.set()
        scene.keeper.stop()


def test_a_lease_that_is_taken_away_lowers_the_fence_before_anybody_is_told(kit: Kit) -> None:
    """Its deadline may be far away: no body starts any more, and the zygote kills, whatever the loop is doing."""
    with kept(Scene(LateStore())) as scene:
        wait_for(lambda: scene.acquired)
        ((lease_id, was_allowed),) = scene.acquired
        assert was_allowed
        Lease.objects.all().delete()
        wait_for(lambda: scene.lost, what="the loss noticed")
        assert scene.lost == [(lease_id, False)]
        assert scene.board.deadline_ns() <= now_ns()
        lost_at = now_ns()
        wait_for(lambda: now_ns() > lost_at + 3 * RENEW_SECONDS * 1e9, what="three more steps of the keeper")
        assert not Lease.objects.exists(), "not before the bodies are dead"
        scene.keeper.acquire_again()
        wait_for(lambda: len(scene.acquired) == 2, what="the next lease")
        assert scene.acquired[1][1]


def test_a_renewal_that_is_answered_after_its_deadline_does_not_count(kit: Kit) -> None:
    """The zygote has fired by then, though the database has the lease alive."""
    with kept(Scene(LateStore())) as scene:
        wait_for(lambda: scene.acquired)
        ((lease_id, _),) = scene.acquired
        scene.store.is_prompt.clear()
        assert scene.store.has_renewed.wait(10)
        deadline = scene.board.deadline_ns()
        wait_for(lambda: now_ns() >= deadline, what="the deadline past")
        assert scene.board.deadline_ns() == deadline
        assert not scene.board.allows(lease_id.bytes)
        renewed = scene.keeper.renewed
        scene.store.is_prompt.set()
        wait_for(lambda: scene.lost, what="the loss noticed")
        assert (scene.lost, scene.keeper.renewed) == ([(lease_id, False)], renewed)


def test_a_deadline_counts_from_before_the_renewal_was_sent(kit: Kit) -> None:
    """So it is never later than what the database holds, however long the answer takes."""
    with kept(Scene(LateStore())) as scene:
        wait_for(lambda: scene.acquired)
        scene.store.is_prompt.clear()
        assert scene.store.has_renewed.wait(10)
        answered = now_ns()
        first = scene.board.deadline_ns()
        wait_for(lambda: now_ns() > answered + 3e8)
        scene.store.is_prompt.set()
        wait_for(lambda: scene.board.deadline_ns() != first, what="the deadline moved on")
        assert scene.board.deadline_ns() <= answered + int((TTL_SECONDS - MARGIN_SECONDS) * 1e9)


def test_a_lease_whose_acquisition_is_answered_too_late_is_never_worked_under(kit: Kit) -> None:
    store = LateStore()
    store.is_prompt.clear()
    with kept(Scene(store)) as scene:
        wait_for(Lease.objects.exists, what="the row of the lease")
        assert scene.board.deadline_ns() == NEVER
        began = now_ns()
        wait_for(lambda: now_ns() > began + int((TTL_SECONDS - MARGIN_SECONDS) * 1e9), what="its deadline past")
        store.is_prompt.set()
        wait_for(lambda: scene.lost, what="the loss noticed")
        assert scene.acquired == []
        assert not scene.lost[0][1]


def test_a_renewal_without_an_answer_is_broken_off_with_time_left_for_another(kit: Kit) -> None:
    """It may take half of what is left to the deadline, however long a renewal may take otherwise."""
    with kept(Scene(LateStore(), ttl_seconds=7.5, renew_seconds=3.0)) as scene:
        wait_for(lambda: scene.acquired)
        scene.store.is_prompt.clear()
        assert scene.store.has_renewed.wait(10)
        assert not scene.store.is_aborted

        def look() -> bool:
            scene.keeper.break_off_if_stuck()
            return scene.store.is_aborted or now_ns() >= scene.board.deadline_ns()

        wait_for(look, what="the call broken off")
        assert scene.store.is_aborted
        assert now_ns() < scene.board.deadline_ns()
