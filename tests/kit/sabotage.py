"""Ways in which a zygote, its executors or a dispatcher are broken from their start on, while a file says so.

The file ``sabotage`` in the folder of the kit holds ``<where> <how>``: where is ``zygote`` or ``executor``, how one of
``raise``, ``hang``, ``wait`` (until the file is gone), ``segfault``, ``exit`` and ``break_a_task_module``. Or it is
``dispatcher hang_claims``: its claims loop waits for ever; or ``dispatcher look_once``: it never looks a second time at
keys at which it has just admitted runs. Without the file, all is well.
The file ``sabotaged`` beside it gets a line for each time, with the moment.
"""

import asyncio
import ctypes
import os
import sys
import threading
import time
from pathlib import Path

FILE = "sabotage"


def commit() -> None:
    """Do as the file says. Called once, when apps are ready."""
    if "KIT_DIR" not in os.environ:
        return
    if not _is_zygote():
        return _break("dispatcher")
    os.register_at_fork(after_in_child=lambda: _break("executor"))
    _break("zygote")


async def _hang(*_: object) -> bool:
    await asyncio.Event().wait()
    return False


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
        case "hang_claims":
            from django_dispatch.dispatcher.claims import Claims  # not in every zygote

            Claims._step = _hang  # type: ignore[method-assign, assignment]
        case "look_once":
            from django_dispatch.dispatcher import admission

            admission.SECOND_LOOK_SECONDS = 3600.0
        case "exit":
            os._exit(3)
