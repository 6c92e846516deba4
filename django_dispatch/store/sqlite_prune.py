"""Deleting old runs on SQLite, and counting them; for dispatchers, and for whoever prunes by hand."""

from collections.abc import Iterator
from typing import Any

from .prunable import Prunable
from .sqlite_claims import RUN
from .sqlite_session import Session, Transaction, callers_transaction, seconds_ago

# What is to stay unique for longer than it is kept is kept for so long.
_IS_FORGETTABLE = "(unique_key IS NULL OR unique_until IS NULL OR unique_until <= %(now)s)"
_OF_TASK = "(%(task)s IS NULL OR task = %(task)s)"
_OLD = f"finished_at < %(before)s AND status = %(status)s AND {_OF_TASK}"
_KEPT_FOR = "json_extract(retention, '$.' || status)"
_GOES_AT = f"julianday(finished_at) + {_KEPT_FOR} / 86400.0"
# A retention that is no number is: for ever.
_OLD_OWN = f"""finished_at IS NOT NULL AND retention IS NOT NULL AND typeof({_KEPT_FOR}) IN ('integer', 'real')
    AND {_GOES_AT} < julianday(%(now)s)
    AND (%(status)s IS NULL OR status = %(status)s) AND {_OF_TASK} AND {_IS_FORGETTABLE}"""

# Which runs each kind means, those first that go first.
_WHICH = {
    "default": f"{_OLD} AND retention IS NULL AND {_IS_FORGETTABLE} ORDER BY finished_at",
    "own": f"{_OLD_OWN} ORDER BY {_GOES_AT}",
    "regardless": f"{_OLD} AND retention IS NOT NULL ORDER BY finished_at",
}


def prune_once(session: Session, prunable: Prunable, *, limit: int) -> int:
    """See Store.prune() and Store.prune_own()."""
    if not session.rows(f"SELECT 1 FROM {RUN} WHERE {_WHICH[prunable.kind]} LIMIT 1", **_params(prunable)):
        return 0
    with session.transaction() as tx:
        return _delete(tx, prunable, limit)


def count_prunable(using: str, prunable: Prunable) -> int:
    """Return how many there are."""
    with callers_transaction(using) as tx:
        ((number,),) = tx.rows(f"SELECT count(*) FROM {RUN} WHERE {_WHICH[prunable.kind]}", **_params(prunable))
        return int(number)


def prune(using: str, prunable: Prunable, *, limit: int) -> Iterator[int]:
    """Delete them in batches, and yield how many went with each."""
    while True:
        with callers_transaction(using) as tx:
            deleted = _delete(tx, prunable, limit)
        yield deleted
        if deleted < limit:
            return


def _delete(tx: Transaction, prunable: Prunable, limit: int) -> int:
    which = f"SELECT id FROM {RUN} WHERE {_WHICH[prunable.kind]} LIMIT %(limit)s"
    return tx.change(f"DELETE FROM {RUN} WHERE id IN ({which})", limit=limit, **_params(prunable))


def _params(prunable: Prunable) -> dict[str, Any]:
    before = None if prunable.age is None else seconds_ago(prunable.age)
    return {"status": prunable.status, "task": prunable.task, "before": before}
