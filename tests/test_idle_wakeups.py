"""Who notifies, by plain SQL and by our own doors, where dispatchers say whether they wait."""

from collections.abc import Callable, Iterator
from threading import Thread
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from django.db import connection, transaction

from django_dispatch import task
from django_dispatch.models import Lease, Run, Waiter
from django_dispatch.patterns import serves
from django_dispatch.store.session import connection_params
from django_dispatch.wakeups import sending
from tests.kit.waiting import wait_for
from tests.wakeups import Ear

INSERT = "INSERT INTO django_dispatch_run (task, queue) VALUES ('t', '{}')"
INSERT_BLOCKED = "INSERT INTO django_dispatch_run (task, queue, concurrency_key) VALUES ('t', '{}', 'k')"
PATTERNS = [
    ["*"],
    ["mail"],
    ["mail", "web"],
    ["mail*"],
    ["mail*", "-mail.slow"],
    ["-mail"],
    ["-mail*", "-web"],
    ["m*l", "-*x*"],
    ["*.a*b"],
    ["100%", "a_b", "back\\slash"],
    ["100%*", "a_*", "back\\*", "-a_b"],
]
QUEUES = ["mail", "mail.slow", "mail.\nslow", "web", "m", "ml", "mxl", "x.ab", "x.a.b", "x.ba"]
QUEUES += ["100%", "100%1", "100x", "a_b", "axb", "a_c", "back\\slash", "backslash", "", "-mail", "Mail"]


@task
def work() -> None: ...


@task(concurrency=1, key="k")
def limited() -> None: ...


@pytest.fixture
def ear(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Ear]:
    monkeypatch.setattr(sending, "_buckets", {})
    ear = Ear()
    yield ear
    ear.close()


@pytest.fixture
def sql(transactional_db: None) -> Iterator[psycopg.Connection[Any]]:
    """A session of somebody who knows nothing of Django."""
    with psycopg.connect(**connection_params("default", "test"), autocommit=True) as session:
        yield session


@pytest.fixture(params=["idle", "off"])
def mode(request: pytest.FixtureRequest, settings: Any) -> str:
    settings.DISPATCH = {"NOTIFY": request.param}
    return str(request.param)


def add_waiter(*queues: str, is_waiting: bool = True) -> UUID:
    lease = Lease.objects.create(id=uuid4(), node="n", host="h", pid=1, queues=list(queues))
    Waiter.objects.create(lease=lease, queues=list(queues), is_waiting=is_waiting)
    return lease.id


def by_all_doors(sql: psycopg.Connection[Any], queue: str) -> None:
    """Enqueue by each way there is to enqueue a run that is due."""
    sql.execute(INSERT.format(queue).encode())
    with sql.transaction():
        sql.execute(INSERT.format(queue).encode())
    work.apply_async(queue=queue)
    work.delay_many([(), ()], queue=queue)
    with transaction.atomic():
        work.apply_async(queue=queue)


class TestPlainSql:
    def test_where_nobody_has_a_word_everybody_notifies(self, sql: psycopg.Connection[Any], ear: Ear) -> None:
        sql.execute(INSERT.format("a").encode())
        assert ear.heard() == ["ready:a"]

    def test_nobody_notifies_while_nobody_waits(self, sql: psycopg.Connection[Any], ear: Ear) -> None:
        add_waiter("*", is_waiting=False)
        add_waiter("a", is_waiting=False)
        sql.execute(INSERT.format("a").encode())
        sql.execute(INSERT_BLOCKED.format("a").encode())
        assert ear.heard() == []
        assert Run.objects.count() == 2

    def test_who_waits_for_another_queue_is_not_told(self, sql: psycopg.Connection[Any], ear: Ear) -> None:
        add_waiter("*", is_waiting=False)
        waiting = add_waiter("a*", "-ab")
        sql.execute(INSERT.format("ab").encode())
        assert ear.heard() == []
        sql.execute(INSERT.format("aa").encode())
        assert ear.heard() == ["ready:aa"]
        sql.execute(INSERT.format(f"lease:{waiting}").encode())
        assert ear.heard() == [f"ready:lease:{waiting}"]

    def test_whoever_waits_may_admit_what_is_blocked(self, sql: psycopg.Connection[Any], ear: Ear) -> None:
        add_waiter("another")
        sql.execute(INSERT_BLOCKED.format("a").encode())
        assert ear.heard() == ["blocked:k"]

    def test_one_statement_for_many_queues_notifies_if_one_is_awaited(
        self, sql: psycopg.Connection[Any], ear: Ear
    ) -> None:
        add_waiter("q1")
        sql.execute(
            "INSERT INTO django_dispatch_run (task, queue) SELECT 't', 'q' || n % 2 FROM generate_series(1, 9) n"
        )
        assert "ready:q1" in ear.heard()

    @pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
    def test_who_may_see_what_is_past_notifies(self, sql: psycopg.Connection[Any], ear: Ear, level: str) -> None:
        add_waiter("*", is_waiting=False)
        with sql.transaction():
            sql.execute(f"SET TRANSACTION ISOLATION LEVEL {level}".encode())
            sql.execute(INSERT.format("a").encode())
        assert ear.heard() == ["ready:a"]

    def test_it_is_enough_that_somebody_waits_when_the_run_is_written(
        self, sql: psycopg.Connection[Any], ear: Ear
    ) -> None:
        """Though the statement began before that, and has its number from after."""
        add_waiter("*", is_waiting=False)
        late = """
            WITH held AS MATERIALIZED (SELECT pg_advisory_xact_lock(4711))
            INSERT INTO django_dispatch_run (task, source) SELECT 't', {} FROM held
            RETURNING django_dispatch_is_awaited('default')
        """
        for source, heard in (("'sql'", ["ready:default"]), ("'app'", [])):
            Waiter.objects.update(is_waiting=False)
            answers: list[Any] = []
            with psycopg.connect(**connection_params("default", "late"), autocommit=True) as other:
                statement = late.format(source).encode()
                with sql.transaction():
                    sql.execute("SELECT pg_advisory_xact_lock(4711)")
                    thread = Thread(target=lambda o=other, s=statement, a=answers: a.extend(o.execute(s).fetchall()))
                    thread.start()
                    wait_for(lambda: _is_blocked(sql, "late"), what="the statement, begun and held up")
                    Waiter.objects.update(is_waiting=True)
                thread.join()
            assert answers == [(True,)]
            assert ear.heard() == heard


def _is_blocked(sql: psycopg.Connection[Any], role: str) -> bool:
    seen = "SELECT 1 FROM pg_stat_activity WHERE application_name = %s AND wait_event_type = 'Lock'"
    return bool(sql.execute(seen, [f"django_dispatch {role}"]).fetchall())


def test_who_may_only_insert_enqueues_and_notifies(sql: psycopg.Connection[Any], ear: Ear) -> None:
    add_waiter("*", is_waiting=False)
    role = f"inserter_{uuid4().hex[:8]}"
    may_call = "EXECUTE ON FUNCTION django_dispatch_is_awaited(text)"

    def insert() -> list[str]:
        sql.execute(f"SET ROLE {role}".encode())
        sql.execute(INSERT.format("a").encode())
        sql.execute("RESET ROLE")
        return ear.heard()

    sql.execute(f"CREATE ROLE {role}".encode())
    try:
        sql.execute(f"GRANT INSERT ON django_dispatch_run TO {role}".encode())
        assert insert() == ["ready:a"]
        sql.execute(f"GRANT SELECT ON django_dispatch_waiter TO {role}".encode())
        assert insert() == []
        sql.execute(f"REVOKE {may_call} FROM PUBLIC".encode())
        assert insert() == ["ready:a"]
    finally:
        sql.execute("RESET ROLE")
        sql.execute(f"GRANT {may_call} TO PUBLIC".encode())
        sql.execute(f"DROP OWNED BY {role}".encode())
        sql.execute(f"DROP ROLE {role}".encode())


@pytest.mark.parametrize("path", ["pg_catalog", "elsewhere, pg_catalog"])
def test_who_has_another_search_path_enqueues_and_notifies(sql: psycopg.Connection[Any], ear: Ear, path: str) -> None:
    add_waiter("*", is_waiting=False)
    ((schema,),) = sql.execute("SELECT current_schema()").fetchall()
    sql.execute("CREATE SCHEMA elsewhere")
    try:
        sql.execute("CREATE TABLE elsewhere.django_dispatch_waiter (LIKE django_dispatch_waiter INCLUDING ALL)")
        sql.execute("INSERT INTO elsewhere.django_dispatch_waiter VALUES (gen_random_uuid(), '[]', false)")
        sql.execute(f"SET search_path = {path}".encode())
        sql.execute(INSERT.replace("django_", f"{schema}.django_", 1).format("a").encode())
        assert ear.heard() == ["ready:a"]
    finally:
        sql.execute("DROP SCHEMA elsewhere CASCADE")


@pytest.mark.parametrize("patterns", PATTERNS, ids=" ".join)
def test_patterns_mean_in_the_database_what_they_mean_in_a_dispatcher(db: None, patterns: list[str]) -> None:
    add_waiter(*patterns)
    with connection.cursor() as cursor:
        cursor.execute("SELECT q, django_dispatch_is_awaited(q) FROM unnest(%s::text[]) AS q", [QUEUES])
        assert dict(cursor.fetchall()) == {queue: serves(patterns, queue) for queue in QUEUES}
        cursor.execute("SELECT django_dispatch_is_awaited(%s)", [f"lease:{uuid4()}"])
        assert cursor.fetchone() == (False,)


class TestOurDoors:
    def test_while_nobody_waits_no_door_notifies(self, mode: str, sql: psycopg.Connection[Any], ear: Ear) -> None:
        add_waiter("*", is_waiting=False)
        by_all_doors(sql, "a")
        limited.delay()
        assert ear.heard() == []
        assert Run.objects.count() == 7

    def test_where_nobody_has_a_word_each_door_notifies(
        self, settings: Any, sql: psycopg.Connection[Any], ear: Ear
    ) -> None:
        settings.DISPATCH = {"NOTIFY": "idle"}
        by_all_doors(sql, "a")
        assert ear.heard() == ["ready:a"] * 5

    def test_while_somebody_waits_each_door_does(self, settings: Any, sql: psycopg.Connection[Any], ear: Ear) -> None:
        settings.DISPATCH = {"NOTIFY": "idle"}
        add_waiter("a")
        by_all_doors(sql, "a")
        assert ear.heard() == ["ready:a"] * 5
        by_all_doors(sql, "b")
        assert ear.heard() == []
        run = limited.delay()
        assert ear.heard() == [f"blocked:{run.concurrency_key}"]

    def test_whether_somebody_waits_is_asked_after_the_commit(self, settings: Any, ear: Ear) -> None:
        settings.DISPATCH = {"NOTIFY": "idle"}
        add_waiter("*", is_waiting=False)
        other = connection.copy()
        try:
            with transaction.atomic():
                work.delay()
                with other.cursor() as cursor:
                    cursor.execute("UPDATE django_dispatch_waiter SET is_waiting = true")
        finally:
            other.close()
        assert ear.heard() == ["ready:default"]

    def test_what_nobody_waits_for_costs_no_statement_more(
        self, settings: Any, ear: Ear, django_assert_num_queries: Callable[[int], Any]
    ) -> None:
        settings.DISPATCH = {"NOTIFY": "idle"}
        add_waiter("*", is_waiting=False)
        with django_assert_num_queries(1):
            work.delay()

    def test_what_is_due_later_is_told_unless_nothing_is(
        self, mode: str, sql: psycopg.Connection[Any], ear: Ear
    ) -> None:
        """So that dispatchers know when the next one is due, busy or not."""
        add_waiter("*", is_waiting=False)
        work.apply_async(countdown=60)
        assert ear.heard() == (["scheduled:default"] if mode == "idle" else [])

    def test_always_asks_nobody(self, settings: Any, ear: Ear, django_assert_num_queries: Callable[[int], Any]) -> None:
        settings.DISPATCH = {}
        add_waiter("*", is_waiting=False)
        with django_assert_num_queries(1) as captured:
            work.delay()
        assert "is_awaited" not in captured.captured_queries[0]["sql"]
        with transaction.atomic():
            work.delay()
        assert ear.heard() == ["ready:default"] * 2
