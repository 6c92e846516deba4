"""The schema that the migrations make, and that no project makes them want another."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from django.core.management import call_command
from django.db import connection, connections
from pytest_django.plugin import DjangoDbBlocker

from django_dispatch.models import Run
from django_dispatch.store.postgres import open_store
from django_dispatch.store.session import connection_params
from django_dispatch.store.values import NewLease

from .databases import own_database
from .sqlite import own_file
from .wakeups import Ear

ROOT = Path(__file__).resolve().parent.parent
RUN, LEASE, SCHEDULE = "django_dispatch_run", "django_dispatch_lease", "django_dispatch_schedule"

UNFINISHED = (
    "((status)::text = ANY ((ARRAY['SCHEDULED'::character varying, 'READY'::character varying,"
    " 'BLOCKED'::character varying, 'RUNNING'::character varying])::text[]))"
)
IN_LINE = "((status)::text = ANY ((ARRAY['READY'::character varying, 'BLOCKED'::character varying])::text[]))"
INDEXES = {
    "dispatch_run_claim": ("queue, priority DESC, COALESCE(turn, (id * 2", "((status)::text = 'READY'::text)"),
    "dispatch_run_promote": ("run_after", "((status)::text = 'SCHEDULED'::text)"),
    "dispatch_run_expire": (
        "expires_at",
        "((attempt = 0) AND (expires_at IS NOT NULL) AND ((status)::text = ANY ((ARRAY['SCHEDULED'::character varying,"
        " 'READY'::character varying, 'BLOCKED'::character varying])::text[])))",
    ),
    "dispatch_run_lease": ("lease_id", "(lease_id IS NOT NULL)"),
    "dispatch_run_uuid": ("uuid", "(uuid IS NOT NULL)"),
    "dispatch_run_unique": ("unique_key", "(unique_key IS NOT NULL)"),
    "dispatch_run_blocked": ("blocked_by, priority DESC, COALESCE(turn, (id * 2", "((status)::text = 'BLOCKED'::text)"),
    "dispatch_run_turns": ("COALESCE(blocked_by, queue", f"({IN_LINE} AND (turn IS NOT NULL))"),
    "dispatch_run_fair": ("COALESCE(blocked_by, queue", f"({IN_LINE} AND (turn IS NOT NULL))"),
    "dispatch_run_key_places": (
        "concurrency_key",
        f"((concurrency_key IS NOT NULL) AND (places > 0) AND {UNFINISHED})",
    ),
    "dispatch_run_prune": ("finished_at", "((finished_at IS NOT NULL) AND (retention IS NULL))"),
    "dispatch_run_prune_own": (
        "(((finished_at AT TIME ZONE 'UTC'::text",
        "((finished_at IS NOT NULL) AND (retention IS NOT NULL))",
    ),
    "dispatch_run_queue_places": ("queue", f"((places = 2) AND {UNFINISHED})"),
    "dispatch_run_overlap": ("schedule_id", "((finished_at IS NULL) AND (schedule_id IS NOT NULL))"),
    "dispatch_run_slot": ("schedule_id, scheduled_for", "(schedule_id IS NOT NULL)"),
}
STORAGE = {
    RUN: {
        "fillfactor=80",
        "autovacuum_vacuum_scale_factor=0",
        "autovacuum_vacuum_threshold=5000",
        "autovacuum_vacuum_insert_scale_factor=0",
        "autovacuum_vacuum_insert_threshold=100000",
        "autovacuum_analyze_scale_factor=0",
        "autovacuum_analyze_threshold=20000",
        "autovacuum_vacuum_cost_delay=0",
        "vacuum_truncate=off",
    },
    LEASE: {"fillfactor=50", "autovacuum_vacuum_scale_factor=0", "autovacuum_vacuum_threshold=200"},
}


def ask(question: str, *params: object, using: str = "default") -> list[Any]:
    with connections[using].cursor() as cursor:
        cursor.execute(question, params)
        return cursor.fetchall()


def storage(table: str, using: str = "default") -> set[str]:
    ((options,),) = ask("SELECT reloptions FROM pg_class WHERE relname = %s", table, using=using)
    return set(options or ())


class TestTables:
    def test_every_index_but_the_primary_key_is_partial(self, db: None) -> None:
        found = ask(
            "SELECT c.relname, pg_get_indexdef(c.oid), pg_get_expr(i.indpred, i.indrelid), i.indisunique"
            " FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
            " WHERE i.indrelid = %s::regclass AND NOT i.indisprimary",
            RUN,
        )
        indexes = {
            name: (definition.split("(", 1)[1].split(")")[0], predicate) for name, definition, predicate, _ in found
        }
        assert indexes == INDEXES
        unique = {"dispatch_run_unique", "dispatch_run_uuid", "dispatch_run_slot"}
        assert {name for name, *_, is_unique in found if is_unique} == unique

    def test_a_lease_has_no_index_that_a_renewal_would_write(self, db: None) -> None:
        assert ask("SELECT count(*) FROM pg_index WHERE indrelid = %s::regclass", LEASE) == [(1,)]

    @pytest.mark.parametrize("table", [RUN, LEASE])
    def test_storage_is_that_of_a_queue(self, db: None, table: str) -> None:
        assert storage(table) == STORAGE[table]

    @pytest.mark.parametrize(("table", "needed"), [(RUN, {"task"}), (LEASE, {"id"}), (SCHEDULE, {"name", "task"})])
    def test_every_other_column_has_a_default_or_may_be_null(self, db: None, table: str, needed: set[str]) -> None:
        found = ask(
            "SELECT column_name FROM information_schema.columns WHERE table_schema = current_schema()"
            " AND table_name = %s AND is_nullable = 'NO' AND column_default IS NULL AND is_identity = 'NO'",
            table,
        )
        assert {name for (name,) in found} == needed

    def test_there_is_no_foreign_key(self, db: None) -> None:
        assert ask("SELECT conname FROM pg_constraint WHERE conrelid = %s::regclass AND contype = 'f'", RUN) == []

    @pytest.mark.parametrize(
        ("columns", "values", "constraint"),
        [
            ("queue", "'mail'", "task"),
            ("task, priority", "'t', 101", "dispatch_run_priority"),
            ("task, priority", "'t', -101", "dispatch_run_priority"),
            ("task, status", "'t', 'RUNNING'", "dispatch_run_running_has_lease"),
            ("task, lease_id", "'t', gen_random_uuid()", "dispatch_run_running_has_lease"),
            ("task, status, lease_id", "'t', 'FAILED', gen_random_uuid()", "dispatch_run_running_has_lease"),
            ("task, status", "'t', 'SCHEDULED'", "dispatch_run_scheduled_has_run_after"),
            ("task, run_after", "'t', now()", "dispatch_run_scheduled_has_run_after"),
            ("task, epoch", "'t', -1", "epoch"),
            ("task, attempt", "'t', -1", "attempt"),
            ("task, failures", "'t', -1", "failures"),
            ("task, interruptions", "'t', -1", "interruptions"),
            ("task, max_attempts", "'t', -1", "max_attempts"),
            ("task, args", "'t', NULL", "args"),
            ("task, retention", "'t', '7'", "dispatch_run_retention"),
            ("task, retention", """'t', '{"FAILED": "x"}'""", "dispatch_run_retention"),
            ("task, retention", """'t', '{"FAILED": -1}'""", "dispatch_run_retention"),
            ("task, retention", """'t', '{"FAILED": 1e10}'""", "dispatch_run_retention"),
            ("task, queue", "'t', repeat('q', 101)", "character varying(100)"),
            ("task, unique_key", "'t', 'k'), ('t', 'k'", "dispatch_run_unique"),
        ],
    )
    def test_nonsense_is_refused(
        self, sql: psycopg.Connection[Any], columns: str, values: str, constraint: str
    ) -> None:
        with pytest.raises((psycopg.IntegrityError, psycopg.DataError)) as refusal:
            sql.execute(f"INSERT INTO {RUN} ({columns}) VALUES ({values})".encode())
        assert constraint in str(refusal.value)


@pytest.fixture
def new_session(transactional_db: None) -> Iterator[Callable[[], psycopg.Connection[Any]]]:
    """Open another session of somebody who knows nothing of Django."""
    opened: list[psycopg.Connection[Any]] = []

    def new() -> psycopg.Connection[Any]:
        opened.append(psycopg.connect(**connection_params("default", "test"), autocommit=True))
        return opened[-1]

    yield new
    for session in opened:
        session.close()


@pytest.fixture
def sql(new_session: Callable[[], psycopg.Connection[Any]]) -> psycopg.Connection[Any]:
    return new_session()


@pytest.fixture
def ear(transactional_db: None) -> Iterator[Ear]:
    ear = Ear()
    yield ear
    ear.close()


class TestPlainSql:
    INSERT = f"INSERT INTO {RUN} (task, args) VALUES ('shop.tasks.add', '[1,2]')"

    def test_task_and_args_are_a_whole_run(self, sql: psycopg.Connection[Any], ear: Ear) -> None:
        sql.execute(self.INSERT)
        run = Run.objects.get()
        assert (run.task, run.args, run.kwargs, run.meta, run.errors) == ("shop.tasks.add", [1, 2], {}, {}, [])
        assert (run.status, run.queue, run.priority, run.on_lost, run.source) == (
            *("READY", "default", 0, ""),
            "sql",
        )
        assert (run.epoch, run.attempt, run.failures, run.interruptions) == (0, 0, 0, 0)
        assert run.enqueued_at is not None
        assert ear.heard() == ["ready:default"]

    def test_it_is_claimed_like_any_other(self, sql: psycopg.Connection[Any]) -> None:
        sql.execute(self.INSERT)
        store = open_store("default", "test", statement_timeout_seconds=20.0)
        lease = NewLease(uuid4(), node="", host="", pid=1, process={}, queues=[], slots=1, version="")
        store.acquire(lease, ttl_seconds=60.0)
        (run,) = store.exchange(lease.id, [], queues=["default"], limit=10).claimed
        store.close()
        assert (run.task, run.args, run.kwargs, run.epoch) == ("shop.tasks.add", "[1, 2]", "{}", 1)

    def test_a_statement_wakes_once_for_each_queue(self, sql: psycopg.Connection[Any], ear: Ear) -> None:
        sql.execute(f"INSERT INTO {RUN} (task, queue) SELECT 't', 'q' || n % 2 FROM generate_series(1, 10) AS n")
        assert sorted(ear.heard()) == ["ready:q0", "ready:q1"]

    @pytest.mark.parametrize(
        ("columns", "values"),
        [
            ("task, source", "'t', 'app'"),
            ("task, status, run_after", "'t', 'SCHEDULED', 'infinity'"),
            ("task, status, source", "'t', 'BLOCKED', 'app'"),
        ],
    )
    def test_runs_announced_elsewhere_or_not_ready_wake_nobody(
        self, sql: psycopg.Connection[Any], ear: Ear, columns: str, values: str
    ) -> None:
        sql.execute(f"INSERT INTO {RUN} ({columns}) VALUES ({values})".encode())
        assert ear.heard() == []
        sql.execute(self.INSERT)
        assert ear.heard() == ["ready:default"]

    def test_a_rolled_back_insert_wakes_nobody(self, sql: psycopg.Connection[Any], ear: Ear) -> None:
        with sql.transaction(force_rollback=True):
            sql.execute(self.INSERT)
        assert ear.heard() == []

    def test_one_open_transaction_at_a_time_carries_a_wakeup(
        self, new_session: Callable[[], psycopg.Connection[Any]], ear: Ear
    ) -> None:
        first, second = new_session(), new_session()
        with first.transaction():
            first.execute(f"INSERT INTO {RUN} (task, queue) VALUES ('t', 'first')")
            with second.transaction():
                second.execute(f"INSERT INTO {RUN} (task, queue) VALUES ('t', 'second')")
            assert ear.heard() == []
            first.execute(f"INSERT INTO {RUN} (task, queue) VALUES ('t', 'first too')")
        assert ear.heard() == ["ready:first", "ready:first too"]
        second.execute(f"INSERT INTO {RUN} (task, queue) VALUES ('t', 'second')")
        assert ear.heard() == ["ready:second"]


# Connections of a project may be set to prepare whatever they execute, which several statements at once cannot be.
PREPARES_ALL = {"server_side_binding": True, "prepare_threshold": 0}


class TestSteps:
    @pytest.fixture
    def migrate(self, django_db_modify_db_settings: None, django_db_blocker: Any) -> Iterator[Callable[[str], None]]:
        with django_db_blocker.unblock(), own_database("steps"):
            options = connections.settings["steps"]["OPTIONS"]
            connections.settings["steps"] |= {"OPTIONS": options | PREPARES_ALL}
            yield lambda target: call_command("migrate", "django_dispatch", target, database="steps", verbosity=0)

    def test_forwards_and_backwards(self, migrate: Callable[[str], None]) -> None:
        migrate("0008")
        assert len(self.schema()) > 3 + 9 + 4
        migrate("0002")
        first = self.schema()
        assert len(first) > 2 + 7 + 3
        migrate("0001")
        assert storage(RUN, "steps") == storage(LEASE, "steps") == set()
        assert self.schema() < first
        migrate("zero")
        assert self.schema() == set()
        migrate("0002")
        assert self.schema() == first
        assert storage(RUN, "steps") == STORAGE[RUN] - {"fillfactor=80"}
        migrate("0012")
        assert storage(RUN, "steps") == STORAGE[RUN]

    def schema(self) -> set[tuple[str, str]]:
        """Return the kind and name of everything that is ours."""
        return set(
            ask(
                "SELECT relkind::text, relname FROM pg_class WHERE relname LIKE '%%dispatch%%'"
                " UNION SELECT 'trigger', tgname FROM pg_trigger WHERE tgname LIKE '%%dispatch%%'"
                " UNION SELECT 'constraint', conname FROM pg_constraint WHERE conname LIKE '%%dispatch%%'"
                " UNION SELECT 'function', proname FROM pg_proc WHERE proname LIKE '%%dispatch%%'",
                using="steps",
            )
        )


AUTH = ["django.contrib.auth", "django.contrib.contenttypes"]
PROJECTS: dict[str, dict[str, Any]] = {
    "nothing but this app": {"INSTALLED_APPS": ["django_dispatch"]},
    "no admin": {"INSTALLED_APPS": [*AUTH, "django_dispatch"]},
    "a user model with UUID keys": {
        "INSTALLED_APPS": [*AUTH, "people", "django_dispatch"],
        "AUTH_USER_MODEL": "people.User",
    },
    "AutoField": {"INSTALLED_APPS": ["django_dispatch"], "DEFAULT_AUTO_FIELD": "django.db.models.AutoField"},
    "BigAutoField": {"INSTALLED_APPS": ["django_dispatch"], "DEFAULT_AUTO_FIELD": "django.db.models.BigAutoField"},
    "another language": {"INSTALLED_APPS": ["django_dispatch"], "LANGUAGE_CODE": "ar", "USE_I18N": True},
    "no time zones": {"INSTALLED_APPS": ["django_dispatch"], "USE_TZ": False, "TIME_ZONE": "Asia/Kolkata"},
    "tasks and queues": {
        "INSTALLED_APPS": ["people", "django_dispatch", *AUTH],
        "AUTH_USER_MODEL": "people.User",
        "DISPATCH": {"QUEUES": ["a", "b"], "PROCESSES": 3},
    },
}
PEOPLE = {
    "__init__.py": "",
    "models.py": """
import uuid
from django.contrib.auth.models import AbstractUser
from django.db import models

class User(AbstractUser):
    id = models.UUIDField(primary_key=True, default=uuid.uuid4)
""",
    "tasks.py": """
from django_dispatch import task

@task(queue="people", priority=3)
def greet(name: str) -> None: ...
""",
}


class TestProjects:
    @pytest.mark.parametrize("name", PROJECTS)
    def test_no_project_wants_other_migrations(self, database_url: str, tmp_path: Path, name: str) -> None:
        project = {"SECRET_KEY": "x", "USE_TZ": True} | PROJECTS[name]
        lines = [f"{key} = {value!r}" for key, value in project.items()]
        lines.append("import os; from testproject.postgres import django_database")
        lines.append("DATABASES = {'default': django_database(os.environ['DATABASE_URL'])}")
        (tmp_path / "elsewhere_settings.py").write_text("\n".join(lines))
        (tmp_path / "people").mkdir()
        for file, text in PEOPLE.items():
            (tmp_path / "people" / file).write_text(text)
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)]),
            "DJANGO_SETTINGS_MODULE": "elsewhere_settings",
            "DATABASE_URL": database_url,
        }
        for command, expected in {
            "check": "no issues",
            "makemigrations --check --dry-run django_dispatch": "No changes detected",
        }.items():
            done = subprocess.run(
                [sys.executable, "-Werror::RuntimeWarning", "-m", "django", *command.split()],
                env=environment,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=False,
            )
            assert (done.returncode, expected in done.stdout) == (0, True), done.stdout + done.stderr


def test_the_suite_s_own_project_wants_no_other_migrations(db: None) -> None:
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)
    assert connection.vendor == "postgresql"


def test_on_sqlite_they_make_the_same_indexes_and_can_be_taken_back(
    sqlite_template: Path, tmp_path: Path, django_db_blocker: DjangoDbBlocker
) -> None:
    def named(kind: str) -> set[str]:
        with connection.cursor() as cursor:
            cursor.execute("SELECT name FROM sqlite_master WHERE type = %s AND name LIKE %s", [kind, "%dispatch%"])
            return {name for (name,) in cursor.fetchall() if not name.startswith("sqlite_autoindex")}

    with django_db_blocker.unblock(), own_file(sqlite_template, tmp_path):
        tables = named("table")
        assert named("trigger") == {"django_dispatch_replan"}
        wanted = {index.name for index in Run._meta.indexes}
        assert wanted <= named("index")
        call_command("migrate", "django_dispatch", "zero", verbosity=0, skip_checks=True)
        assert (named("table"), named("trigger"), named("index")) == (set(), set(), set())
        call_command("migrate", "django_dispatch", verbosity=0, skip_checks=True)
        assert (named("table"), named("trigger")) == (tables, {"django_dispatch_replan"})
        call_command("makemigrations", "--check", "--dry-run", verbosity=0)


@pytest.mark.django_db
@pytest.mark.skipif(connection.vendor != "postgresql", reason="SQLite stores no gaps")
def test_columns_of_a_fixed_size_come_first_so_that_no_gap_is_stored_between_them() -> None:
    order = (
        "SELECT attlen, attalign::text FROM pg_attribute WHERE attrelid = 'django_dispatch_run'::regclass"
        " AND attnum BETWEEN 1 AND 9 ORDER BY attnum"
    )
    with connection.cursor() as cursor:
        cursor.execute(order)
        assert cursor.fetchall() == [(8, "d")] * 4 + [(4, "i")] + [(2, "s")] * 4
