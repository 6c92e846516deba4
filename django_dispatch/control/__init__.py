"""Ask dispatchers what they do, and tell them what to do: from a view, the shell, a management command.

``ask()`` sends a command and returns what each dispatcher replied, ``send()`` does not wait. The commands, and what
they answer, are in docs/control.md; ``wire`` is the format of the messages.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .client import Missing, Replies, aask, asend, ask, send

__all__ = ["Missing", "Replies", "aask", "asend", "ask", "send"]


def __getattr__(name: str) -> Any:
    # When first asked for: the dispatcher needs the wire format alone.
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(".client", __name__), name)
