"""The system checks: each id has a set-up that brings it up, and a sound project brings up none."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.checks import CheckMessage
from django.core.management import call_command
from django.core.management.base import SystemCheckError
from django.db import connections

from django_dispatch import checks
from django_dispatch.models import Schedule

ON_SQLITE = {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}


@pytest.fixture
def add_database() -> Iterator[Callable[..., None]]:
    """Add an alias that is like the default one but for ``changes``; nothing connects to it."""
    added = []

    def add(alias: str, **changes: Any) -> None:
        added.append(alias)
        connections.settings[alias] = connections.settings["default"] | {"PORT": "5432"} | changes

    yield add
    for alias in added:
        if alias in {connection.alias for connection in connections.all(initialized_only=True)}:
            del connections[alias]
        del connections.settings[alias]


@pytest.fixture(autouse=True)
def routers(settings: Any) -> None:
    settings.DATABASE_ROUTERS = ["django_dispatch.routers.DispatchRouter"]


def ids_of(messages: list[CheckMessage]) -> list[str | None]:
    for message in messages:
        assert message.hint
        assert str(message.id) in str(checks.__doc__)
    return [message.id for message in messages]


def test_a_sound_project_has_no_messages(settings: Any, add_database: Callable[..., None]) -> None:
    add_database("queue")
    settings.DISPATCH = {"DATABASE": "queue"}
    assert checks.check_settings() == []


@pytest.mark.parametrize(
    ("raw", "named"),
    [
        ({"LEASE_TLL": 15}, ["LEASE_TLL"]),
        ({"LEASE_TTL": -1, "NODE": ""}, ["LEASE_TTL", "NODE"]),
        ({"RENEW_INTERVAL": 14}, ["RENEW_INTERVAL"]),
        (["LEASE_TTL"], ["DISPATCH"]),
        (None, ["DISPATCH"]),
    ],
)
def test_e001_one_error_for_each_broken_key(settings: Any, raw: Any, named: list[str]) -> None:
    settings.DISPATCH = raw
    messages = checks.check_settings()
    assert ids_of(messages) == ["django_dispatch.E001"] * len(named)
    for message, key in zip(messages, named, strict=True):
        assert key in message.msg


def test_e002_an_alias_that_does_not_exist(settings: Any) -> None:
    settings.DISPATCH = {"DATABASE": "nowhere"}
    (message,) = messages = checks.check_settings()
    assert ids_of(messages) == ["django_dispatch.E002"]
    assert "'nowhere'" in message.msg


def test_e003_a_database_that_keeps_no_runs(
    settings: Any, add_database: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_database("dummy", ENGINE="django.db.backends.dummy")
    settings.DISPATCH = {"DATABASE": "dummy"}
    assert ids_of(checks.check_settings()) == ["django_dispatch.E003"]
    add_database("file", **ON_SQLITE, OPTIONS={"transaction_mode": "IMMEDIATE"})
    settings.DISPATCH = {"DATABASE": "file"}
    monkeypatch.setattr("sqlite3.sqlite_version_info", (3, 34, 1))
    assert ids_of(checks.check_settings()) == ["django_dispatch.E003", "django_dispatch.I001"]


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({}, ["django_dispatch.W007", "django_dispatch.I001"]),
        ({"transaction_mode": "DEFERRED"}, ["django_dispatch.W007", "django_dispatch.I001"]),
        ({"transaction_mode": "immediate"}, ["django_dispatch.I001"]),
        ({"transaction_mode": "EXCLUSIVE"}, ["django_dispatch.I001"]),
    ],
    ids=str,
)
def test_i001_and_w007_what_is_lost_on_sqlite(
    settings: Any, add_database: Callable[..., None], options: dict[str, str], ids: list[str]
) -> None:
    add_database("file", **ON_SQLITE, OPTIONS=options)
    settings.DISPATCH = {"DATABASE": "file"}
    assert ids_of(checks.check_settings()) == ids
    settings.DISPATCH = {"DATABASE": "file", "NOTIFY_CHANNELS": {"jobs": "default"}}
    assert ids_of(checks.check_settings()) == [*ids, "django_dispatch.W003"]
    settings.DISPATCH = {"DATABASE": "file", "WAKEUPS": ["pg_notify"]}
    assert ids_of(checks.check_settings()) == ["django_dispatch.E001"]


@pytest.mark.parametrize("pooled", [{"DISABLE_SERVER_SIDE_CURSORS": True}, {"PORT": 6432}, {"PORT": "6432"}])
def test_w001_listen_through_a_transaction_pooler(
    settings: Any, add_database: Callable[..., None], pooled: dict[str, Any]
) -> None:
    add_database("pooled", **pooled)
    settings.DISPATCH = {"DATABASE": "pooled"}
    assert ids_of(checks.check_settings()) == ["django_dispatch.W001"]
    add_database("direct")
    ways_out: list[dict[str, Any]] = [
        {"LISTEN_DSN": "postgresql://db/shop"},
        {"LISTEN_DSN": "host=db"},
        {"LISTEN_DSN": "direct"},
        {"WAKEUPS": []},
    ]
    for way_out in ways_out:
        settings.DISPATCH = {"DATABASE": "pooled"} | way_out
        assert checks.check_settings() == []
    settings.DISPATCH = {"LISTEN_DSN": "pooled"}
    assert ids_of(checks.check_settings()) == ["django_dispatch.W001"]
    settings.DISPATCH = {"LISTEN_DSN": "a typo"}
    assert ids_of(checks.check_settings()) == ["django_dispatch.E002"]


def test_w002_the_python_implementation_of_psycopg(
    settings: Any, add_database: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    add_database("queue")
    settings.DISPATCH = {"DATABASE": "queue"}
    monkeypatch.setattr("psycopg.pq.__impl__", "python")
    assert ids_of(checks.check_settings()) == ["django_dispatch.W002"]
    monkeypatch.setattr("psycopg.pq.__impl__", "c")
    assert checks.check_settings() == []


def test_w003_nobody_listens_to_the_channels_of_messages(settings: Any, add_database: Callable[..., None]) -> None:
    add_database("queue")
    settings.CACHES = {"default": {"BACKEND": "django_redis.cache.RedisCache", "LOCATION": "redis://nowhere"}}
    settings.DISPATCH = {"DATABASE": "queue", "NOTIFY_CHANNELS": {"jobs": "default"}, "WAKEUPS": ["arq"]}
    assert ids_of(checks.check_settings()) == ["django_dispatch.W003"]
    settings.DISPATCH |= {"WAKEUPS": []}
    assert ids_of(checks.check_settings()) == ["django_dispatch.W003"]
    settings.DISPATCH |= {"WAKEUPS": ["pg_notify"]}
    assert checks.check_settings() == []


def test_e004_psycopg_3_cannot_be_imported(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DISPATCH = {}
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert "django_dispatch.E004" in ids_of(checks.check_settings())


@pytest.mark.parametrize(
    ("raw", "is_told"), [({"METRICS_PORT": 9000}, True), ({"METRICS_PORT": 0}, False), ({}, False)]
)
def test_w004_a_port_for_metrics_without_prometheus_client(
    settings: Any, monkeypatch: pytest.MonkeyPatch, raw: Any, is_told: bool
) -> None:
    settings.DISPATCH = raw
    assert "django_dispatch.W004" not in ids_of(checks.check_settings())
    monkeypatch.setattr(checks, "can_be_exposed", lambda: False)
    assert ("django_dispatch.W004" in ids_of(checks.check_settings())) is is_told


BROKEN_APP_CHECKED = """
import sys
import django
from django.conf import settings
from django.core.management import call_command
settings.configure(
    INSTALLED_APPS=["django_dispatch", "broken_app"],
    DATABASES={"default": {"ENGINE": "django.db.backends.postgresql", "NAME": "none"}},
)
django.setup()
call_command("check", tags=["django_dispatch"])
assert "broken_app.tasks" not in sys.modules
call_command("check", tags=["django_dispatch_tasks"])
"""


def test_e005_a_broken_task_module_that_the_settings_checks_do_not_import(tmp_path: Path) -> None:
    package = tmp_path / "broken_app"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "tasks.py").write_text("import a_module_that_does_not_exist\n")
    environment = {key: value for key, value in os.environ.items() if key != "DJANGO_SETTINGS_MODULE"}
    environment["PYTHONPATH"] = os.pathsep.join([str(tmp_path), *sys.path])
    command = [sys.executable, "-c", BROKEN_APP_CHECKED]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert "AssertionError" not in done.stderr
    assert "django_dispatch.E005" in done.stderr
    assert "'broken_app.tasks' cannot be imported: ModuleNotFoundError: No module named 'a_mod" in done.stderr


def test_w005_a_schedule_that_was_flagged(db: None) -> None:
    Schedule.objects.create(name="good", task="shop.report", cron="@daily")
    Schedule.objects.create(name="bad", task="shop.report", cron="61 * * * *", problem="No cron.")
    assert checks.check_schedules() == []
    messages = checks.check_schedules(databases=["default"])
    assert ids_of(messages) == ["django_dispatch.W005"]
    assert messages[0].msg == "The schedule 'bad' has a problem: No cron."


def test_manage_check_fails_on_a_broken_setting(settings: Any) -> None:
    settings.DISPATCH = {"LEASE_TTL": "soon"}
    with pytest.raises(SystemCheckError, match=r"django_dispatch\.E001.*LEASE_TTL"):
        call_command("check", tags=[checks.SETTINGS_TAG])
