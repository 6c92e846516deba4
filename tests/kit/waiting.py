"""Wait for what must come, by polling; a test never just sleeps.

TEST_PATIENCE says how many times as long as on an idle machine; nothing is slower for it that does come.
"""

import os
import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")

POLL_SECONDS = 0.01
PATIENCE = float(os.environ.get("TEST_PATIENCE", "1"))


def wait_for(condition: Callable[[], T], seconds: float = 15, *, what: str | Callable[[], str] = "") -> T:
    """Return the first true value of ``condition()``; fail the test after ``seconds``, showing the last value."""
    __tracebackhide__ = True
    seconds *= PATIENCE
    deadline = time.monotonic() + seconds
    while not (value := condition()):
        if time.monotonic() > deadline:
            text = what() if callable(what) else what or "what was waited for"
            pytest.fail(f"Not within {seconds:g} s: {text}. Last value: {value!r}")
        time.sleep(POLL_SECONDS)
    return value
