"""What must be true when it is over: rules, each a function of a run's case or of the whole evidence. Pure."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from .evidence import Change, Evidence, Start
from .plan import LEASE_TTL_SECONDS, MAX_INTERRUPTIONS

FINAL = ("SUCCESSFUL", "FAILED", "CANCELLED")
EDGES: Mapping[str | None, Sequence[str | None]] = {
    None: ("READY", "SCHEDULED"),
    "SCHEDULED": ("READY", "CANCELLED"),
    "READY": ("RUNNING", "CANCELLED"),
    "RUNNING": ("READY", "SCHEDULED", *FINAL),
    **dict.fromkeys(FINAL, (None,)),
}
FAILURES = ("exception", "timeout", "result")
INTERRUPTIONS = ("lost", "unknown_task")
# The clock of bodies and of the database is one, read in microseconds.
CLOCK_SECONDS = 0.001
# From a claim's look at its lease to the trigger's: no statement of a dispatcher's takes longer than half a lease.
LATE_LOOK_SECONDS = LEASE_TTL_SECONDS / 2
# A family that stood still as a whole, and goes on: by when its zygote has surely ended its bodies.
THAW_SECONDS = 5.0
# A killed body's statement: by when PostgreSQL has surely noticed.
STATEMENT_SECONDS = 2.0


@dataclass(frozen=True)
class Violation:
    """A rule that was broken, and by which run, if by one."""

    rule: str
    text: str
    run_id: int | None = None

    def __str__(self) -> str:
        return f"{self.rule}: " + (f"run {self.run_id}: " if self.run_id is not None else "") + self.text


@dataclass
class Claim:
    """One claim of a run, and when it ended."""

    epoch: int
    attempt: int
    at: float
    ended_at: float = float("inf")


@dataclass
class Case:
    """All about one run."""

    run_id: int
    evidence: Evidence
    changes: list[Change] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)

    @property
    def ending(self) -> Change | None:
        """The change to its final status."""
        return next((change for change in self.changes if change.status in FINAL), None)

    def claims(self) -> Mapping[int, Claim]:
        """Its claims, by epoch."""
        claims: dict[int, Claim] = {}
        for change in self.changes:
            if change.status == "RUNNING":
                claims[change.epoch] = Claim(change.epoch, change.attempt, change.at)
            elif change.old_status == "RUNNING" and change.epoch in claims:
                claims[change.epoch].ended_at = change.at
        return claims

    def is_excused(self, start: Start, claim: Claim, until: float) -> bool:
        """Whether a body outlived its claim because its whole family had stood still, and only just."""
        return any(
            start.pid in frozen.pids and frozen.began_at <= claim.ended_at and until <= frozen.ended_at + THAW_SECONDS
            for frozen in self.evidence.frozen
        )

    def history(self) -> list[str]:
        """Tell what happened to it, in the order of time."""
        told = [(change.at, _told(change)) for change in self.changes]
        for start in self.starts:
            told.append((start.at, f"body: epoch {start.epoch}, attempt {start.attempt}, in process {start.pid}"))
            ending = f"{start.how} {start.value!r:.60}" if start.how else "last sign of life"
            told.append((start.seen_at, f"body: epoch {start.epoch} {ending}"))
        return [f"{at:.6f} {text}" for at, text in sorted(told)]


def audit(evidence: Evidence) -> list[Violation]:
    """Return every violation of every rule."""
    found = [*_something_was_done(evidence), *_enqueues_are_runs(evidence), *_nothing_is_left(evidence)]
    for case in cases_of(evidence).values():
        for rule in RULES:
            found += [Violation(rule.__name__.strip("_").replace("_", " "), text, case.run_id) for text in rule(case)]
    return found


def cases_of(evidence: Evidence) -> dict[int, Case]:
    """Return the case of every run, by its id. Changes and starts are in their order."""
    cases: dict[int, Case] = {}
    for change in evidence.changes:
        cases.setdefault(change.run_id, Case(change.run_id, evidence)).changes.append(change)
    for start in evidence.starts:
        cases.setdefault(start.run_id, Case(start.run_id, evidence)).starts.append(start)
    return cases


# of the whole


def _something_was_done(evidence: Evidence) -> Iterator[Violation]:
    """Nothing is proved where nothing happened."""
    if not any(enqueue.fate == "committed" for enqueue in evidence.enqueues) or not evidence.starts:
        yield Violation("something was done", "nothing was enqueued, or no body began")


def _enqueues_are_runs(evidence: Evidence) -> Iterator[Violation]:
    """Every committed enqueue is one run, every one that was rolled back is none; a transaction is all or nothing."""
    rule = "enqueues are runs"
    inserted = Counter(change.key for change in evidence.changes if change.old_status is None and not change.rerun_of)
    known: set[str | None] = set()
    for enqueue in evidence.enqueues:
        known.update(enqueue.keys)
        counts = {inserted[key] for key in enqueue.keys}
        expected = {"committed": [{1}], "rolled back": [{0}], "in doubt": [{0}, {1}]}[enqueue.fate]
        if counts not in expected:
            detail = {key: inserted[key] for key in enqueue.keys}
            yield Violation(rule, f"an enqueue that was {enqueue.fate} has as many runs as this, by key: {detail}")
    for key in inserted.keys() - known:
        yield Violation(rule, f"nobody enqueued {key!r}")


def _nothing_is_left(evidence: Evidence) -> Iterator[Violation]:
    for thing in evidence.left_behind:
        yield Violation("nothing is left", thing)


# of a run


def _every_change_is_allowed(case: Case) -> Iterator[str]:
    """Statuses follow the life of a run; a final one stays; epoch, attempt and counters move as they must."""
    previous: Change | None = None
    for change in case.changes:
        if change.old_status != (previous.status if previous else None) or change.status not in EDGES.get(
            change.old_status, ()
        ):
            yield f"{change.old_status} became {change.status} after it was {previous and previous.status}"
        elif previous is not None and not _counts_on(previous, change):
            yield f"its counters went from {_counters(previous)} to {_counters(change)} as it became {change.status}"
        if (change.status == "RUNNING") != (change.lease is not None) and change.status is not None:
            yield f"it was {change.status} with lease {change.lease}"
        previous = change


def _counts_on(old: Change, new: Change) -> bool:
    epochs, attempts = new.epoch - old.epoch, new.attempt - old.attempt
    failures, losses = new.failures - old.failures, new.interruptions - old.interruptions
    if new.status == "RUNNING":
        return (epochs, attempts, failures, losses) == (1, 1, 0, 0)
    if old.status != "RUNNING":
        return (epochs, attempts, failures, losses) == (0, 0, 0, 0)
    was_released = new.status in ("READY", "CANCELLED") and (attempts, failures, losses) == (-1, 0, 0)
    return epochs == 0 and (was_released or (attempts == 0 and failures + losses <= 1 and min(failures, losses) >= 0))


def _whoever_ended_it_was_asked_to(case: Case) -> Iterator[str]:
    """Nobody is cancelled, deleted or run again who was not asked for."""
    asked = case.evidence.asked
    for change in case.changes:
        if change.status == "CANCELLED" and case.run_id not in asked["cancel"]:
            yield "nobody cancelled it, and it is CANCELLED"
        if change.status is None and change.actor != "django_dispatch store" and case.run_id not in asked["delete"]:
            yield f"{change.actor!r} deleted it"
        if change.old_status is None and change.rerun_of and change.rerun_of not in asked["rerun"]:
            yield f"nobody wanted {change.rerun_of} to be run again"


def _a_claim_has_a_live_lease(case: Case) -> Iterator[str]:
    """By the database's clock; the trigger looks when the claim has been made, a moment after the claim has looked."""
    for change in case.changes:
        if change.status == "RUNNING" and (change.lease_left is None or change.lease_left < -LATE_LOOK_SECONDS):
            yield f"epoch {change.epoch} was claimed under a lease that had {change.lease_left} s left"


def _a_body_lives_within_its_claim(case: Case) -> Iterator[str]:
    """A body begins after its claim and is dead when that ends, however it ends: so it never meets its successor."""
    claims = case.claims()
    for start in case.starts:
        claim = claims.get(start.epoch)
        if claim is None:
            yield f"a body began in epoch {start.epoch}, in which nobody claimed it"
            continue
        if start.at < claim.at - CLOCK_SECONDS or start.attempt != claim.attempt:
            claimed = f"it was claimed at {claim.at:.6f} as {claim.attempt}"
            yield f"attempt {start.attempt} began at {start.at:.6f}; {claimed}"
        late = start.seen_at - claim.ended_at
        if late > CLOCK_SECONDS and not case.is_excused(start, claim, start.seen_at):
            yield f"the body of epoch {start.epoch} lived {late:.3f} s longer than its claim"


def _no_two_bodies_at_once(case: Case) -> Iterator[str]:
    """By what bodies found when they began, and by their times."""
    claims, by_epoch = case.claims(), {start.epoch: start for start in case.starts}
    if len(by_epoch) < len(case.starts):
        yield f"epochs began more than once: {sorted(start.epoch for start in case.starts)}"
    for start in case.starts:
        met = set(start.overlaps)
        met |= {other.epoch for other in case.starts if other.at < start.at < other.seen_at}
        for epoch in sorted(met):
            other, claim = by_epoch[epoch], claims.get(epoch)
            if claim is None or not case.is_excused(other, claim, start.at):
                yield f"epoch {start.epoch} began while the body of epoch {epoch} was alive in process {other.pid}"


def _only_what_was_interrupted_is_repeated(case: Case) -> Iterator[str]:
    """Each attempt but the one that decided it has its entry among the errors, and the counters are their sums."""
    ending = case.ending
    if ending is None:
        return
    kinds = Counter(kind for _, kind in ending.errors)
    failures, losses = (sum(kinds[kind] for kind in group) for group in (FAILURES, INTERRUPTIONS))
    if (failures, losses) != (ending.failures, ending.interruptions):
        yield f"it counts {_counters(ending)}; its errors are {dict(kinds)}"
    last = ending.attempt - (ending.status == "SUCCESSFUL")
    listed = sorted(attempt for attempt, kind in ending.errors if kind != "unknown_task")
    if listed != list(range(1, last + 1)):
        yield f"{ending.status} at attempt {ending.attempt}; there are errors of attempts {listed}"
    allowed = failures + losses + kinds["shutdown"] + 1
    if len(case.starts) > min(allowed, ending.attempt):
        yield f"{len(case.starts)} bodies began; {ending.attempt} attempts are counted, {allowed} are allowed"
    if ending.on_lost == "fail" and len(case.starts) > 1:
        yield f"an at-most-once task began {len(case.starts)} times"


def _the_ending_is_what_the_body_did(case: Case) -> Iterator[str]:
    """No false success, no false failure: the result is the one that the last body returned."""
    ending = case.ending
    if ending is None:
        return
    if ending.status == "SUCCESSFUL":
        start = next((start for start in case.starts if start.epoch == ending.epoch), None)
        if start is None or start.how != "returned":
            how = (start.how or "was killed") if start else "never began"
            yield f"SUCCESSFUL in epoch {ending.epoch}, whose body {how}"
        elif _as_stored(start.value) != ending.result:
            yield f"its result is {ending.result!r:.80}; its body returned {start.value!r:.80}"
        elif ending.task.endswith(".holds") and (case.run_id, ending.epoch) not in {
            (effect.run_id, effect.epoch) for effect in case.evidence.effects_of(case.run_id)
        }:
            yield "SUCCESSFUL, and what its body had committed is not there"
    elif ending.status == "FAILED":
        is_due = (
            ending.failures >= (ending.max_attempts or 1)
            or ending.interruptions >= MAX_INTERRUPTIONS
            or ending.on_lost == "fail"
            or (ending.errors and ending.errors[-1][1] == "result")
        )
        if not is_due:
            yield f"FAILED too early: {_counters(ending)}"
    returned = {start.attempt for start in case.starts if start.how == "returned"}
    for attempt, kind in ending.errors:
        if kind == "exception" and attempt in returned:
            yield f"attempt {attempt} counts as an exception; its body returned"


def _it_has_ended_or_may_wait(case: Case) -> Iterator[str]:
    """At the end every run is final, or due later, or gone because it was final."""
    last = case.changes[-1] if case.changes else None
    status = case.evidence.rows.get(case.run_id)
    if last is None or last.status != status:
        yield f"in the table it is {status}; its last change made it {last and last.status}"
    elif (
        status is not None and status not in FINAL and not (last.run_after and last.run_after > case.evidence.ended_at)
    ):
        yield f"it is {status} for ever"


def _what_a_body_commits_it_commits_alive(case: Case) -> Iterator[str]:
    """No statement of a killed body lives on beside its successor."""
    claims, by_epoch = case.claims(), {start.epoch: start for start in case.starts}
    for effect in case.evidence.effects_of(case.run_id):
        claim, start = claims.get(effect.epoch), by_epoch.get(effect.epoch)
        if claim is None or start is None:
            yield f"epoch {effect.epoch} committed something, and never began"
            continue
        late = effect.committed_at - claim.ended_at
        allowed = CLOCK_SECONDS if start.how else STATEMENT_SECONDS
        if late > allowed and not case.is_excused(start, claim, effect.committed_at):
            yield f"epoch {effect.epoch} committed {late:.3f} s after its claim ended"


def _it_came_after_its_transaction(case: Case) -> Iterator[str]:
    """Bodies said if they did not find the row that was committed with their enqueue."""
    for start in case.starts:
        yield from (f"the body of epoch {start.epoch} {note}" for note in start.notes)


RULES = (
    _every_change_is_allowed,
    _whoever_ended_it_was_asked_to,
    _a_claim_has_a_live_lease,
    _a_body_lives_within_its_claim,
    _no_two_bodies_at_once,
    _only_what_was_interrupted_is_repeated,
    _the_ending_is_what_the_body_did,
    _it_has_ended_or_may_wait,
    _what_a_body_commits_it_commits_alive,
    _it_came_after_its_transaction,
)


def excused(cases: Iterable[Case]) -> int:
    """Return how many bodies outlived their claim in a family that had stood still as a whole."""
    return sum(
        start.seen_at > claim.ended_at + CLOCK_SECONDS
        for case in cases
        for start in case.starts
        if (claim := case.claims().get(start.epoch)) is not None
    )


def _counters(change: Change) -> str:
    return (
        f"epoch {change.epoch}, attempt {change.attempt}, {change.failures} failures,"
        f" {change.interruptions} interruptions"
    )


def _as_stored(value: Any) -> Any:
    """What a result becomes that PostgreSQL cannot hold as it is: NUL and lone surrogates turn into visible escapes."""
    if isinstance(value, str):
        return "".join(f"\\u{ord(c):04x}" if c == "\0" or "\ud800" <= c <= "\udfff" else c for c in value)
    if isinstance(value, list):
        return [_as_stored(item) for item in value]
    if isinstance(value, dict):
        return {_as_stored(key): _as_stored(item) for key, item in value.items()}
    return value


def _told(change: Change) -> str:
    if change.old_status is None:
        return f"row: {change.task} {change.key!r} enqueued: {change.status}"
    errors = f", errors {list(change.errors)}" if change.errors else ""
    lease = f", lease {change.lease}" if change.lease else ""
    return f"row: {change.old_status} -> {change.status} by {change.actor!r}: {_counters(change)}{lease}{errors}"
