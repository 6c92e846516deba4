"""Logging of a dispatcher and its executors where the project has not set it up itself."""

import contextlib
import logging
import queue
import threading
from collections.abc import Iterator, Sequence

FORMAT = "%(asctime)s %(levelname)-7s %(process)d %(name)s: %(message)s"
LONGEST_BACKLOG = 10_000  # records; what comes while so many wait is dropped, and counted
LAST_WORDS_SECONDS = 2.0
LEVELS = {0: logging.WARNING, 1: logging.INFO, 2: logging.INFO, 3: logging.DEBUG}


def configure(verbosity: int) -> None:
    """Give the ``django_dispatch`` loggers a handler and a level, unless the project's LOGGING has done so."""
    ours = logging.getLogger("django_dispatch")
    if not ours.hasHandlers():
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter(FORMAT))
        ours.addHandler(handler)
        ours.propagate = False
    if ours.level == logging.NOTSET:
        ours.setLevel(LEVELS.get(verbosity, logging.INFO))


@contextlib.contextmanager
def written_by_a_thread() -> Iterator["Writer"]:
    """Have every handler of this process called in a thread: whoever reads the log may stop reading."""
    writer = Writer()
    loggers = [logging.getLogger(), *map(logging.getLogger, logging.root.manager.loggerDict)]
    handlers = [(logger, logger.handlers) for logger in loggers if logger.handlers]
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
                    handler.handle(record)
            if self._dropped and self._records.empty():
                dropped, self._dropped = self._dropped, 0
                logging.getLogger("django_dispatch").warning("%s log records were dropped: nobody read.", dropped)


class _Later(logging.Handler):
    """In the place of a logger's handlers: what they do is done by the thread."""

    def __init__(self, writer: Writer, handlers: Sequence[logging.Handler]) -> None:
        super().__init__()
        self._writer = writer
        self._handlers = handlers

    def emit(self, record: logging.LogRecord) -> None:
        self._writer.put(self._handlers, record)
