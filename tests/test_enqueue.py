"""From a call to a row: what is recorded, when, in whose transaction, and who is woken."""

import json
import logging
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import psycopg
import pytest
from asgiref.sync import async_to_sync
from django.db import DatabaseError, IntegrityError, connection, connections, transaction
from django.db.models.expressions import DatabaseDefault
from django.test import override_settings
from django.utils import timezone
from django.utils.connection import ConnectionDoesNotExist
from django.utils.functional import lazystr

from django_dispatch import (
    Call,
    CancelAnswer,
    InvalidArguments,
    InvalidOption,
    TaskContext,
    cancel_many,
    run_again,
    task,
)
from django_dispatch.conf import current
from django_dispatch.enqueue import enqueue
from django_dispatch.models import Run
from django_dispatch.store import postgres_enqueue
from django_dispatch.store.values import Alike, NewRun
from django_dispatch.store.vendors import callers
from django_dispatch.wakeups import sending
from django_dispatch.wakeups.base import CHANNEL, Wakeup

pytestmark = pytest.mark.usefixtures("any_database")


@task
def add(a: int, b: int = 0, **labels: str) -> int:
    return a + b


@task(queue="mail", priority=7, timeout=90, max_attempts=4, on_lost="fail")
def send(address: str) -> None: ...


@task(expires=timedelta(hours=1))
def errand() -> None: ...


@task(bind=True)
def who(context: TaskContext, name: str) -> None: ...


def queue_of(order: int) -> Any:
    return f"shop-{order % 2}" if order else ""


@task(queue=queue_of)
def ship(order: int) -> None: ...


SOON = timedelta(hours=1)


def attributes(run: Run) -> dict[str, Any]:
    """Everything the object holds, without asking the database for what it lacks."""
    return {field.attname: run.__dict__[field.attname] for field in Run._meta.concrete_fields}


def database_now() -> datetime:
    if connection.vendor == "sqlite":
        return datetime.now(UTC)
    with connection.cursor() as cursor:
        cursor.execute("SELECT clock_timestamp()")
        now = cursor.fetchone()[0]
        assert isinstance(now, datetime)
        return now


@pytest.fixture
def heard(transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], list[str]]]:
    """Listen on a connection of its own; the function returns the payloads since, ended by one of its own."""
    monkeypatch.setattr(sending, "_buckets", {})
    parameters = connection.get_connection_params()
    listener = psycopg.connect(
        **{key: parameters[key] for key in ("dbname", "user", "password", "host", "port") if parameters.get(key)},
        autocommit=True,
    )
    listener.execute(f"LISTEN {CHANNEL}")

    def payloads() -> list[str]:
        listener.execute("SELECT pg_notify(%s, 'test:end')", [CHANNEL])
        found: list[str] = []
        for notification in listener.notifies(timeout=10):
            if notification.payload == "test:end":
                return found
            found.append(notification.payload)
        raise AssertionError("the listener's own wakeup did not come back")

    yield payloads
    listener.close()


class TestDelay:
    def test_the_run_returned_is_the_row_written(self, db: None) -> None:
        before = database_now()
        for run in (add.delay(1, b=2), send.delay("ada"), add.apply_async((1,), countdown=60, timeout=5)):
            assert attributes(run) == attributes(Run.objects.get(pk=run.pk))
            assert not any(isinstance(value, DatabaseDefault) for value in run.__dict__.values())
            assert before < run.enqueued_at < database_now()
            assert (run._state.adding, run._state.db) == (False, "default")

    def test_the_row_holds_the_call_as_it_was_made_and_the_options_of_the_task(self, db: None) -> None:
        row = Run.objects.get(pk=add.delay(1, b=2, size="xl").pk)
        assert (row.task, row.args, row.kwargs) == (add.path, [1], {"b": 2, "size": "xl"})
        assert (row.queue, row.priority, row.status, row.source) == ("default", 0, "READY", "app")
        assert (row.run_after, row.attempt, row.epoch, row.errors, row.meta) == (None, 0, 0, [], {})
        row = Run.objects.get(pk=send.delay("ada").pk)
        assert (row.queue, row.priority, row.on_lost) == ("mail", 7, "fail")

    def test_what_the_task_says_at_the_start_of_a_run_is_not_frozen_into_the_row(self, db: None) -> None:
        run = send.delay("ada")
        assert (run.max_attempts, run.timeout) == (None, None)

    def test_labels_are_written_and_returned(self, db: None) -> None:
        run = enqueue(NewRun(task="t", meta='{"trace": "1-2"}'))
        assert run.meta == Run.objects.get(pk=run.pk).meta == {"trace": "1-2"}

    @pytest.mark.postgres
    def test_it_is_one_statement(self, db: None, django_assert_num_queries: Any) -> None:
        with django_assert_num_queries(1):
            run = add.delay(1)
            str(attributes(run))

    def test_lazy_texts_are_stored_and_returned_resolved(self, db: None) -> None:
        run = who.delay(lazystr("Ada"))  # type: ignore[arg-type]  # a lazy text stands for a str
        assert run.args == ["Ada"]
        assert type(run.args[0]) is str

    def test_the_context_is_not_an_argument(self, db: None) -> None:
        assert who.delay("Ada").args == ["Ada"]
        with pytest.raises(InvalidArguments, match="'name'"):
            who.delay()  # type: ignore[call-arg]  # the mistake under test

    def test_wrong_arguments_write_nothing(self, db: None) -> None:
        with pytest.raises(InvalidArguments, match="argument 'a' is of type set"):
            add.delay({1})  # type: ignore[arg-type]  # the mistake under test
        assert not Run.objects.exists()

    def test_a_queue_function_sees_the_arguments(self, db: None) -> None:
        assert [ship.delay(1).queue, ship.delay(order=2).queue] == ["shop-1", "shop-0"]
        assert ship.apply_async((1,), queue="other").queue == "other"

    def test_a_queue_function_that_names_no_queue_is_an_error_of_the_task(self, db: None) -> None:
        with pytest.raises(InvalidOption, match=r"\.ship'.*queue must be a name"):
            ship.delay(0)

    def test_a_row_of_plain_sql_with_task_and_args_is_an_enqueue_too(self, db: None) -> None:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO django_dispatch_run (task, args) VALUES (%s, '[1, 2]')", [add.path])
        ours, theirs = attributes(add.delay(1, 2)), attributes(Run.objects.get(source="sql"))
        differing = {name for name in ours if ours[name] != theirs[name]}
        assert differing <= {"id", "enqueued_at", "source"}


@pytest.mark.postgres
def test_every_statement_works_with_parameters_bound_by_the_server(transactional_db: None) -> None:
    bound = connections["bound"] = connection.copy("bound")
    bound.settings_dict["OPTIONS"] = {**bound.settings_dict["OPTIONS"], "server_side_binding": True}
    try:
        with override_settings(DISPATCH={"DATABASE": "bound"}):
            runs = [add.delay(1), add.apply_async((1,), countdown=SOON, timeout=1.5), *add.delay_many([(1,), (2,)])]
            assert [attributes(run) for run in runs] == [attributes(run) for run in Run.objects.order_by("id")]
            assert set(cancel_many(runs).values()) == {CancelAnswer.CANCELLED}
            assert run_again(runs[0]).args == [1]
    finally:
        bound.close()
        del connections["bound"]


class TestTransaction:
    def test_a_rolled_back_transaction_leaves_no_run_and_wakes_nobody(self, heard: Callable[[], list[str]]) -> None:
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            add.delay(1)
            raise ZeroDivisionError
        assert not Run.objects.exists()
        assert heard() == []

    def test_a_rolled_back_savepoint_wakes_nobody(self, heard: Callable[[], list[str]]) -> None:
        with transaction.atomic():
            send.delay("ada")
            with pytest.raises(ZeroDivisionError), transaction.atomic():
                add.delay(1)
                raise ZeroDivisionError
        assert heard() == ["ready:mail"]

    def test_the_wakeup_goes_out_after_the_commit_in_a_transaction_of_its_own(
        self, heard: Callable[[], list[str]], django_assert_num_queries: Any
    ) -> None:
        with transaction.atomic():
            with django_assert_num_queries(1) as captured:
                add.delay(1)
            assert "pg_notify" not in captured.captured_queries[0]["sql"]
            assert heard() == []
        assert heard() == ["ready:default"]

    def test_without_a_transaction_the_wakeup_rides_along(
        self, heard: Callable[[], list[str]], django_assert_num_queries: Any
    ) -> None:
        with django_assert_num_queries(1):
            add.delay(1)
        assert heard() == ["ready:default"]

    def test_while_another_transaction_of_ours_notifies_the_wakeup_follows_by_itself(
        self, heard: Callable[[], list[str]], django_assert_num_queries: Any
    ) -> None:
        other = connection.copy()
        try:
            with other.cursor() as cursor:
                cursor.execute("BEGIN")
                cursor.execute("SELECT pg_advisory_xact_lock(hashtext('django_dispatch'), hashtext(current_schema()))")
            with django_assert_num_queries(2) as captured:
                add.delay(1)
            assert "pg_notify" in captured.captured_queries[1]["sql"]
            assert heard() == ["ready:default"]
        finally:
            other.close()

    def test_a_full_notification_queue_does_not_refuse_the_run(self, heard: Callable[[], list[str]]) -> None:
        refuse = "BEGIN RAISE 'too many notifications in the NOTIFY queue' USING ERRCODE = '54000'; END"
        with connection.cursor() as cursor:
            cursor.execute(
                f"CREATE FUNCTION public.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $${refuse}$$"
            )
            cursor.execute("SET search_path = public, pg_catalog")
            try:
                run = add.delay(1)
            finally:
                cursor.execute("RESET search_path")
                cursor.execute("DROP FUNCTION public.pg_notify(text, text)")
        assert Run.objects.get(pk=run.pk).status == "READY"
        assert heard() == []

    def test_a_transaction_managed_by_hand_can_enqueue(self, heard: Callable[[], list[str]]) -> None:
        transaction.set_autocommit(False)
        try:
            add.delay(1)
            transaction.commit()
        finally:
            transaction.set_autocommit(True)
        assert Run.objects.count() == 1
        assert heard() == []

    def test_a_wakeup_that_cannot_be_sent_is_logged_and_stays_away_from_the_caller(
        self, heard: Callable[[], list[str]], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sending, "CHANNEL", "c" * 100)  # longer than PostgreSQL allows
        with caplog.at_level(logging.WARNING, "django_dispatch"), transaction.atomic():
            run = add.delay(1)
        assert Run.objects.filter(pk=run.pk).exists()
        assert "ready:default could not be sent" in caplog.text

    @override_settings(DISPATCH={"WAKEUPS": []})
    def test_with_wakeups_off_nothing_is_sent(
        self, heard: Callable[[], list[str]], django_assert_num_queries: Any
    ) -> None:
        with django_assert_num_queries(1):
            add.delay(1)
        assert heard() == []

    def test_a_run_that_is_due_later_is_announced_as_such(self, heard: Callable[[], list[str]]) -> None:
        add.apply_async((1,), countdown=SOON)
        add.delay_many([(1,), (2,)], countdown=SOON)
        assert heard() == ["scheduled:default"] * 2

    def test_one_delay_many_is_one_wakeup_a_queue(self, heard: Callable[[], list[str]]) -> None:
        ship.delay_many([(n,) for n in range(1, 9)])
        assert heard() == ["ready:shop-1", "ready:shop-0"]

    def test_a_flood_of_wakeups_is_thinned_for_its_queue_alone(
        self, heard: Callable[[], list[str]], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sending, "PER_SECOND", 0.0)
        with transaction.atomic():
            for n in range(sending.BURST + 5):
                add.delay(n)
            send.delay("ada")
        assert heard() == ["ready:default"] * sending.BURST + ["ready:mail"]

    def test_settings_name_the_database(self, db: None) -> None:
        with override_settings(DISPATCH={"DATABASE": "elsewhere"}):
            assert current().database == "elsewhere"
            with pytest.raises(ConnectionDoesNotExist, match="elsewhere"):
                add.delay(1)


class TestApplyAsync:
    def test_options_of_the_call_win_over_those_of_the_task(self, db: None) -> None:
        run = send.apply_async(("ada",), queue="slow", priority=-5, timeout=timedelta(minutes=2), max_attempts=9)
        row = Run.objects.get(pk=run.pk)
        assert (row.queue, row.priority, row.timeout, row.max_attempts) == ("slow", -5, timedelta(minutes=2), 9)

    def test_a_priority_of_zero_wins_too(self, db: None) -> None:
        assert send.apply_async(["ada"], priority=0).priority == 0

    @pytest.mark.postgres
    @pytest.mark.parametrize("countdown", [3600, 3600.0, SOON])
    def test_a_countdown_runs_from_now_by_the_clock_of_the_database(
        self, transactional_db: None, countdown: Any
    ) -> None:
        with transaction.atomic():
            database_now()  # the transaction has begun: its now() stands still from here
            before = database_now()
            run = add.apply_async((1,), countdown=countdown)
            after = database_now()
        assert run.status == "SCHEDULED"
        assert run.run_after is not None
        assert before + SOON < run.run_after < after + SOON

    @pytest.mark.parametrize("option", ["eta", "run_after"])
    def test_a_time_to_come_schedules_the_run(self, db: None, option: str) -> None:
        moment = timezone.now() + SOON
        options: Any = {option: moment}
        run = add.apply_async((1,), **options)
        assert (run.status, run.run_after) == ("SCHEDULED", moment)

    @pytest.mark.parametrize(
        "options", [{"countdown": 0}, {"countdown": timedelta(0)}, {"eta": datetime(2001, 1, 1, tzinfo=UTC)}]
    )
    def test_a_time_that_has_come_means_now(self, db: None, options: Any) -> None:
        run = add.apply_async((1,), **options)
        assert (run.status, run.run_after) == ("READY", None)
        assert attributes(run) == attributes(Run.objects.get(pk=run.pk))

    def test_a_naive_time_is_in_the_current_time_zone(self, db: None) -> None:
        with timezone.override("America/New_York"):
            run = add.apply_async((1,), eta=datetime(2060, 1, 1, 12))
        assert run.run_after == datetime(2060, 1, 1, 12, tzinfo=ZoneInfo("America/New_York"))

    @pytest.mark.parametrize("expires", [3600, SOON])
    def test_expiry_counts_from_the_enqueue_by_the_clock_of_the_database(
        self, transactional_db: None, expires: Any
    ) -> None:
        before = database_now()
        runs = [add.apply_async((1,), expires=expires), *add.delay_many([(1,), (2,)], expires=expires), errand.delay()]
        after = database_now()
        for run in runs:
            assert (run.status, run.run_after) == ("READY", None)
            assert run.expires_at is not None
            assert before + SOON < run.expires_at < after + SOON
            assert attributes(run) == attributes(Run.objects.get(pk=run.pk))

    def test_expiry_may_be_a_time_and_wins_over_that_of_the_task(self, db: None) -> None:
        moment = timezone.now() + 2 * SOON
        for run in (add.apply_async((1,), expires=moment), errand.apply_async(expires=moment, countdown=5)):
            assert (run.expires_at, attributes(run)) == (moment, attributes(Run.objects.get(pk=run.pk)))
        assert add.delay(1).expires_at is None

    @pytest.mark.parametrize(
        ("options", "reason"),
        [
            ({"countdown": 1, "eta": datetime(2060, 1, 1, tzinfo=UTC)}, "same thing"),
            ({"eta": datetime(2060, 1, 1, tzinfo=UTC), "run_after": datetime(2060, 1, 1, tzinfo=UTC)}, "same thing"),
            ({"countdown": -1}, "countdown"),
            ({"countdown": timedelta(seconds=-1)}, "countdown"),
            ({"countdown": float("inf")}, "countdown"),
            ({"countdown": "5"}, "countdown"),
            ({"countdown": True}, "countdown"),
            ({"eta": SOON}, "datetime"),
            ({"run_after": "2060-01-01"}, "datetime"),
            ({"timeout": 0}, "timeout"),
            ({"queue": ""}, "queue"),
            ({"queue": "a\0"}, "queue"),
            ({"priority": 101}, "priority"),
            ({"max_attempts": 0}, "max_attempts"),
            ({"expires": 0}, "expires"),
            ({"expires": -1}, "expires"),
            ({"expires": True}, "expires"),
            ({"expires": float("nan")}, "expires"),
            ({"expires": "tomorrow"}, "expires"),
        ],
    )
    def test_options_out_of_range_are_refused(self, db: None, options: Any, reason: str) -> None:
        with pytest.raises(InvalidOption) as caught:
            add.apply_async((1,), **options)
        assert reason in str(caught.value)
        with pytest.raises(InvalidOption):
            add.delay_many([(1,)], **options)
        assert not Run.objects.exists()


@pytest.mark.postgres
@pytest.mark.parametrize("moment", [datetime(2060, 1, 1, 12), datetime(2060, 1, 1, 11, tzinfo=UTC)])
def test_without_time_zone_support_times_are_naive_in_the_zone_of_the_site(db: None, moment: datetime) -> None:
    # A zone that a middleware activated means nothing then.
    with override_settings(USE_TZ=False, TIME_ZONE="Europe/Berlin"), timezone.override("Asia/Tokyo"):
        for run in (add.apply_async((1,), eta=moment), add.delay_many([(1,)], eta=moment)[0]):
            assert run.run_after == datetime(2060, 1, 1, 12)
            assert attributes(run) == attributes(Run.objects.get(pk=run.pk))


class TestDelayMany:
    def test_ids_rise_in_the_order_of_the_calls(self, transactional_db: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(postgres_enqueue, "CHUNK_RUNS", 7)
        runs = add.delay_many((n,) for n in range(50))
        assert [run.args for run in runs] == [[n] for n in range(50)]
        assert [run.pk for run in runs] == sorted(run.pk for run in runs)
        rows = list(Run.objects.order_by("id"))
        assert [attributes(row) for row in rows] == [attributes(run) for run in runs]

    @pytest.mark.postgres
    def test_a_chunk_is_one_statement_and_more_of_them_are_one_transaction(
        self, db: None, monkeypatch: pytest.MonkeyPatch, django_assert_num_queries: Any
    ) -> None:
        with django_assert_num_queries(1):
            add.delay_many([(n,) for n in range(1000)])
        monkeypatch.setattr(postgres_enqueue, "CHUNK_CHARACTERS", 1000)
        with django_assert_num_queries(3 + 2):  # and a savepoint
            add.delay_many([Call((n,), {"pad": "x" * 900}) for n in range(3)])

    def test_calls_may_have_keyword_arguments(self, db: None) -> None:
        first, second = add.delay_many([Call((1,), {"b": 2}), Call(kwargs={"a": 3})])
        assert (first.args, first.kwargs, second.args, second.kwargs) == ([1], {"b": 2}, [], {"a": 3})

    def test_options_hold_for_every_run(self, db: None) -> None:
        runs = send.delay_many([("a",), ("b",)], queue="bulk", priority=-1, timeout=3, max_attempts=2, countdown=SOON)
        for run in Run.objects.all():
            assert (run.queue, run.priority, run.max_attempts, run.on_lost) == ("bulk", -1, 2, "fail")
            assert (run.timeout, run.status) == (timedelta(seconds=3), "SCHEDULED")
        assert runs[0].run_after == runs[1].run_after

    def test_an_invalid_call_refuses_all_before_anything_is_written(
        self, db: None, django_assert_num_queries: Any
    ) -> None:
        calls = [(n,) for n in range(15_000)] + [({1},)]
        with django_assert_num_queries(0), pytest.raises(InvalidArguments, match=r"Call 15000 .*argument 'a'"):
            add.delay_many(calls)

    def test_twenty_thousand_are_part_of_the_callers_transaction_in_order_and_wake_once(
        self, heard: Callable[[], list[str]]
    ) -> None:
        calls = [(n,) for n in range(20_000)]
        with pytest.raises(ZeroDivisionError), transaction.atomic():
            add.delay_many(calls)
            raise ZeroDivisionError
        assert not Run.objects.exists()
        with transaction.atomic():
            runs = add.delay_many(calls)
            assert heard() == []
        assert heard() == ["ready:default"]
        assert list(Run.objects.order_by("id").values_list("id", "args")) == [(run.pk, run.args) for run in runs]
        assert [run.args for run in runs] == [[n] for n in range(20_000)]

    def test_what_the_database_refuses_late_takes_twenty_thousand_with_it(self, transactional_db: None) -> None:
        news = [NewRun(task="t", priority=101 if n == 15_000 else 0) for n in range(20_000)]
        with pytest.raises(IntegrityError, match="dispatch_run_priority"):
            callers("default").enqueue_many("default", news)
        assert not Run.objects.exists()

    @pytest.mark.parametrize("options", [{}, {"queue": "a\tb\\.\n", "priority": -3, "timeout": 1.5, "max_attempts": 2}])
    def test_a_long_bulk_keeps_every_text_and_option(self, transactional_db: None, options: Any) -> None:
        texts = ["\t", "\n", "\r\n", "\\", "\\.", "\\N", "\\t", '"', "\x01", "é ☃ 𝄞", "\u2028", "", "a\\\tb", "%s"]
        calls = [Call((text,), {"b": {text: n}}) for n, text in enumerate(texts * 100)]
        runs = add.delay_many(calls, **options)
        assert [run.pk for run in runs] == sorted(run.pk for run in runs)
        assert [attributes(row) for row in Run.objects.order_by("id")] == [attributes(run) for run in runs]
        assert [(run.args, run.kwargs) for run in runs] == [([call.args[0]], call.kwargs) for call in calls]

    def test_a_long_bulk_waits_at_the_limit_of_its_queue(self, transactional_db: None) -> None:
        with override_settings(DISPATCH={"QUEUE_LIMITS": {"bulk": 3}}):
            runs = add.delay_many([(n,) for n in range(1500)], queue="bulk")
        assert [attributes(row) for row in Run.objects.order_by("id")] == [attributes(run) for run in runs]
        assert {(run.status, run.blocked_by) for run in runs} == {("BLOCKED", "queue:bulk")}

    def test_what_the_database_refuses_late_takes_the_long_bulk_with_it(self, transactional_db: None) -> None:
        news = Alike(NewRun("t"), [("[" if n == 1_500 else "[]", "{}") for n in range(2_000)])
        with pytest.raises(DatabaseError, match=r"(?i)json"):
            callers("default").enqueue_many("default", news)
        assert not Run.objects.exists()

    @pytest.mark.parametrize("call", ["ab", [1], 1, {"a": 1}])
    def test_a_call_of_another_type_is_refused(self, db: None, call: Any) -> None:
        with pytest.raises(InvalidArguments, match="Call 1 of delay_many: a call must be a tuple or a Call"):
            add.delay_many([(1,), call])

    def test_a_queue_that_cannot_be_is_refused_with_the_index(self, db: None) -> None:
        with pytest.raises(InvalidOption, match="Call 1 of delay_many"):
            ship.delay_many([(1,), (0,)])

    def test_a_failing_chunk_takes_the_others_with_it(
        self, transactional_db: None, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(postgres_enqueue, "CHUNK_RUNS", 2)
        news = [NewRun(task="t", priority=priority) for priority in (0, 0, 0, 101)]
        with pytest.raises(IntegrityError, match="dispatch_run_priority"):
            callers("default").enqueue_many("default", news)
        assert not Run.objects.exists()

    def test_no_call_is_no_query(self, db: None, django_assert_num_queries: Any) -> None:
        with django_assert_num_queries(0):
            assert list(add.delay_many([])) == []


def test_async_twins_do_the_same(transactional_db: None) -> None:
    async def enqueue() -> list[Run]:
        return [
            await add.adelay(1, b=2),
            await add.aapply_async((3,), {"b": 4}, priority=5),
            *await add.adelay_many([(6,), (7,)], queue="bulk"),
        ]

    runs = async_to_sync(enqueue)()
    assert [(run.args, run.kwargs, run.priority, run.queue) for run in Run.objects.order_by("id")] == [
        ([1], {"b": 2}, 0, "default"),
        ([3], {"b": 4}, 5, "default"),
        ([6], {}, 0, "bulk"),
        ([7], {}, 0, "bulk"),
    ]
    assert [run.pk for run in runs] == sorted(run.pk for run in runs)


class TestWakeup:
    @pytest.mark.parametrize("wakeup", [Wakeup("ready", "a:b"), Wakeup("cancel", "1-2"), Wakeup("test", "x")])
    def test_a_payload_is_read_back(self, wakeup: Wakeup) -> None:
        assert Wakeup.parse(wakeup.encode()) == wakeup

    def test_the_payload_is_the_one_that_the_trigger_of_the_table_sends(self, heard: Callable[[], list[str]]) -> None:
        with connection.cursor() as cursor:
            cursor.execute("INSERT INTO django_dispatch_run (task) VALUES ('t')")
        assert [Wakeup.parse(payload) for payload in heard()] == [Wakeup("ready", "default")]

    @pytest.mark.parametrize("payload", ["", "ready", "ready:", ":", "READY:q", "other:q", json.dumps({"ready": 1})])
    def test_garbage_is_no_wakeup(self, payload: str) -> None:
        assert Wakeup.parse(payload) is None


class TestTokenBucket:
    def test_a_burst_passes_and_then_the_rate_holds(self) -> None:
        bucket = sending.TokenBucket(burst=3, per_second=10, now=100.0)
        assert [bucket.take(100.0) for _ in range(4)] == [True, True, True, False]
        assert [bucket.take(100.05), bucket.take(100.11), bucket.take(100.12)] == [False, True, False]

    def test_a_rest_fills_it_no_further_than_the_burst(self) -> None:
        bucket = sending.TokenBucket(burst=2, per_second=10, now=0.0)
        assert [bucket.take(1000.0) for _ in range(3)] == [True, True, False]

    def test_a_clock_that_steps_back_takes_no_tokens_away(self) -> None:
        bucket = sending.TokenBucket(burst=2, per_second=1, now=10.0)
        assert [bucket.take(5.0), bucket.take(5.0), bucket.take(10.5), bucket.take(11.0)] == [True, True, False, True]

    def test_the_buckets_are_bounded(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(sending, "_buckets", {})
        monkeypatch.setattr(sending, "MAX_BUCKETS", 3)
        assert all(sending._has_token(f"queue-{n}") for n in range(10))
        assert len(sending._buckets) <= 3
