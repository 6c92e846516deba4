"""Ways in which a project's own start-up code breaks a zygote or its executors, while a file says so.

The file ``sabotage`` in the kit's folder holds ``<where> <how>``: where is ``zygote`` or ``executor``, how is one of
``raise``, ``hang``, ``wait`` (until the file is gone), ``segfault``, ``exit`` and ``break_a_task_module``. Without the
file, all is well.
The file ``sabotaged`` beside it gets a line for each time, with the moment.
"""

import ctypes
import os
import sys
import threading
import time
from pathlib import Path

FILE = "sabotage"


def commit() -> None:
    """Do as the file says. Called once, when apps are ready."""
    if "KIT_DIR" not in os.environ or not _is_zygote():
        return
    os.register_at_fork(after_in_child=lambda: _break("executor"))
    _break("zygote")


def _is_zygote() -> bool:
    return sys.orig_argv[1:3] == ["-m", "django_dispatch.executors.zygote"]


def _break(place: str) -> None:
    try:
        where, how = (Path(os.environ["KIT_DIR"]) / FILE).read_text().split()
    except FileNotFoundError:
        return
    if where != place:
        return
    with (Path(os.environ["KIT_DIR"]) / "sabotaged").open("a") as tally:
        tally.write(f"{time.monotonic()}\n")
    match how:
        case "raise":
            raise RuntimeError("the project does not start")
        case "break_a_task_module":
            sys.modules["tests.kit.ledger"] = None  # type: ignore[assignment]
        case "hang":
            threading.Event().wait()
        case "wait":
            while (Path(os.environ["KIT_DIR"]) / FILE).exists():
                time.sleep(0.01)
        case "segfault":
            ctypes.string_at(0)
        case "exit":
            os._exit(3)
