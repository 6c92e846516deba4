"""Write a long bulk of runs that differ in their arguments alone: by COPY, in the transaction of the caller."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from django.db import connections

from .values import Alike, RecordedAlike

ROWS_A_WRITE = 1000
# One moment and ascending ids, of the database, which then need not be asked what it wrote. The moment as a text too:
# as it is read it may be naive, and ambiguous.
DRAW = """
SELECT now, now::text, ARRAY(SELECT nextval(sequence) FROM generate_series(1, %s))
FROM (SELECT clock_timestamp() AS now,
  pg_get_serial_sequence('django_dispatch_run', 'id')::regclass AS sequence OFFSET 0) once
"""


def copy_many(using: str, news: Alike, columns: Mapping[str, Any]) -> RecordedAlike:
    """Insert runs that are due and have no fair key, in one statement, so all or none.

    ``columns`` are those of each that are not as the database has them by default.
    """
    connection = connections[using]
    others = {name: value for name, value in columns.items() if name not in ("args", "kwargs")}
    with connection.cursor() as cursor:
        cursor.execute(DRAW, [len(news)])
        now, now_text, ids = cursor.fetchone()
        statement = f"COPY django_dispatch_run (id, args, kwargs, {', '.join(others)}, source, enqueued_at) FROM STDIN"
        end = "".join(f"\t{_field(name, value)}" for name, value in others.items()) + f"\tapp\t{now_text}\n"
        with connection.wrap_database_errors, cursor.copy(statement) as copy:
            for text in _lines(ids, news.arguments, end):
                copy.write(text)
    return RecordedAlike(ids, now, columns.get("status", "READY"))


def _lines(ids: Sequence[int], arguments: Sequence[tuple[str, str]], end: str) -> Iterator[str]:
    for first in range(0, len(ids), ROWS_A_WRITE):
        part = slice(first, first + ROWS_A_WRITE)
        rows = zip(ids[part], arguments[part], strict=True)
        yield "".join([f"{run_id}\t{_json(args)}\t{_json(kwargs)}{end}" for run_id, (args, kwargs) in rows])


def _json(text: str) -> str:
    """Return a JSON text as COPY reads it. Whatever else that would take for its own, JSON writes as an escape."""
    return text.replace("\\", "\\\\")


def _field(name: str, value: Any) -> str:
    if value is None:
        return "\\N"
    return f"{value:.6f} seconds" if name == "timeout" else _escaped(str(value))


def _escaped(text: str) -> str:
    """Return any text as COPY reads it."""
    return text.replace("\\", "\\\\").replace("\t", "\\t").replace("\n", "\\n").replace("\r", "\\r")
