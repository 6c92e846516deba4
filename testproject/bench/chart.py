"""A bar chart of how near each finding is to its target, as SVG text: no library draws it. Pure."""

from collections.abc import Sequence
from html import escape

from testproject.bench.findings import Finding
from testproject.bench.report import cells, number

WIDTH, ROW, TOP, LABEL, BAR = 1120, 24, 48, 520, 300
MOST = 3.0  # times the target; longer bars are cut
STYLE = (
    "text{font:12px system-ui,sans-serif;fill:#333}.title{font-size:15px;font-weight:600}"
    ".met{fill:#2a8f5b}.missed{fill:#c8553d}.line{stroke:#333;stroke-dasharray:3 3}"
    "@media(prefers-color-scheme:dark){text{fill:#ddd}.line{stroke:#ddd}}"
)


def chart(findings: Sequence[Finding]) -> str:
    """Return the drawing: a bar for every finding that has a target, and a line where the targets are."""
    shown = [(finding, finding.target.share(finding.judged or 0.0)) for finding in findings if finding.target]
    height = TOP + ROW * len(shown) + 12
    goal = LABEL + BAR / MOST
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<style>{STYLE}</style>",
        '<text x="12" y="22" class="title">How much better than its target each figure is</text>',
        f'<text x="{goal}" y="40" text-anchor="middle">the target</text>',
    ]
    for place, (finding, share) in enumerate(shown):
        parts += _bar(finding, share, TOP + ROW * place)
    parts += [f'<line class="line" x1="{goal}" y1="{TOP - 4}" x2="{goal}" y2="{height - 8}"/>', "</svg>"]
    return "\n".join(parts) + "\n"


def _bar(finding: Finding, share: float, y: int) -> list[str]:
    word = "met" if finding.is_met else "missed"
    long = min(share, MOST) / MOST * BAR
    figure = f"{number(finding.judged or 0.0)}{' ' + finding.unit if finding.judged == finding.value else '-fold'}"
    says = f"{figure}, target {cells(finding)[4]}"
    return [
        f'<text x="{LABEL - 8}" y="{y + 15}" text-anchor="end">{escape(_short(finding.what))}</text>',
        f'<rect class="{word}" x="{LABEL}" y="{y + 3}" width="{long:.1f}" height="16"/>',
        f'<text x="{LABEL + BAR + 8}" y="{y + 15}">{escape(says)}</text>',
    ]


def _short(text: str, most: int = 84) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"
