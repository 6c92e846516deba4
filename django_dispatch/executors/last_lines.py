"""The last lines that an executor logged, in memory that outlives it. Written in executors, read in the dispatcher.

Whatever kills an executor, they are there: for the record of the run that was lost with it.
"""

import logging
import struct
from collections import deque
from typing import Any

from ..logs import current_run

LARGEST_LINES = 4096  # bytes of each executor; a page that nobody writes to costs nothing
MOST_LINES = 20
LONGEST_LINE = 500  # characters
_SIZE = struct.Struct("=I")


def keep(memory: memoryview) -> None:
    """Have what this process logs from now on kept in ``memory``, by whatever logger and handler it goes elsewhere."""
    lines: deque[bytes] = deque(maxlen=MOST_LINES)
    make_record = logging.getLogRecordFactory()

    def make_and_keep(*args: Any, **kwargs: Any) -> logging.LogRecord:
        record = make_record(*args, **kwargs)
        lines.append(_line_of(record))
        _write(memory, lines)
        return record

    logging.setLogRecordFactory(make_and_keep)


def read(memory: memoryview) -> str:
    """Return the lines, the newest last. The writer may have been killed in the middle of one."""
    (size,) = _SIZE.unpack_from(memory)
    return bytes(memory[_SIZE.size : _SIZE.size + size]).decode(errors="replace")


def clear(memory: memoryview) -> None:
    """Forget what is there."""
    _SIZE.pack_into(memory, 0, 0)


def _write(memory: memoryview, lines: deque[bytes]) -> None:
    # Copied first, in one go: while join() makes a list of them another thread may get its turn, and log.
    text = b"\n".join(list(lines))[-(len(memory) - _SIZE.size) :]
    memory[_SIZE.size : _SIZE.size + len(text)] = text
    _SIZE.pack_into(memory, 0, len(text))


def _line_of(record: logging.LogRecord) -> bytes:
    try:
        run_id = current_run.get({}).get("run_id")
        where = "" if run_id is None else f"[run {run_id}] "
        error = record.exc_info[1] if record.exc_info else None
        why = "" if error is None else f" ({type(error).__name__}: {error})"
        line = f"{where}{record.levelname} {record.name}: {record.getMessage()}{why}"
    except Exception as problem:  # a format that does not fit, or what cannot be printed
        line = f"(a line of {record.name} that cannot be shown: {type(problem).__name__})"
    return line[:LONGEST_LINE].replace("\n", " ").encode(errors="replace")
