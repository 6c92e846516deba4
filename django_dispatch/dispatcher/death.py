"""What the death of an executor does to the runs that it had. Pure."""

import signal
from dataclasses import dataclass

from ..documents import error_document
from ..messages import Outcome, Stop, Verdict
from .executor import Flight


@dataclass(frozen=True, slots=True)
class Death:
    """How an executor ended. ``cause`` is ours, and empty when it ended by its own doing or somebody else's.

    ``note`` says what else is known: that it was out of memory, that its zygote died.
    """

    executor: str
    status: int
    cause: str
    peak_kb: int
    note: str = ""
    """What the kernel knows of it."""
    fault: str = ""
    """What it did that it had to be killed for."""
    log: str = ""
    """The last lines that it logged."""

    @property
    def how(self) -> str:
        """Say ``exit code 3``, ``killed by SIGSEGV`` or ``killed by SIGKILL, out of memory``."""
        if self.status >= 0:
            how = f"exit code {self.status}"
        else:
            try:
                how = f"killed by {signal.Signals(-self.status).name}"
            except ValueError:
                how = f"killed by signal {-self.status}"
        return f"{how}, {self.note}" if self.note else how


def outcome_of(flight: Flight, death: Death, now: float, *, is_alone: bool = True) -> Outcome:
    """Return the outcome of a run whose executor died at ``now``, by the loop's clock; with others in it, or alone."""
    verdict, kind, message = _verdict(flight, death)
    if verdict is Verdict.LOST and not is_alone:
        verdict, message = Verdict.LOST_TOGETHER, f"{message} Other runs were in it."
    text = error_document(
        kind,
        message,
        attempt=flight.run.attempt,
        executor=death.executor,
        exit_status=death.status,
        peak_kb=death.peak_kb,
        **({"log": death.log} if death.log and kind in ("lost", "timeout") else {}),
    )
    seconds = 0.0 if flight.started_at is None else now - flight.started_at
    return Outcome(*flight.token, verdict, seconds, text)


def _verdict(flight: Flight, death: Death) -> tuple[Verdict, str, str]:
    if flight.stop is Stop.TIMEOUT:
        message = f"Its body ran longer than {flight.timeout_seconds:g} s and did not stop when told to; it was killed."
        return Verdict.TIMED_OUT, "timeout", message
    if flight.stop is Stop.CANCEL:
        return Verdict.CANCELLED, "cancelled", "Its body did not stop when told to; it was killed."
    if flight.stop is Stop.SHUTDOWN or death.cause:
        return Verdict.INTERRUPTED, "shutdown", f"Its executor was stopped ({death.cause or 'shutdown'})."
    if death.fault and death.status == -signal.SIGKILL:
        return Verdict.LOST, "lost", f"Its executor {death.fault}, and was killed."
    return Verdict.LOST, "lost", f"Its executor died: {death.how}."


def cause_of(cause: str) -> str:
    """Return the cause of an exit, without the run that it may name: there are few of them."""
    return cause.partition(" run ")[0] or "itself"
