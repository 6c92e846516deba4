"""What each control command does in the dispatcher: one function each, in two tables. On its loop.

A command gets the dispatcher and the data of the message, and returns a document of JSON. Fields that it does not know
are ignored; a value that it cannot use is answered with ``error``. Looking changes nothing and asks no database.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any

from django.db import Error as DatabaseError

from ...control.wire import BadMessage
from ...exceptions import DispatchError
from .looks import LOOKS
from .orders import ORDERS

if TYPE_CHECKING:
    from ..service import Dispatcher

Command = Callable[["Dispatcher", Mapping[str, Any]], Awaitable[dict[str, Any]]]

COMMANDS: Mapping[str, Command] = {**LOOKS, **ORDERS}

logger = logging.getLogger("django_dispatch.control")


async def perform(dispatcher: "Dispatcher", name: str, data: Mapping[str, Any]) -> dict[str, Any]:
    """Do as a command says, and return the answer: with ``error`` if that could not be done. Never raises."""
    try:
        return await COMMANDS[name](dispatcher, data)
    except (DispatchError, BadMessage) as error:
        return {"error": str(error)}
    except DatabaseError as error:
        text = str(error).strip().split("\n", 1)[0]
        logger.warning("The control command %s failed for want of the database: %s", name, text)
        return {"error": f"The database does not answer: {text}"}
    except Exception as error:
        logger.exception("The control command %s failed.", name)
        return {"error": f"The command failed, see the dispatcher's log: {type(error).__name__}."}
