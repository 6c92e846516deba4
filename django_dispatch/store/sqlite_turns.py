"""Turns on SQLite: the places that runs of fair keys get in the line in which they wait, at a limit or in their queue.

The rule is that of ``django_dispatch_turn()`` in the migrations. There a trigger applies it to whatever is inserted,
here the store to its own runs; within a transaction that holds the lock, nobody else comes into the line meanwhile.
"""

from collections.abc import Sequence

from .sqlite_session import Transaction, list_of

# The order in which the READY runs of a queue are claimed, and those at a limit admitted, as the indexes have it.
PLACE = "coalesce(turn, id * 2)"
IN_LINE = f"ORDER BY priority DESC, {PLACE}"
# They run one at a time, by their ids: the first that waits passes its key, or nobody does.
IN_ORDER = ("serial", "queue_one")

_IN_THAT_LINE = """coalesce(blocked_by, queue) = %(line)s AND priority = %(level)s
  AND status IN ('READY', 'BLOCKED') AND turn IS NOT NULL"""
_LAST_OF_KEY = f"""
SELECT turn FROM django_dispatch_run WHERE {_IN_THAT_LINE} AND fair_key = %(key)s ORDER BY turn DESC LIMIT 1
"""
_NEXT = f"SELECT turn FROM django_dispatch_run WHERE {_IN_THAT_LINE} ORDER BY turn LIMIT 1"
_LEAVE = """
UPDATE django_dispatch_run SET turn = NULL
WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND turn IS NOT NULL
"""
_COMING = """
SELECT id, coalesce(blocked_by, queue), priority, fair_key, concurrency_key IS NOT NULL AND places > 0,
  coalesce(blocked_by = concurrency_key, 0) AND on_duplicate IN (SELECT value FROM json_each(%(in_order)s))
FROM django_dispatch_run
WHERE id IN (SELECT value FROM json_each(%(ids)s)) AND fair_key IS NOT NULL AND status IN ('READY', 'BLOCKED')
"""


def next_turn(tx: Transaction, line: str, level: int, key: str | None, run_id: int) -> int:
    """Return the turn of a run that comes into a line; without its key, as if no other of its key waited."""
    here = {"line": line, "level": level}
    if key is not None:
        for (last,) in tx.rows(_LAST_OF_KEY, key=key, **here):
            return int(last) + 2
    for (first,) in tx.rows(_NEXT, **here):
        return int(first + 1 + first % 2)
    return run_id * 2


def line_up(tx: Transaction, run_ids: Sequence[int], *, are_back: bool = False) -> dict[int, int]:
    """Give these runs turns where they wait now, one after the other, if they have a fair key; return the turns.

    Where order counts, ids are the order. Who holds a place, or is back after a start, is not to wait for long.
    """
    if not run_ids:
        return {}
    ids = list_of(run_ids)
    tx.change(_LEAVE, ids=ids)
    coming = {row[0]: row[1:] for row in tx.rows(_COMING, ids=ids, in_order=list_of(IN_ORDER))}
    turns = {}
    for run_id in run_ids:
        line, level, key, has_place, is_in_order = coming.get(run_id, (None, 0, None, False, True))
        if not is_in_order:
            turns[run_id] = next_turn(tx, line, level, None if has_place or are_back else key, run_id)
            tx.change("UPDATE django_dispatch_run SET turn = %(turn)s WHERE id = %(id)s", id=run_id, turn=turns[run_id])
    return turns
