"""Findings as a table for the terminal, a section for the docs, and a JSON document. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from testproject.bench.findings import Finding, quantile

HEAD = ("what", "found", "beside it", "ratio", "target", "met")
START, END = "<!-- measured: begin -->", "<!-- measured: end -->"


def document(facts: Mapping[str, str], findings: Iterable[Finding], seconds: Mapping[str, float]) -> dict[str, Any]:
    """Return everything, to be written as JSON."""
    rounded = {name: round(took, 1) for name, took in seconds.items()}
    return {"facts": dict(facts), "seconds": rounded, "findings": [finding.as_dict() for finding in findings]}


def table(findings: Iterable[Finding]) -> str:
    """Return an aligned table for a terminal."""
    rows = [HEAD, *map(cells, findings)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEAD))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows
    )


def markdown(facts: Mapping[str, str], findings: Iterable[Finding], others: Iterable[Finding] = ()) -> str:
    """Return the measured section of the documentation; ``others`` are those of another run, shown beside."""
    another = {other.what: _brief(other) for other in others}
    head = (*HEAD, *(["another run"] if another else []))
    lines = [f"* {name}: {fact}" for name, fact in facts.items() if not name.startswith("load")]
    lines += ["", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    for finding in findings:
        row = (*cells(finding), *([another.get(finding.what, "")] if another else []))
        lines.append(f"| {' | '.join(row)} |")
    return "\n".join(lines)


def with_section(page: str, section: str) -> str:
    """Return the page with its measured section replaced by this one."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise ValueError(f"The page has no section between {START} and {END}.")
    return f"{before}{start}\n{section}\n{end}{after}"


def cells(finding: Finding) -> tuple[str, ...]:
    """Return the row of a finding, by the columns of HEAD."""
    found = f"{number(finding.value)} {finding.unit}{_spread(finding.ours)}"
    if finding.note:
        found += f"; {finding.note}"
    beside = ratio = ""
    if finding.limit_value is not None:
        beside = f"{finding.limit_name}: {number(finding.limit_value)}{_spread(finding.limit)}"
        ratio = f"{finding.ratio:.2f}"
    target = "" if finding.target is None else f"{finding.target.word} {_goal(finding)}"
    met = {None: "", True: "yes", False: "no"}[finding.is_met]
    return (finding.what, found, beside, ratio, target, met)


def _brief(finding: Finding) -> str:
    """What there is to compare: the ratio, or the figure itself where nothing is beside it."""
    return f"{number(finding.value)} {finding.unit}" if finding.ratio is None else f"{finding.ratio:.2f}"


def number(value: float) -> str:
    """Return a figure with about three digits."""
    if abs(value) >= 100 or value == int(value) != 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def _goal(finding: Finding) -> str:
    assert finding.target is not None
    goal = number(finding.target.number)
    return f"{goal} {finding.unit}" if finding.target.of == "value" else f"{goal}-fold"


def _spread(samples: Sequence[float]) -> str:
    """Of a few samples the least and the greatest, of many the 5th and the 95th in a hundred."""
    if len(samples) < 2:
        return ""
    lower, upper = (0.0, 1.0) if len(samples) < 20 else (0.05, 0.95)
    return f" ({number(quantile(samples, lower))} … {number(quantile(samples, upper))})"
