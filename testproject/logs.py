"""One log line: when, how bad, who, what, and in which run if in any."""

import logging


class RunFormatter(logging.Formatter):
    """Names the run at the end of a line. Needs RunContextFilter on the handler."""

    def __init__(self) -> None:
        super().__init__("{asctime} {levelname:7} {name}: {message}", style="{")

    def formatMessage(self, record: logging.LogRecord) -> str:
        """Return the line without its traceback."""
        line = super().formatMessage(record)
        run_id = getattr(record, "run_id", None)
        return line if run_id is None else f"{line} [run {run_id}]"
