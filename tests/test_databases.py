"""Runs in a database of their own, beside the project's: who reads, writes, migrates and commits where."""

import json
import unittest
from collections.abc import Iterator
from typing import Any

import pytest
from django.contrib.auth.models import User
from django.core.checks import CheckMessage
from django.core.management import call_command
from django.db import connections, router, transaction
from django.test import Client, TestCase

from django_dispatch import checks
from django_dispatch.models import Lease, Run, Schedule
from tests.databases import own_database
from tests.kit import retries, tasks
from tests.kit.fixtures import Kit
from tests.kit.waiting import wait_for
from tests.wakeups import Ear

QUEUE = "other"
ROUTER = "django_dispatch.routers.DispatchRouter"
TABLES = "SELECT count(*) FROM pg_tables WHERE tablename LIKE 'django_dispatch_%'"
RUN_TABLE = Run._meta.db_table


class Replicas:
    """A router that has reads go to a replica."""

    def db_for_read(self, model: Any, **hints: Any) -> str:
        return "replica"

    def db_for_write(self, model: Any, **hints: Any) -> str:
        return "default"


@pytest.fixture(scope="module")
def database(django_db_setup: None, django_db_blocker: Any) -> Iterator[str]:
    """A database for runs alone; its name."""
    with django_db_blocker.unblock(), own_database(QUEUE) as name:
        call_command("migrate", "django_dispatch", database=QUEUE, verbosity=0)
        yield name


@pytest.fixture
def queue(kit: Kit, database: str, settings: Any) -> Iterator[str]:
    """``DISPATCH["DATABASE"]`` leads there; commits are real, in both."""
    settings.DISPATCH = {"DATABASE": QUEUE}
    settings.DATABASE_ROUTERS = [ROUTER]
    yield QUEUE
    kit.dispatchers.close()
    for model in (Run, Lease, Schedule):
        model.objects.all().delete()


def tables_on(alias: str) -> set[str]:
    return set(connections[alias].introspection.table_names())


def test_models_of_ours_go_there_and_others_where_they_went(queue: str) -> None:
    for model in (Run, Lease, Schedule):
        assert router.db_for_read(model) == router.db_for_write(model) == model.objects.all().db == queue
    assert router.db_for_read(User) == router.db_for_write(User) == "default"
    assert Run.objects.using("default").db == "default"


def test_a_router_that_spreads_reads_is_asked_after_ours(queue: str, settings: Any) -> None:
    settings.DATABASE_ROUTERS = [ROUTER, f"{__name__}.Replicas"]
    assert Run.objects.all().db == queue
    assert User.objects.all().db == "replica"
    assert Run.objects.using("replica").db == "replica"


def test_relations_among_ours_are_allowed_wherever_they_were_read(queue: str) -> None:
    run, lease, user = Run(), Lease(), User()
    run._state.db, lease._state.db, user._state.db = queue, "replica", "default"
    assert router.allow_relation(run, lease)
    assert not router.allow_relation(run, user)


def test_migrations_make_tables_there_and_nowhere_else(queue: str) -> None:
    assert RUN_TABLE in tables_on(queue)
    assert "auth_user" not in tables_on(queue)
    assert router.allow_migrate_model(queue, User)  # who wants that may: it is no business of ours
    with own_database("third"):
        call_command("migrate", database="third", verbosity=0)
        assert "auth_user" in tables_on("third")
        assert RUN_TABLE not in tables_on("third")


def test_migrations_pass_by_a_database_that_could_not_have_them(queue: str, tmp_path: Any) -> None:
    connections.settings["file"] = connections.settings["default"] | {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": str(tmp_path / "db.sqlite3"),
        "OPTIONS": {},
    }
    try:
        call_command("migrate", "auth", database="file", verbosity=0)
        call_command("migrate", "django_dispatch", database="file", verbosity=0)
        assert "auth_user" in tables_on("file")
        assert RUN_TABLE not in tables_on("file")
    finally:
        connections["file"].close()
        del connections["file"]
        del connections.settings["file"]


def test_an_enqueue_is_part_of_transactions_there_and_of_no_others(queue: str) -> None:
    ear = Ear(queue)
    with transaction.atomic(using=queue):
        tasks.quick.delay()
        assert ear.heard() == []
        transaction.set_rollback(True, using=queue)
    assert ear.heard() == []
    assert not Run.objects.exists()
    with transaction.atomic(using=queue):
        run = tasks.quick.delay()
        assert ear.heard() == []
    assert run._state.db == queue
    assert ear.heard() == ["ready:default"]
    with transaction.atomic():  # another's: the run is there, and announced, whatever becomes of that
        early = tasks.quick.delay()
        assert ear.heard() == ["ready:default"]
        transaction.set_rollback(True)
    assert Run.objects.filter(pk=early.pk).exists()
    ear.close()


def test_on_commit_of_the_other_database_orders_them(queue: str) -> None:
    with transaction.atomic():
        User.objects.create(username="kept")
        transaction.on_commit(tasks.quick.delay)
        assert not Run.objects.exists()
    assert Run.objects.count() == 1
    with transaction.atomic():
        transaction.on_commit(tasks.quick.delay)
        transaction.set_rollback(True)
    assert Run.objects.count() == 1
    User.objects.all().delete()


def test_a_dispatcher_serves_it_and_bodies_use_both(kit: Kit, queue: str, database: str) -> None:
    others_tables = kit.sql.execute(TABLES).fetchone()
    a = kit.dispatchers(
        async_concurrency=1,
        is_awaited=False,
        settings={"DATABASE": QUEUE},
        env={"KIT_OTHER_ALIAS": json.dumps({"NAME": database})},
    )
    runs = [tasks.query.delay(), tasks.aquery.delay(), tasks.note.apply_async(countdown=0.5)]
    wait_for(lambda: not Run.objects.exclude(status="SUCCESSFUL").exists(), 30)
    assert [Run.objects.get(pk=run.pk).status for run in runs] == ["SUCCESSFUL"] * 3
    assert Lease.objects.get().node == "a"
    assert Run.objects.using("default").count() == Lease.objects.using("default").count() == 0
    assert kit.sql.execute(TABLES).fetchone() == others_tables
    a.terminate()
    assert a.exit_code() == 0


def test_an_atomic_body_is_one_transaction_there_and_not_elsewhere(kit: Kit, queue: str, database: str) -> None:
    """What it writes to another database stays when its success does not."""
    kit.sql.execute("CREATE TABLE IF NOT EXISTS kit_effect (run_id bigint, attempt int)")
    kit.dispatchers(
        is_awaited=False, settings={"DATABASE": QUEUE}, env={"KIT_OTHER_ALIAS": json.dumps({"NAME": database})}
    )
    run = retries.has_effect.delay("raise")
    wait_for(lambda: Run.objects.get(pk=run.pk).finished_at, 30)
    try:
        assert kit.sql.execute("SELECT attempt FROM kit_effect ORDER BY attempt").fetchall() == [(1,), (2,)]
    finally:
        kit.sql.execute("DROP TABLE kit_effect")


def test_the_admin_shows_and_changes_what_is_there(queue: str, client: Client) -> None:
    admin = User.objects.create_superuser("root")
    try:
        client.force_login(admin)
        run = tasks.quick.delay()
        page = client.get(f"/admin/django_dispatch/run/{run.pk}/change/")
        assert page.status_code == 200
        data = {"action": "cancel", "_selected_action": [run.pk]}
        assert client.post("/admin/django_dispatch/run/", data).status_code == 302
        assert Run.objects.get().status == "CANCELLED"
        data = {"action": "delete_selected", "_selected_action": [run.pk], "post": "yes"}
        assert client.post("/admin/django_dispatch/run/", data).status_code == 302
        assert not Run.objects.exists()
        schedule = {"name": "nightly", "task": "tests.kit.tasks.quick", "cron": "0 3 * * *"}
        Schedule.objects.create(**schedule)
        assert Schedule.objects.using(queue).count() == 1
        assert client.get("/admin/django_dispatch/schedule/").status_code == 200
    finally:
        admin.delete()


def test_a_test_case_names_both_databases(queue: str) -> None:
    """As a project's own tests do it: what is enqueued is rolled back with the test."""

    class Ordering(TestCase):
        databases = {"default", QUEUE}

        def test_it(self) -> None:
            with self.captureOnCommitCallbacks(using=QUEUE) as callbacks, transaction.atomic(using=QUEUE):
                tasks.quick.delay()
            assert len(callbacks) == 2
            assert Run.objects.count() == 1

    class Forgetful(TestCase):
        def test_it(self) -> None:
            tasks.quick.delay()

    assert outcome_of(Ordering) == []
    assert not Run.objects.exists()
    (failure,) = outcome_of(Forgetful)
    assert "databases" in failure


def outcome_of(case: type[TestCase]) -> list[str]:
    """Run a test case; return what went wrong."""
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(case).run(result)
    assert result.testsRun == 1
    return [text for _, text in (*result.errors, *result.failures)]


def messages() -> list[CheckMessage]:
    return [message for message in checks.check_settings() if message.id == "django_dispatch.W006"]


@pytest.mark.parametrize("routers", [[], [f"{__name__}.Replicas", ROUTER]], ids=["none", "another first"])
def test_w006_routers_that_have_runs_elsewhere(queue: str, settings: Any, routers: list[str]) -> None:
    assert messages() == []
    settings.DATABASE_ROUTERS = routers
    (message,) = messages()
    assert message.hint
    assert ROUTER in message.hint
    assert repr(queue) in message.msg
