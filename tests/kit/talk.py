"""What bodies say to the log."""

import logging
import warnings

from django_dispatch import TaskContext


def talk(ctx: TaskContext, text: str) -> None:
    """Say it through loggers of the project's and of ours, and as a warning of Python."""
    logging.getLogger("shop").warning("%s by a logger", text, extra={"order": 5})
    ctx.log.info("%s by the context", text)
    ctx.log.debug("%s in detail", text)
    warnings.warn(f"{text} as a warning", stacklevel=2)
