"""JSON texts that are made for jsonb columns: of what went wrong, and of what bodies return. Pure."""

import json
import re
from typing import Any

# A NUL escape that is one: an even number of backslashes before it.
_NUL = re.compile(r"(?<!\\)((?:\\\\)*)\\u0000")
_SURROGATE = re.compile("[\ud800-\udfff]")


def error_document(kind: str, message: str, **more: Any) -> str:
    """Return the JSON of one entry of ``Run.errors``; the database adds ``at``.

    ``kind`` is one of exception, retry, timeout, cancelled, shutdown, lost, result, unknown_task, expired and
    unreachable. Text that PostgreSQL cannot hold is shown escaped.
    """
    document = {"kind": kind, "message": message} | more
    return storable(json.dumps(document, ensure_ascii=False))


def storable(text: str) -> str:
    """Make a JSON text fit for jsonb: NUL and lone surrogates become visible escapes inside their strings."""
    if "\\u0000" in text:
        text = _NUL.sub(r"\1\\\\u0000", text)
    if not text.isascii():
        text = _SURROGATE.sub(lambda match: f"\\\\u{ord(match[0]):04x}", text)
    return text
