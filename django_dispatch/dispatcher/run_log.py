"""The lines of the log that concern a run: its id and task come first, its fields go with it. In the dispatcher."""

import logging

from ..messages import Outcome, Verdict
from ..store.values import ClaimedRun, Settlement

logger = logging.getLogger("django_dispatch.dispatcher")


def tell(level: int, run: ClaimedRun, text: str) -> None:
    """Log something about a run."""
    logger.log(level, "Run %s (%s): %s", run.id, run.task, text, extra=run.log_fields)


def tell_ended(run: ClaimedRun, outcome: Outcome, settlement: Settlement) -> None:
    """One line a transition: INFO when all is well, WARNING when somebody may want to know."""
    if settlement.status == "FAILED" or settlement.has_failed or settlement.was_interrupted:
        level = logging.WARNING
    else:
        is_given_back = outcome.verdict is Verdict.UNSTARTED and settlement.status != "CANCELLED"
        level = logging.DEBUG if is_given_back else logging.INFO
    if not logger.isEnabledFor(level):
        return
    verdict, seconds = outcome.verdict.name.lower(), outcome.duration_seconds
    logger.log(
        level,
        "Run %s %s %s: %s after %.3f s (attempt %s).",
        run.id,
        run.task,
        settlement.status,
        verdict.replace("_", " "),
        seconds,
        run.attempt,
        extra=run.log_fields | {"status": settlement.status, "verdict": verdict, "duration_seconds": round(seconds, 6)},
    )
