"""Who keeps its unique key, and until when: through retries and losses, and beyond the end if it is to be so."""

from datetime import timedelta
from typing import Any

import pytest
from django.db.models.functions import Now

from django_dispatch.models import Run
from django_dispatch.store.base import Store
from django_dispatch.store.values import Settlement

from .tables import LONG_AGO, acquire, add_run, add_running, claim, expire, finish, stored, success

STILL = {"unique_key": "k", "unique_until": Now() + timedelta(hours=1)}
NO_MORE = {"unique_key": "k", "unique_until": Now() - timedelta(hours=1)}


@pytest.mark.parametrize("status", ["READY", "SCHEDULED", "SUCCESSFUL", "FAILED"])
@pytest.mark.parametrize(("columns", "kept"), [(STILL, "k"), (NO_MORE, None), ({"unique_key": "k"}, None)])
def test_a_run_keeps_its_key_until_it_has_ended_and_its_time_is_over(
    store: Store, status: str, columns: dict[str, Any], kept: str | None
) -> None:
    lease = acquire(store)
    run = add_running(store, lease, **columns)
    finish(store, lease, success(run, status=status, delay_seconds=1.0 if status == "SCHEDULED" else None))
    assert stored(run.id).unique_key == ("k" if status in ("READY", "SCHEDULED") else kept)


def test_one_that_was_cancelled_does_not(store: Store) -> None:
    lease = acquire(store)
    run = add_running(store, lease, **STILL)
    finish(store, lease, Settlement(run.id, run.epoch, "CANCELLED"))
    assert stored(run.id).unique_key is None


@pytest.mark.parametrize(
    ("columns", "status", "kept"),
    [
        (STILL, "READY", "k"),
        (STILL | {"on_lost": "fail"}, "FAILED", "k"),
        (NO_MORE | {"on_lost": "fail"}, "FAILED", None),
        (STILL | {"cancel_requested_at": LONG_AGO}, "CANCELLED", None),
    ],
)
def test_the_same_holds_for_a_loss(store: Store, columns: dict[str, Any], status: str, kept: str | None) -> None:
    lease = acquire(store)
    run = add_running(store, lease, **columns)
    expire(lease, seconds=100)
    store.reclaim(grace_seconds=2, max_interruptions=5)
    assert (stored(run.id).status, stored(run.id).unique_key) == (status, kept)


@pytest.mark.parametrize(("word", "kept"), [("", "k"), ("discard", "k"), ("queue_one", None), ("replace", None)])
def test_the_key_of_one_of_which_one_may_wait_is_free_when_it_waits_no_more(
    store: Store, word: str, kept: str | None
) -> None:
    run_id = add_run(unique_key="k", on_duplicate=word)
    claim(store, acquire(store))
    assert stored(run_id).unique_key == kept


def test_what_is_to_be_unique_is_not_pruned(store: Store) -> None:
    still = add_run(status="SUCCESSFUL", **STILL)
    add_run(status="SUCCESSFUL", **NO_MORE | {"unique_key": "other"})
    add_run(status="SUCCESSFUL", unique_until=Now() + timedelta(hours=1))
    assert store.prune(status="SUCCESSFUL", age_seconds=60, limit=10) == 2
    assert list(Run.objects.values_list("pk", flat=True)) == [still]


def test_nor_where_it_says_itself_how_long_it_is_kept(store: Store) -> None:
    still = add_run(status="SUCCESSFUL", retention={"SUCCESSFUL": 0}, **STILL)
    add_run(status="SUCCESSFUL", retention={"SUCCESSFUL": 0}, **NO_MORE | {"unique_key": "other"})
    assert store.prune_own(limit=10) == 1
    assert list(Run.objects.values_list("pk", flat=True)) == [still]
