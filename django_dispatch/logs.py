"""Logging of a dispatcher and its executors where the project has not set it up itself."""

import logging

FORMAT = "%(asctime)s %(levelname)-7s %(process)d %(name)s: %(message)s"
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
