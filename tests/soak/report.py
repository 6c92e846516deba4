"""What a soak prints at its end: the timeline, the counts, and PASS, or every violation with its run's history."""

from collections import Counter
from collections.abc import Iterator, Sequence

from .audit import FINAL, Violation, cases_of, excused
from .evidence import Evidence
from .plan import Fault

SHOWN_VIOLATIONS = 20


def counts(evidence: Evidence, faults: Sequence[Fault], dispatchers: int, tally: Counter[str]) -> Iterator[str]:
    """Count everything, a line a kind."""
    cases = cases_of(evidence)
    statuses = Counter(case.ending.status if case.ending else "waiting" for case in cases.values())
    kinds = Counter(kind for case in cases.values() if case.ending for _, kind in case.ending.errors)
    starts = evidence.starts
    deletions = Counter(change.actor for change in evidence.changes if change.status is None)
    repeated = Counter(start.run_id for start in starts)
    yield _line("faults", Counter(fault.kind for fault in faults))
    yield _line("transactions", Counter(enqueue.fate for enqueue in evidence.enqueues))
    yield _line("runs", {"all": len(cases), **{status: statuses[status] for status in (*FINAL, "waiting")}})
    yield _line("attempts that did not end well", kinds)
    endings = Counter(start.how or "killed" for start in starts)
    yield _line("bodies", {"begun": len(starts), **endings, "most of one run": max(repeated.values(), default=0)})
    yield _line("outlived their claim in a frozen family", {"bodies": excused(cases.values())})
    yield _line("asked for", {verb: len(ids) for verb, ids in evidence.asked.items()})
    yield _line("deleted", {"pruned" if "store" in actor else "by hand": n for actor, n in deletions.items()})
    yield _line("dispatchers", {"started": dispatchers, **tally})


def violations(evidence: Evidence, found: Sequence[Violation]) -> Iterator[str]:
    """Tell each violation, and what happened to its run."""
    cases = cases_of(evidence)
    for violation in found[:SHOWN_VIOLATIONS]:
        yield f"VIOLATION {violation}"
        if violation.run_id in cases:
            yield from (f"    {line}" for line in cases[violation.run_id].history())
    if len(found) > SHOWN_VIOLATIONS:
        yield f"and {len(found) - SHOWN_VIOLATIONS} more: {dict(Counter(violation.rule for violation in found))}"


def _line(name: str, numbers: "Counter[str] | dict[str, int]") -> str:
    return f"{name}: " + ", ".join(f"{number} {what}" for what, number in numbers.items())
