"""The DISPATCH setting: what is accepted, what is refused, and that a refusal names its key."""

from dataclasses import FrozenInstanceError, fields
from datetime import timedelta
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.db import connections
from django.test import override_settings

from django_dispatch import conf
from django_dispatch.rates import Limit, Rate

NAN, INF = float("nan"), float("inf")
HUGE = 10**5000  # its repr raises


class Unprintable:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


def kind(value: object) -> str:
    return type(value).__name__


NONSENSE: list[Any] = [
    *(True, False, 0, -1, 10**6, HUGE, -HUGE, NAN, INF, -INF, 1j, "", " ", "1", "a\0b", "x" * 20_000, b"x"),
    *([], [[]], [None], ["a", "a"], ["pg_notify", "pg_notify"], ("",), {}, {"x": 1}, {1: 2}, {("a",): None}),
    *(set(), {"a"}, frozenset("a"), range(3), object(), Unprintable(), [Unprintable()], {"FAILED": Unprintable()}),
    *(int, len, timedelta.max, timedelta.min, timedelta(0), -timedelta(seconds=1), None),
]
SECONDS = ["POLL_INTERVAL", "LEASE_TTL", "CANCEL_GRACE", "SHUTDOWN_TIMEOUT", "EXECUTOR_READY_TIMEOUT"]
OPTIONAL_SECONDS = ["RENEW_INTERVAL", "LEASE_MARGIN", "DEFAULT_TIMEOUT", "EXECUTOR_MAX_AGE", "PRIORITY_AGING"]
COUNTS = ["PROCESSES", "ASYNC_CONCURRENCY", "CLAIM_LIMIT", "MAX_INTERRUPTIONS"]
OPTIONAL_COUNTS = ["EXECUTOR_MAX_RUNS", "EXECUTOR_MAX_MEMORY_MB"]
TEXTS = ["DATABASE", "LISTEN_DSN", "NODE", "CONTROL_CHANNEL", "METRICS_HOST", "REDIS"]
QUEUES = ["QUEUES", "QUEUE_WEIGHTS", "QUEUE_LIMITS"]
OTHERS = ["WAKEUPS", "NOTIFY", *QUEUES, "RETENTION", "NOTIFY_CHANNELS", "METRICS_PORT", "LOG_FORMAT"]
KEYS = [*SECONDS, *OPTIONAL_SECONDS, *COUNTS, *OPTIONAL_COUNTS, *TEXTS, *OTHERS]


def accepted(raw: Any, **overrides: Any) -> conf.DispatchSettings:
    found, problems = conf.examine(raw, **overrides)
    assert found is not None, problems
    assert problems == []
    return found


def refused(raw: Any, **overrides: Any) -> list[conf.Problem]:
    found, problems = conf.examine(raw, **overrides)
    assert found is None
    assert problems
    return problems


def test_every_key_is_covered_here() -> None:
    assert sorted(KEYS) == sorted(
        field.name.removesuffix("_seconds").upper() for field in fields(conf.DispatchSettings)
    )


def test_queue_limits_are_numbers_rates_or_both() -> None:
    limits = {"mail": 5, "api": "100/m", "both": {"concurrency": 2, "rate": "1/s"}}
    assert accepted({"QUEUE_LIMITS": limits}).queue_limits == {
        "mail": Limit(5),
        "api": Limit(None, Rate(100, 60)),
        "both": Limit(2, Rate(1, 1)),
    }
    (problem,) = refused({"QUEUE_LIMITS": {"mail": "5 a minute"}})
    assert "has a limit for 'mail' that breaks the rule: rate must be a text such as '100/m'" in problem.message


def test_the_empty_setting_is_the_defaults() -> None:
    found = accepted({})
    assert (found.database, found.wakeups, found.queues) == ("default", ("pg_notify",), None)
    assert (found.lease_ttl_seconds, found.renew_seconds, found.margin_seconds) == (15.0, 5.0, 3.0)
    assert (found.poll_interval_seconds, found.claim_limit) == (1.0, 200)
    assert found.node
    assert 1 <= found.processes <= conf.MAX_SLOTS
    assert found.retention == {"SUCCESSFUL": 86_400, "CANCELLED": 7 * 86_400, "FAILED": 30 * 86_400}


def test_notify_is_one_of_three_words() -> None:
    assert accepted({}).notify == "always"
    assert [accepted({"NOTIFY": word}).notify for word in ("always", "idle", "off")] == ["always", "idle", "off"]
    for value in ("", "Idle", "never", True, None, ["idle"]):
        (problem,) = refused({"NOTIFY": value})
        assert problem.message.startswith("DISPATCH['NOTIFY'] must be one of 'always', 'idle', 'off', not ")


@pytest.mark.parametrize("key", KEYS)
def test_examine_never_raises_and_names_the_key(key: str) -> None:
    for value in NONSENSE:
        found, problems = conf.examine({key: value})
        assert (found is None) == bool(problems)
        for problem in problems:
            assert problem.key == key
            assert f"DISPATCH['{key}']" in problem.message
            assert len(problem.message) < 500
            assert problem.hint


BAD_NUMBERS = [True, False, -1, HUGE, -HUGE, NAN, INF, -INF, 1j, "", "1", b"1", [], [1], (1,), {}, {1}, object()]


@pytest.mark.parametrize("key", [*SECONDS, *OPTIONAL_SECONDS])
@pytest.mark.parametrize("value", [*BAD_NUMBERS, timedelta.max, timedelta(seconds=-1)], ids=kind)
def test_seconds_refuse_what_is_no_duration(key: str, value: Any) -> None:
    assert [problem.key for problem in refused({key: value})] == [key]


@pytest.mark.parametrize("key", [*COUNTS, *OPTIONAL_COUNTS])
@pytest.mark.parametrize("value", [*BAD_NUMBERS, 1.0, 2.5, timedelta(1)], ids=kind)
def test_counts_refuse_what_is_no_whole_number(key: str, value: Any) -> None:
    assert [problem.key for problem in refused({key: value})] == [key]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *((key, 0) for key in ["POLL_INTERVAL", "LEASE_TTL", "RENEW_INTERVAL", "LEASE_MARGIN", "DEFAULT_TIMEOUT"]),
        *((key, 0) for key in ["PROCESSES", "CLAIM_LIMIT", "MAX_INTERRUPTIONS", *OPTIONAL_COUNTS]),
        *((key, 10**6) for key in [*SECONDS, "PROCESSES", "ASYNC_CONCURRENCY", "CLAIM_LIMIT", "MAX_INTERRUPTIONS"]),
        *((key, None) for key in [*SECONDS, *COUNTS, "DATABASE", "NODE", "WAKEUPS", "RETENTION"]),
    ],
)
def test_values_out_of_their_range_are_refused(key: str, value: Any) -> None:
    assert [problem.key for problem in refused({key: value})] == [key]


@pytest.mark.parametrize("key", TEXTS)
@pytest.mark.parametrize("value", [1, True, b"default", "", "  ", "a\0b", "x" * 20_000, ["default"]])
def test_texts_refuse_blanks_and_what_postgres_cannot_hold(key: str, value: Any) -> None:
    assert [problem.key for problem in refused({key: value})] == [key]


@pytest.mark.parametrize(
    "value", ["mail", b"mail", [], (), {"mail"}, {"mail": 1}, ["mail", "mail"], [""], [1], [None], ["q" * 101], ["a\0"]]
)
def test_queues_refuse_all_but_a_list_of_different_names(value: Any) -> None:
    assert [problem.key for problem in refused({"QUEUES": value})] == ["QUEUES"]


@pytest.mark.parametrize(
    "value", [["a", "-a"], ["mail*", "-mail*"], ["mail.slow", "-mail*"], ["-"], ["lease:x"], ["-lease:x"], ["lease:*"]]
)
def test_queues_refuse_what_contradicts_itself_and_what_is_private(value: Any) -> None:
    assert [problem.key for problem in refused({"QUEUES": value})] == ["QUEUES"]


@pytest.mark.parametrize("value", [["mail*", "-mail.slow"], ["-mail"], ["*"], ["a", "-b"], ["mail*", "mail"]])
def test_queues_may_be_patterns_and_excludes(value: Any) -> None:
    assert accepted({"QUEUES": value}).queues == tuple(value)


@pytest.mark.parametrize(
    "value", [None, [], "mail", {"mail": 0}, {"mail": 1001}, {"mail": 1.5}, {"mail": True}, {"": 1}, {1: 1}, {"-a": 2}]
)
def test_queue_weights_refuse_all_but_whole_numbers_by_queue(value: Any) -> None:
    assert [problem.key for problem in refused({"QUEUE_WEIGHTS": value})] == ["QUEUE_WEIGHTS"]


@pytest.mark.parametrize(
    "value", [None, "pg_notify", {"pg_notify"}, ["pg_notify"] * 2, ["arq"] * 2, ["redis"], [None], [[]], 1]
)
def test_wakeups_refuse_all_but_the_known_ones(value: Any) -> None:
    assert [problem.key for problem in refused({"WAKEUPS": value})] == ["WAKEUPS"]


@pytest.mark.parametrize("value", [None, 5, [("FAILED", 1)], {"RUNNING": 1}, {"failed": 1}, {1: 1}, {("FAILED",): 1}])
def test_retention_refuses_all_but_final_statuses(value: Any) -> None:
    assert [problem.key for problem in refused({"RETENTION": value})] == ["RETENTION"]


@pytest.mark.parametrize(
    "value",
    [
        *([], "a", {1: "q"}, {"a": 1}, {"a": ""}, {"": "q"}, {"a\0": "q"}, {"a": "q" * 101}, {"é" * 32: "q"}),
        {"django_dispatch": "q"},
    ],
)
def test_notify_channels_refuse_all_but_names_of_channels_and_queues(value: Any) -> None:
    assert [problem.key for problem in refused({"NOTIFY_CHANNELS": value})] == ["NOTIFY_CHANNELS"]


def test_channels_map_to_queues_and_control_has_a_channel_of_its_own() -> None:
    assert accepted({}).control_channel == "django_dispatch_control"
    found = accepted({"CONTROL_CHANNEL": "steer", "NOTIFY_CHANNELS": {"steer": "mail", "é" * 31: "default"}})
    assert (found.control_channel, found.notify_channels["steer"]) == ("steer", "mail")
    for taken in ("django_dispatch", "x" * 64):
        assert [problem.key for problem in refused({"CONTROL_CHANNEL": taken})] == ["CONTROL_CHANNEL"]


@pytest.mark.parametrize("age", [True, -1, NAN, INF, "1 day", [], timedelta.max])
def test_a_broken_age_is_named_with_its_status(age: Any) -> None:
    (problem,) = refused({"RETENTION": {"SUCCESSFUL": 60, "FAILED": age}})
    assert "FAILED" in problem.message


def test_a_node_must_fit_its_column() -> None:
    assert accepted({"NODE": "n" * 200}).node == "n" * 200
    assert [problem.key for problem in refused({"NODE": "n" * 201})] == ["NODE"]


@pytest.mark.parametrize(
    "raw", [None, 1, True, "x", b"x", [], [("LEASE_TTL", 15)], {"LEASE_TTL"}, object(), HUGE], ids=kind
)
def test_a_setting_that_is_no_dict_is_refused(raw: Any) -> None:
    (problem,) = refused(raw)
    assert "must be a dict" in problem.message


@pytest.mark.parametrize("key", [1, None, (), "", "LEASE", "RENEW", HUGE, "x" * 5000, b"NODE", True], ids=kind)
def test_an_unknown_key_is_refused(key: Any) -> None:
    (problem,) = refused({key: 1})
    assert "has no key" in problem.message
    assert problem.hint
    assert isinstance(problem.key, str)


@pytest.mark.parametrize(("key", "meant"), [("LEASE_TLL", "LEASE_TTL"), ("queues", "QUEUES"), ("PROCESS", "PROCESSES")])
def test_a_misspelt_key_gets_a_suggestion(key: str, meant: str) -> None:
    (problem,) = refused({key: 1})
    assert repr(key) in problem.message
    assert repr(meant) in problem.hint


def test_every_broken_key_is_reported_at_once() -> None:
    problems = refused({"LEASE_TTL": -1, "NODE": "", "NOPE": 1, "QUEUES": ["mail"]})
    assert {problem.key for problem in problems} == {"LEASE_TTL", "NODE", "NOPE"}


def test_no_message_tells_a_password() -> None:
    dsn = "postgresql://app:hunter2@db/shop"
    for raw in ({"LISTEN_DSN": [dsn]}, {"LISTEN_DSN": dsn + "\0"}, {"LISTEN_DNS": dsn}, [("LISTEN_DSN", dsn)]):
        assert all("hunter2" not in problem.message + problem.hint for problem in refused(raw))


@pytest.mark.parametrize(
    ("raw", "key"),
    [
        ({"RENEW_INTERVAL": 5.1}, "RENEW_INTERVAL"),
        ({"LEASE_TTL": 9, "RENEW_INTERVAL": 3.01}, "RENEW_INTERVAL"),
        ({"LEASE_MARGIN": 7.6}, "LEASE_MARGIN"),
        ({"LEASE_TTL": 4, "LEASE_MARGIN": 2.5}, "LEASE_MARGIN"),
        ({"POLL_INTERVAL": 15}, "POLL_INTERVAL"),
        ({"LEASE_TTL": 2, "POLL_INTERVAL": 2}, "POLL_INTERVAL"),
    ],
)
def test_keys_that_contradict_each_other_are_refused(raw: dict[str, Any], key: str) -> None:
    assert [problem.key for problem in refused(raw)] == [key]


@pytest.mark.parametrize("ttl", [2, 7, 10, 15, 100, 3600])
def test_a_third_of_the_ttl_is_a_renew_interval(ttl: int) -> None:
    assert accepted({"LEASE_TTL": ttl, "RENEW_INTERVAL": ttl / 3}).renew_seconds == ttl / 3
    accepted({"LEASE_TTL": ttl, "RENEW_INTERVAL": timedelta(seconds=ttl) / 3})


def test_durations_may_be_numbers_or_timedeltas() -> None:
    found = accepted(
        {"LEASE_TTL": timedelta(minutes=1), "POLL_INTERVAL": 2, "RETENTION": {"FAILED": timedelta(days=2)}}
    )
    assert (found.lease_ttl_seconds, found.poll_interval_seconds) == (60.0, 2.0)
    assert found.retention["FAILED"] == 2 * 86_400


def test_retention_fills_the_ages_that_were_not_given() -> None:
    found = accepted({"RETENTION": {"FAILED": None}})
    assert found.retention == {"SUCCESSFUL": 86_400, "CANCELLED": 7 * 86_400, "FAILED": None}
    assert accepted({}).retention["FAILED"] == 30 * 86_400


def test_overrides_win_and_none_is_not_given() -> None:
    found = accepted({"PROCESSES": 2, "NODE": "a"}, processes=3, node=None, queues=("mail",))
    assert (found.processes, found.node, found.queues) == (3, "a", ("mail",))
    assert [problem.key for problem in refused({}, processes=0)] == ["PROCESSES"]


def test_lists_become_tuples_and_nothing_can_be_assigned() -> None:
    queues = ["a", "b"]
    found = accepted({"QUEUES": queues, "WAKEUPS": []})
    queues.append("c")
    assert (found.queues, found.wakeups) == (("a", "b"), ())
    with pytest.raises(FrozenInstanceError):
        found.node = "other"  # type: ignore[misc]


def test_the_settings_are_read_again_after_an_override() -> None:
    before = conf.current()
    with override_settings(DISPATCH={"NODE": "first"}):
        assert conf.current().node == "first"
        with override_settings(DISPATCH={"NODE": "second"}):
            assert conf.current().node == "second"
            assert conf.current() is conf.current()
        assert conf.current().node == "first"
    assert conf.current() == before


def test_load_names_every_broken_key(settings: Any) -> None:
    settings.DISPATCH = {"LEASE_TTL": -1, "NOPE": 1}
    with pytest.raises(ImproperlyConfigured) as error:
        conf.load()
    assert "LEASE_TTL" in str(error.value)
    assert "NOPE" in str(error.value)


def test_on_sqlite_nobody_is_woken_and_polls_are_short_unless_said_otherwise() -> None:
    connections.settings["file"] = connections.settings["default"] | {"ENGINE": "django.db.backends.sqlite3"}
    try:
        found, _ = conf.examine({"DATABASE": "file"})
        assert found is not None
        assert (found.wakeups, found.poll_interval_seconds) == ((), 0.5)
        found, _ = conf.examine({"DATABASE": "file", "WAKEUPS": ["arq"]}, poll_interval=2)
        assert found is not None
        assert (found.wakeups, found.poll_interval_seconds) == (("arq",), 2.0)
        found, problems = conf.examine({"DATABASE": "file", "WAKEUPS": ["pg_notify"]})
        assert (found, [problem.key for problem in problems]) == (None, ["WAKEUPS"])
    finally:
        del connections["file"]
        del connections.settings["file"]
