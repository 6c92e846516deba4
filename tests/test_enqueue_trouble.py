"""Enqueuing what is large, and when the database or its notifications are in trouble; seen by the caller."""

import logging
from collections.abc import Iterator

import pytest
from django.db import OperationalError, connection, transaction

from django_dispatch.models import Run
from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.relay import Relay
from tests.kit.server import runs_on
from tests.wakeups import Ear

SIZES = {"9 kB": "x" * 9000, "1 MB": "x" * 1_000_000, "9 kB of emoji": "\N{GRINNING FACE}" * 2300}


@pytest.fixture
def ear(kit: Kit) -> Iterator[Ear]:
    ear = Ear()
    yield ear
    ear.close()


def test_the_size_of_arguments_is_no_matter_to_wakeups(kit: Kit, ear: Ear) -> None:
    """A notification takes 8,000 bytes at most; a wakeup names a queue and no more."""
    for value in SIZES.values():
        assert tasks.note.delay(value).args == [value]
        with transaction.atomic():
            tasks.note.delay(value)
        tasks.note.delay_many([(value,)] * 2)
    assert len(tasks.note.delay_many([(number,) for number in range(5000)])) == 5000
    assert Run.objects.count() == 4 * len(SIZES) + 5000
    longest_queue = "\N{GRINNING FACE}" * 100
    tasks.note.apply_async(queue=longest_queue)
    assert set(ear.heard()) == {"ready:default", f"ready:{longest_queue}"}


def test_without_a_database_the_caller_learns_of_it_and_nothing_is_half_done(kit: Kit, relay: Relay) -> None:
    with runs_on(relay.url):
        assert tasks.note.delay("before").pk
        relay.refuse()
        # A connection that broke while nobody looked, then no connection at all.
        for _ in range(2):
            with pytest.raises(OperationalError):
                tasks.note.delay("lost")
            with pytest.raises(OperationalError):
                tasks.note.delay_many([("lost",)] * 2500)
            connection.close()
        relay.forward()
        assert tasks.note.delay("after").pk
    assert sorted(run.args[0] for run in Run.objects.all()) == ["after", "before"]


def test_a_wakeup_that_cannot_be_sent_fails_no_enqueue_that_is_committed(
    kit: Kit, ear: Ear, caplog: pytest.LogCaptureFixture
) -> None:
    """It is logged, and the poll finds the run."""
    caplog.set_level(logging.WARNING, "django_dispatch.wakeups")
    refuse = "BEGIN RAISE 'no notifications today' USING ERRCODE = '53200'; END"
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE FUNCTION public.pg_notify(text, text) RETURNS void LANGUAGE plpgsql AS $${refuse}$$")
        cursor.execute("SET search_path = public, pg_catalog")
        try:
            with transaction.atomic():
                runs = [tasks.note.delay("in a transaction")]
            runs += tasks.note.delay_many([("many",)])
        finally:
            cursor.execute("RESET search_path")
            cursor.execute("DROP FUNCTION public.pg_notify(text, text)")
    assert Run.objects.filter(pk__in=[run.pk for run in runs]).count() == 2
    assert ear.heard() == []
    assert [record.getMessage() for record in caplog.records] == [
        "Wakeup ready:default could not be sent; it is found by polling"
    ] * 2
