"""Enqueue what must not be there twice; in the caller's process, connection and transaction.

The database decides, by its unique indexes: a run goes in, or another one has its key. That one is looked at next, and
may end, give way or vanish meanwhile: then the run is tried again. A run of another transaction that has not committed
is waited for. Under REPEATABLE READ and above PostgreSQL refuses what it would have to decide by a row that the
transaction cannot see: a serialization failure, as for any other unique index.
"""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING

from django.db import OperationalError, connections, transaction

from .postgres_enqueue import ENQUEUE_MANY, chunked
from .values import NewRun, Recorded

if TYPE_CHECKING:
    from django_dispatch.models import Run

MOST_TRIES = 20

# A conflicting run that is not committed yet is waited for.
ENQUEUE_UNIQUE = ENQUEUE_MANY.replace("FROM new ORDER BY place", "FROM new ORDER BY place ON CONFLICT DO NOTHING")

# Which runs do not need their keys any more: they ended, and their time is over, or they give way.
GIVES_WAY = """unique_key IS NOT NULL
    AND (finished_at IS NOT NULL AND (unique_until IS NULL OR unique_until <= clock_timestamp())
         OR on_duplicate = 'replace' AND status IN ('SCHEDULED', 'READY', 'BLOCKED'))"""
GIVING_WAY = """
UPDATE django_dispatch_run AS r
SET unique_key = NULL, status = CASE WHEN finished_at IS NULL THEN 'CANCELLED' ELSE status END, run_after = NULL,
    finished_at = COALESCE(finished_at, clock_timestamp()),
    errors = CASE WHEN finished_at IS NULL THEN errors || jsonb_build_object('attempt', attempt,
      'at', clock_timestamp(), 'kind', 'cancelled', 'message', 'A newer run of its key took its place.')
      ELSE errors END
FROM target WHERE r.id = target.id
RETURNING r.id
"""
GIVE_WAY = f"""
WITH target AS MATERIALIZED (
  SELECT id FROM django_dispatch_run WHERE unique_key = ANY(%(keys)s::text[]) AND {GIVES_WAY}
  ORDER BY id FOR NO KEY UPDATE
){GIVING_WAY}"""


def enqueue_unique(using: str, news: Sequence[NewRun]) -> list[Recorded]:
    """Insert each run, or find the one that is there in its place; all or none. The answers are in the order given.

    They go in, and get their ids, in the order of their keys, so that no two such calls wait for each other.
    """
    answers: dict[int, Recorded] = {}
    waiting = sorted(range(len(news)), key=lambda place: _keys(news[place]))
    with nullcontext() if len(news) == 1 and news[0].on_duplicate != "replace" else transaction.atomic(using=using):
        for _ in range(MOST_TRIES):
            _insert(using, news, waiting, answers)
            waiting = [place for place in waiting if place not in answers]
            if not waiting:
                return [answers[place] for place in range(len(news))]
            _find(using, news, waiting, answers)
            waiting = [place for place in waiting if place not in answers]
    keys = ", ".join(" ".join(_keys(news[place])).strip() for place in waiting[:3])
    raise OperationalError(f"Runs of the same key come and go too fast, so this one was not enqueued: {keys}.")


def _insert(using: str, news: Sequence[NewRun], places: Sequence[int], answers: dict[int, Recorded]) -> None:
    """Note the answers for those that went in."""
    inserted: dict[tuple[str, str], list[Recorded]] = {}
    with connections[using].cursor() as cursor:
        for runs in chunked(news[place] for place in places):
            cursor.execute(ENQUEUE_UNIQUE, [f"[{runs}]"])
            for now, *columns in cursor.fetchall():
                for run_id, status, run_after, turn, key, uuid in zip(*columns, strict=True):
                    recorded = Recorded(run_id, now, status, run_after, turn)
                    inserted.setdefault((key or "", uuid or ""), []).append(recorded)
    for place in places:
        if found := inserted.get(_keys(news[place])):
            answers[place] = found.pop(0)


def _find(using: str, news: Sequence[NewRun], places: Sequence[int], answers: dict[int, Recorded]) -> None:
    """Note the answers for those in whose place another run is, once those have gone that can give way."""
    waiting = [news[place] for place in places]
    with connections[using].cursor() as cursor:
        cursor.execute(GIVE_WAY, {"keys": [new.unique_key for new in waiting if new.unique_key is not None]})
    holders = list(_holders(using, waiting))
    by_key = {run.unique_key: run for run in holders}
    by_uuid = {run.uuid: run for run in holders}
    for place in places:
        new = news[place]
        run = by_uuid.get(new.uuid) if new.uuid is not None else None
        if run is None and new.unique_key is not None and new.on_duplicate != "replace":
            run = by_key.get(new.unique_key)
        if run is not None:
            run.is_duplicate = True
            answers[place] = Recorded(run.pk, run.enqueued_at, run.status, run.run_after, run.turn, run)


def _holders(using: str, news: Sequence[NewRun]) -> "Iterator[Run]":
    from django_dispatch.models import Run

    runs = Run.objects.using(using)
    if keys := {new.unique_key for new in news if new.unique_key is not None}:
        yield from runs.filter(unique_key__in=keys)
    if uuids := {new.uuid for new in news if new.uuid is not None}:
        yield from runs.filter(uuid__in=uuids)


def _keys(new: NewRun) -> tuple[str, str]:
    return new.unique_key or "", new.uuid or ""
