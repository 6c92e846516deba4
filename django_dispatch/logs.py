"""Log records of dispatchers and executors: what they say of a run, their form, and handlers where there are none."""

import contextlib
import json
import logging
import queue
import select
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import Any, TextIO

RUN_FIELDS = ("run_id", "task", "queue", "attempt")
FORMAT = "%(asctime)s %(levelname)-7s %(process)d %(name)s: %(message)s"
LONGEST_BACKLOG = 10_000  # records; what comes while so many wait is dropped, and counted
LAST_WORDS_SECONDS = 2.0
PATIENCE_SECONDS = 1.0  # of an executor, for a reader of what it logs
LEVELS = {0: logging.WARNING, 1: logging.INFO, 2: logging.INFO, 3: logging.DEBUG}


# Set around each body by its executor: the RUN_FIELDS of its run.
current_run: ContextVar[Mapping[str, object]] = ContextVar("django_dispatch_run")
_ours = logging.getLogger("django_dispatch")
_OUTSIDE: Mapping[str, object] = {}
# What a record has anyway, and what a formatter adds.
_STANDARD = {*vars(logging.makeLogRecord({})), "message", "asctime", "taskName"}


def run_fields(run_id: int, task: str, queue: str, attempt: int | None = None) -> dict[str, object]:
    """Return the fields of a record that concerns a run, for ``extra``."""
    fields: dict[str, object] = {"run_id": run_id, "task": task, "queue": queue}
    return fields if attempt is None else fields | {"attempt": attempt}


class RunContextFilter(logging.Filter):
    """Put ``run_id``, ``task``, ``queue``, ``attempt`` and ``node`` on every record, so that a format may name them.

    They are None outside a run, and where no dispatcher is at work.
    """

    def __init__(self, node: str | None = None) -> None:
        super().__init__()
        self._node = node

    def filter(self, record: logging.LogRecord) -> bool:
        here = current_run.get(_OUTSIDE)
        for name in RUN_FIELDS:
            if getattr(record, name, None) is None:
                setattr(record, name, here.get(name))
        if getattr(record, "node", None) is None:
            record.node = self._node
        return True


class JsonFormatter(logging.Formatter):
    """One JSON object a record, on one line: the time in UTC, the usual facts, and whatever came as ``extra``."""

    def format(self, record: logging.LogRecord) -> str:
        document: dict[str, Any] = {
            "timestamp": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
            "pid": record.process,
        }
        for name, value in vars(record).items():
            if name not in _STANDARD and name not in document and value is not None:
                document[name] = value
        if record.exc_info and not record.exc_text:
            record.exc_text = self.formatException(record.exc_info)
        if record.exc_text:
            document["exception"] = record.exc_text
        if record.stack_info:
            document["stack"] = self.formatStack(record.stack_info)
        try:
            return _json(document)
        except Exception:  # an ``extra`` may be anything; the line is worth more than its form
            return _json({name: value if _is_plain(value) else _text_of(value) for name, value in document.items()})


def configure(verbosity: int, *, log_format: str, node: str, may_wait: bool) -> None:
    """Give records a handler and a level, unless the project's LOGGING has done so; have all handlers see the run.

    As text, only the ``django_dispatch`` loggers get one. As JSON, the root logger does: no line is to be anything
    else, neither a body's nor a Python warning. ``may_wait`` False: a record for whom no reader makes room is dropped.
    """
    if not _ours.hasHandlers():
        handler: logging.Handler = logging.StreamHandler() if may_wait else _Impatient()
        if log_format == "json":
            handler.setFormatter(JsonFormatter())
            logging.getLogger().addHandler(handler)
            logging.captureWarnings(True)
        else:
            handler.setFormatter(logging.Formatter(FORMAT))
            _ours.addHandler(handler)
            _ours.propagate = False
    if _ours.level == logging.NOTSET:
        _ours.setLevel(LEVELS.get(verbosity, logging.INFO))
    for logger in _loggers_with_handlers():
        for handler in logger.handlers:
            handler.addFilter(RunContextFilter(node))


def set_level(level: int) -> None:
    """Set the level of the ``django_dispatch`` loggers of this process, if it is another one; 0: leave it."""
    if level and _ours.level != level:
        _ours.setLevel(level)


def _loggers_with_handlers() -> list[logging.Logger]:
    names = list(logging.root.manager.loggerDict)
    return [logger for logger in (logging.getLogger(), *map(logging.getLogger, names)) if logger.handlers]


@contextlib.contextmanager
def written_by_a_thread() -> Iterator["Writer"]:
    """Have every handler of this process called in a thread: whoever reads the log may stop reading."""
    writer = Writer()
    handlers = [(logger, logger.handlers) for logger in _loggers_with_handlers()]
    for logger, own in handlers:
        logger.handlers = [_Later(writer, own)]
    writer.start()
    try:
        yield writer
    finally:
        for logger, own in handlers:
            logger.handlers = own
        writer.finish()


class Writer:
    """The thread, and the records that wait for it."""

    def __init__(self) -> None:
        self._records: queue.Queue[tuple[Sequence[logging.Handler], logging.LogRecord] | None]
        self._records = queue.Queue(LONGEST_BACKLOG)
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._dropped = 0

    @property
    def is_stuck(self) -> bool:
        """Whether the last words could not be written: the interpreter's own end would wait for them for ever."""
        return self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def put(self, handlers: Sequence[logging.Handler], record: logging.LogRecord) -> None:
        """Have a record handled soon; never waits."""
        try:
            self._records.put_nowait((handlers, record))
        except queue.Full:
            self._dropped += 1

    def say(self, text: str) -> None:
        """Have a text written to standard error, as it is."""
        handler = logging.StreamHandler(sys.stderr)
        handler.terminator = ""
        self.put([handler], logging.LogRecord("django_dispatch", logging.INFO, "", 0, text, None, None))

    def finish(self) -> None:
        """Wait a moment until all is written."""
        with contextlib.suppress(queue.Full):
            self._records.put(None, timeout=LAST_WORDS_SECONDS)
        self._thread.join(LAST_WORDS_SECONDS)

    def _write(self) -> None:
        while (item := self._records.get()) is not None:
            handlers, record = item
            for handler in handlers:
                if record.levelno >= handler.level:
                    try:
                        handler.handle(record)
                    except Exception:  # of a handler or filter of the project's; others are written all the same
                        handler.handleError(record)
            if self._dropped and self._records.empty():
                dropped, self._dropped = self._dropped, 0
                logging.getLogger("django_dispatch").warning("%s log records were dropped: nobody read.", dropped)


class _Impatient(logging.StreamHandler[TextIO]):
    """Drops a record when its pipe is full and nobody reads: the first one after a while, the next ones at once."""

    _patience_seconds = PATIENCE_SECONDS

    def emit(self, record: logging.LogRecord) -> None:
        if self._has_room():
            super().emit(record)

    def _has_room(self) -> bool:
        poll = select.poll()
        try:
            poll.register(self.stream, select.POLLOUT)
        except (OSError, ValueError):  # it is no file of the system, or is closed
            return True
        has_room = bool(poll.poll(self._patience_seconds * 1000))
        self._patience_seconds = PATIENCE_SECONDS if has_room else 0.0
        return has_room


class _Later(logging.Handler):
    """In the place of a logger's handlers: what they do is done by the thread."""

    def __init__(self, writer: Writer, handlers: Sequence[logging.Handler]) -> None:
        super().__init__()
        self._writer = writer
        self._handlers = handlers

    def emit(self, record: logging.LogRecord) -> None:
        self._writer.put(self._handlers, record)


def _json(document: Mapping[str, Any]) -> str:
    # ASCII: whatever the encoding of the stream, and a lone surrogate too, can be written.
    return json.dumps(document, default=str, allow_nan=False)


def _is_plain(value: object) -> bool:
    return value is None or isinstance(value, str | int)


def _text_of(value: object) -> str:
    try:
        return repr(value)
    except BaseException as error:
        return f"(a {type(value).__name__} that cannot be shown: {type(error).__name__})"
