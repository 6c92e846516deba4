"""Bodies of ``@task(atomic=True)``: what they write to the database, and that they succeeded, is one transaction."""

from collections.abc import Callable
from typing import Any, NamedTuple

from django.db import transaction

from .. import conf
from ..messages import Outcome, Verdict
from ..store import atomic as store


class Committed(NamedTuple):
    """In the place of a body's value: its outcome, which is in the database already, or was not to be written there."""

    outcome: Outcome


class LeaseLost(Exception):
    """The run is not this attempt's any more: all that the body did in the database is undone."""


def call(body: Callable[[], Any], lease: bytes, returned: Callable[[Any], Outcome]) -> Committed:
    """Call the body in a transaction, and write its success in that too. ``returned`` makes its value an outcome.

    Whatever is not a success (an error, a decision, a value that is not JSON) undoes what the body wrote. Raises
    LeaseLost.
    """
    using = conf.current().database
    with transaction.atomic(using=using, durable=True):
        outcome = returned(body())
        if outcome.verdict is not Verdict.RETURNED:
            transaction.set_rollback(True, using=using)
            return Committed(outcome)
        if not store.finish(using, (outcome.run_id, outcome.epoch), lease, outcome.text or None):
            raise LeaseLost("The run was given to somebody else; what this attempt did in the database is undone.")
    return Committed(outcome._replace(verdict=Verdict.COMMITTED))
