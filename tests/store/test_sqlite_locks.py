"""One writer at a time: who waits for whom on SQLite, for how long, and who does not have to."""

import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from django.db import OperationalError, connection, connections, transaction

from django_dispatch import cancel, run_again, task
from django_dispatch.models import Run, Status
from django_dispatch.store import sqlite_session
from django_dispatch.store.sqlite import SqliteStore, open_store
from django_dispatch.store.sqlite_session import _may_pass
from tests.kit.waiting import wait_for
from tests.sqlite import own_file

from .tables import LONG_AGO, acquire, add_run, add_running, claim, expire, stored, success

PATIENCE_SECONDS = 20.0


@task
def nothing() -> None: ...


@pytest.fixture(autouse=True)
def file(sqlite_template: Path, tmp_path: Path, django_db_blocker: Any) -> Iterator[Path]:
    with django_db_blocker.unblock(), own_file(sqlite_template, tmp_path) as file:
        yield file


@pytest.fixture
def new_store(file: Path) -> Iterator[Callable[..., SqliteStore]]:
    """Open a store that waits so long for a lock."""
    opened: list[SqliteStore] = []

    def new(seconds: float = PATIENCE_SECONDS) -> SqliteStore:
        opened.append(open_store("default", "test", statement_timeout_seconds=seconds))
        return opened[-1]

    yield new
    for store in opened:
        store.close()


class Writer:
    """Somebody else who writes, for as long as he likes."""

    def __init__(self, file: Path) -> None:
        self._connection = sqlite3.connect(
            file, isolation_level=None, check_same_thread=False, timeout=PATIENCE_SECONDS
        )

    def begin(self) -> None:
        self._connection.execute("BEGIN IMMEDIATE")
        self._connection.execute("UPDATE django_dispatch_lease SET slots = slots")

    def end(self) -> None:
        self._connection.execute("COMMIT")

    def close(self) -> None:
        self._connection.close()


@pytest.fixture
def writer(file: Path) -> Iterator[Writer]:
    writer = Writer(file)
    yield writer
    writer.close()


@pytest.fixture
def start() -> Iterator[Callable[..., Future[Any]]]:
    """Make a call on a thread of its own."""

    def on_thread(call: Callable[[], Any]) -> Any:
        try:
            return call()
        finally:
            connection.close()

    with ThreadPoolExecutor() as threads:
        yield lambda call: threads.submit(on_thread, call)


def assert_it_waits(call: Future[Any]) -> None:
    """A call that waits for nobody takes a few milliseconds."""
    with pytest.raises(TimeoutError):
        call.result(0.3)


def test_who_finds_nothing_to_do_writes_nothing_and_waits_for_no_writer(
    new_store: Callable[..., SqliteStore], writer: Writer
) -> None:
    store = new_store(0.0)
    lease_id = acquire(store)
    add_run(status=Status.SCHEDULED)
    add_run(status=Status.SUCCESSFUL, finished_at="2060-01-01T00:00Z")
    writer.begin()
    assert claim(store, lease_id) == []
    assert (store.held(lease_id), store.cancellations(lease_id)) == ([], [])
    assert store.reclaim(grace_seconds=0.0, max_interruptions=3) == []
    assert store.promote(limit=10).queues == []
    assert (store.expire(limit=10).runs, store.age(age_seconds=0.0, limit=10), store.cancel_unreachable()) == (0, 0, 0)
    assert store.admit(["k"], most=1, queue_limits="{}").queues == []
    assert (store.prune(status="SUCCESSFUL", age_seconds=1.0, limit=10), store.prune_own(limit=10)) == (0, 0)
    assert (store.ready_queues(), store.backlogs(), store.live_leases()) == ([], [], {"ACTIVE": 1})
    store.prune_buckets()
    store.keep_declared(["a schedule"])
    assert (store.due_schedules(["shop.add"], limit=10), store.flag_unknown(["shop.add"], "no")) == (([], None), [])


def test_a_claim_waits_for_the_writer(new_store: Callable[..., SqliteStore], writer: Writer, start: Any) -> None:
    store = new_store()
    lease_id, run_id = acquire(store), add_run()
    writer.begin()
    claiming = start(lambda: claim(store, lease_id))
    assert_it_waits(claiming)
    writer.end()
    assert [run.id for run in claiming.result(PATIENCE_SECONDS)] == [run_id]


def test_a_lease_that_expires_while_one_waits_is_not_renewed_and_nothing_is_claimed_under_it(
    new_store: Callable[..., SqliteStore], writer: Writer, start: Any
) -> None:
    store, other = new_store(), new_store()
    lease_id, run_id = acquire(store, ttl_seconds=0.6), add_run()
    writer.begin()
    calls = [
        start(lambda: store.renew(lease_id, ttl_seconds=60.0, is_draining=False)),
        start(lambda: claim(other, lease_id)),
    ]
    for call in calls:
        assert_it_waits(call)
    wait_for(lambda: new_store().live_leases() == {}, PATIENCE_SECONDS, what="the lease expires")
    writer.end()
    assert [call.result(PATIENCE_SECONDS) for call in calls] == [False, []]
    assert stored(run_id).status == Status.READY


def test_who_is_not_patient_any_more_says_so_and_the_next_call_works(
    new_store: Callable[..., SqliteStore], writer: Writer
) -> None:
    store = new_store(0.1)
    lease_id = acquire(store)
    run = add_running(store, lease_id)
    writer.begin()
    with pytest.raises(OperationalError, match="locked"):
        store.renew(lease_id, ttl_seconds=60.0, is_draining=False)
    with pytest.raises(OperationalError, match="locked"):
        store.exchange(lease_id, [success(run)], queues=(), limit=0)
    writer.end()
    assert store.renew(lease_id, ttl_seconds=60.0, is_draining=False)
    assert store.exchange(lease_id, [success(run)], queues=(), limit=0).refused == []


def test_who_waits_can_be_broken_off(new_store: Callable[..., SqliteStore], writer: Writer, start: Any) -> None:
    store = new_store(2 * PATIENCE_SECONDS)
    lease_id = acquire(store)
    writer.begin()
    renewing = start(lambda: store.renew(lease_id, ttl_seconds=60.0, is_draining=False))
    assert_it_waits(renewing)
    store.abort()
    with pytest.raises(OperationalError):
        renewing.result(PATIENCE_SECONDS)
    writer.end()
    assert store.renew(lease_id, ttl_seconds=60.0, is_draining=False)


@pytest.mark.parametrize("verb", ["delay", "delay_many", "cancel", "run_again", "in a transaction"])
def test_an_application_waits_for_longer_than_its_own_timeout(
    new_store: Callable[..., SqliteStore], writer: Writer, start: Any, verb: str
) -> None:
    new_store().live_leases()  # a dispatcher has been here: the file is in WAL mode
    connections.settings["default"]["OPTIONS"] = {"timeout": 0.01}
    ended, waiting = add_run(status=Status.SUCCESSFUL), add_run()

    def in_a_transaction() -> None:
        with transaction.atomic():
            nothing.delay()

    calls: dict[str, Callable[[], Any]] = {
        "delay": nothing.delay,
        "delay_many": lambda: nothing.delay_many([()] * 3),
        "cancel": lambda: cancel(waiting),
        "run_again": lambda: run_again(ended),
        "in a transaction": in_a_transaction,
    }
    writer.begin()
    call = start(calls[verb])
    assert_it_waits(call)
    writer.end()
    call.result(PATIENCE_SECONDS)
    assert Run.objects.count() + Run.objects.filter(status=Status.CANCELLED).count() > 2


@pytest.mark.parametrize("mode", ["IMMEDIATE", "DEFERRED"])
def test_who_reads_first_and_writes_later_is_refused_unless_he_begins_immediate(
    new_store: Callable[..., SqliteStore], start: Any, mode: str
) -> None:
    """What check W007 is about."""
    new_store().live_leases()  # a dispatcher has been here: the file is in WAL mode
    connections.settings["default"]["OPTIONS"] = {"transaction_mode": mode, "timeout": PATIENCE_SECONDS}
    has_read, is_written = threading.Event(), threading.Event()

    def read_and_write() -> None:
        with transaction.atomic():
            count = Run.objects.count()
            has_read.set()
            is_written.wait(0.5 if mode == "IMMEDIATE" else PATIENCE_SECONDS)
            nothing.apply_async(priority=count)

    reading = start(read_and_write)
    assert has_read.wait(PATIENCE_SECONDS)
    writing = start(nothing.delay)
    writing.add_done_callback(lambda _: is_written.set())
    if mode == "DEFERRED":
        with pytest.raises(OperationalError, match="locked"):
            reading.result(PATIENCE_SECONDS)
    else:
        reading.result(PATIENCE_SECONDS)
    writing.result(PATIENCE_SECONDS)
    assert Run.objects.count() == (1 if mode == "DEFERRED" else 2)


def test_many_claim_and_finish_at_once_and_each_run_is_claimed_once(new_store: Callable[..., SqliteStore]) -> None:
    run_ids = [run.pk for run in nothing.delay_many([()] * 200)]
    stores = [new_store() for _ in range(4)]
    leases = [acquire(store) for store in stores]

    def work(number: int) -> list[int]:
        store, lease_id, done = stores[number], leases[number], list[int]()
        while runs := claim(store, lease_id, limit=3):
            done += [run.id for run in runs]
            assert store.exchange(lease_id, [success(run) for run in runs], queues=(), limit=0).refused == []
        return done

    with ThreadPoolExecutor() as threads:
        claimed = [run_id for done in threads.map(work, range(4)) for run_id in done]
    assert sorted(claimed) == run_ids
    assert set(Run.objects.values_list("status", "epoch")) == {("SUCCESSFUL", 1)}


def test_two_that_sweep_at_once_take_back_once(new_store: Callable[..., SqliteStore]) -> None:
    stores = [new_store() for _ in range(4)]
    lost = acquire(stores[0])
    runs = [add_running(stores[0], lost) for _ in range(20)]
    expire(lost, seconds=100)
    with ThreadPoolExecutor() as threads:
        sweeps = threads.map(lambda store: store.reclaim(grace_seconds=0.0, max_interruptions=3), stores)
        assert sorted(run.run_id for sweep in sweeps for run in sweep) == [run.id for run in runs]
    assert set(Run.objects.values_list("status", "interruptions")) == {("READY", 1)}


def test_a_file_is_put_into_wal_mode_unless_its_settings_say_otherwise(new_store: Callable[..., SqliteStore]) -> None:
    def mode() -> str:
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA journal_mode")
            return str(cursor.fetchone()[0])

    connections.settings["default"]["OPTIONS"] = {"init_command": "PRAGMA journal_mode = DELETE"}
    new_store().live_leases()
    assert mode() == "delete"
    connection.close()
    connections.settings["default"]["OPTIONS"] = {}
    new_store().live_leases()
    assert mode() == "wal"


def test_a_file_is_put_into_wal_mode_when_who_is_in_it_has_left(
    file: Path, new_store: Callable[..., SqliteStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = threading.Event()

    def may_pass(error: OperationalError) -> bool:
        refused.set()
        return _may_pass(error)

    monkeypatch.setattr(sqlite_session, "_may_pass", may_pass)
    store, reader = new_store(), sqlite3.connect(file, isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM django_dispatch_run").fetchall()
    with ThreadPoolExecutor() as threads:
        looks = threads.submit(store.live_leases)
        wait_for(lambda: refused.is_set() or looks.done(), PATIENCE_SECONDS)
        reader.execute("COMMIT")
        looks.result(PATIENCE_SECONDS)
    reader.close()
    with connection.cursor() as cursor:
        cursor.execute("PRAGMA journal_mode")
        assert cursor.fetchone() == ("wal",)


def test_the_claim_goes_by_its_index(new_store: Callable[..., SqliteStore]) -> None:
    from django_dispatch.store import sqlite_claims

    add_run(expires_at=LONG_AGO)
    params = {"queue": "default", "excluded": "[]", "limit": 1}
    plan = new_store().session.rows(f"EXPLAIN QUERY PLAN {sqlite_claims._READY}", **params)
    text = " ".join(str(row[3]) for row in plan)
    assert "dispatch_run_claim" in text
    assert "TEMP B-TREE" not in text
