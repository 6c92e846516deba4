"""The benchmark's arithmetic and its pages; CI runs a glance of the benchmark itself."""

from pathlib import Path
from xml.etree import ElementTree

import pytest
from django.core.management import CommandError, call_command

from testproject.bench import report
from testproject.bench.chart import chart
from testproject.bench.findings import Finding, Target, by_turns, quantile
from testproject.bench.scenarios import SCENARIOS

BASE_DIR = Path(__file__).resolve().parent.parent
FASTER = Finding("a & b", "runs/s", [6, 8, 7], [10, 12, 11], "limit", target=Target("at least", 0.6), scenario="drain")
LATER = Finding("wait, p99", "ms", [*range(1, 101)], at=0.99, target=Target("at most", 50, "value"), note="a note")


def test_sides_have_their_turns_forwards_and_backwards() -> None:
    turns: list[str] = []
    sides = {name: lambda name=name: float(turns.append(name) or len(turns)) for name in "ab"}
    assert by_turns(3, sides) == {"a": [1, 4, 5], "b": [2, 3, 6]}
    assert "".join(turns) == "abbaab"


def test_what_is_compared_is_the_ratio_or_the_value_at_the_quantile_that_is_named() -> None:
    assert [quantile([3, 1, 2], at) for at in (0.0, 0.5, 0.99, 1.0)] == [1, 2, 3, 3]
    assert (FASTER.value, FASTER.limit_value, FASTER.is_met) == (7, 11, True)
    assert (LATER.value, LATER.ratio, LATER.is_met) == (100, None, False)
    assert Finding("no target", "ms", [1.0]).is_met is None


@pytest.mark.parametrize("finding", [FASTER, LATER])
def test_a_finding_is_read_back_from_its_document(finding: Finding) -> None:
    assert report.cells(Finding.from_dict(finding.as_dict())) == report.cells(finding)


def test_the_measured_section_of_a_page_is_replaced_and_nothing_else() -> None:
    page = f"before\n{report.START}\nearlier\n{report.END}\nafter\n"
    new = report.with_section(page, report.markdown({"machine": "one", "load before": "9"}, [FASTER, LATER]))
    assert new.startswith(f"before\n{report.START}\n* machine: one\n\n| what |")
    assert new.endswith(f"{report.END}\nafter\n")
    assert "| a & b | 7 runs/s (6 … 8) | limit: 11 (10 … 12) | 0.64 | at least 0.60-fold | yes |" in new
    assert "earlier" not in new
    beside = report.markdown({}, [FASTER, LATER], [Finding("a & b", "runs/s", [9], [10]), Finding("c", "s", [1])])
    assert [line.rsplit(" | ", 1)[-1] for line in beside.splitlines() if " | " in line] == [
        "another run |",
        "0.90 |",
        " |",
    ]
    assert "load" not in new
    with pytest.raises(ValueError, match="no section"):
        report.with_section("nothing", "")


def test_the_chart_has_a_bar_for_each_target() -> None:
    drawing = ElementTree.fromstring(chart([FASTER, LATER, Finding("no target", "ms", [1.0])]))
    assert [bar.get("class") for bar in drawing.iter("{http://www.w3.org/2000/svg}rect")] == ["met", "missed"]


def test_a_scenario_that_is_not_there_is_refused_before_anything_starts() -> None:
    with pytest.raises(CommandError, match="No scenario haste: there are drain, "):
        call_command("dispatch_bench", scenario="drain,haste")


def test_the_page_names_every_scenario() -> None:
    page = (BASE_DIR / "docs" / "performance.md").read_text()
    assert [name for name in SCENARIOS if f"`{name}`" not in page] == []
