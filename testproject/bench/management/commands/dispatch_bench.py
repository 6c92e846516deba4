"""``manage.py dispatch_bench``: ours and the limit beside it, measured by turns on a PostgreSQL of its own."""

import contextlib
import json
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError, CommandParser
from django.db import connection
from django.test import override_settings

from testproject import postgres
from testproject.bench import machine, marks, report
from testproject.bench.chart import chart
from testproject.bench.findings import Finding
from testproject.bench.ground import Ground
from testproject.bench.scenarios import SCENARIOS

NONSENSE_RUNS_PER_SECOND = 1000
NONSENSE_RATIO = 0.1
# A fleet of dispatchers has four connections each.
CONNECTIONS = 300


class Command(BaseCommand):
    help = "Measures the dispatcher beside what plain SQL reaches, by turns, on a fresh PostgreSQL of its own."
    requires_system_checks: list[str] = []

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._failed: list[str] = []

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("--scenario", default=",".join(SCENARIOS), help=f"Names by commas, of: {', '.join(SCENARIOS)}.")
        add("--quick", action="store_true", help="Measure less of everything: a glance, not a figure.")
        add("--rounds", type=int, help="How often each side has its turn. Default: 5, quick 2.")
        add("--processes", type=int, default=2, help="Executors for synchronous runs.")
        add("--json", type=Path, metavar="FILE", help="Write everything, samples too.")
        add("--chart", type=Path, metavar="FILE", help="Draw an SVG.")
        add("--markdown", type=Path, metavar="FILE", help="Replace the measured section of this page.")
        add("--beside", type=Path, metavar="FILE", help="Show there what an earlier --json holds beside this.")
        add("--of", type=Path, metavar="FILE", help="Measure nothing: show what an earlier --json holds.")

    def handle(self, **options: Any) -> None:
        if options["of"]:
            facts, findings = json.loads(options["of"].read_text())["facts"], _findings_of(options["of"])
        else:
            facts, findings = self._measure(options)
        self.stdout.write(f"\n{report.table(findings)}")
        if options["chart"]:
            options["chart"].write_text(chart(findings))
        if options["markdown"]:
            page = options["markdown"]
            others = _findings_of(options["beside"]) if options["beside"] else []
            page.write_text(report.with_section(page.read_text(), report.markdown(facts, findings, others)))
        if self._failed:
            raise CommandError("\n".join(["Some scenarios could not be measured.", *self._failed]))
        for finding in findings:
            if finding.scenario == "drain" and _is_nonsense(finding):
                raise CommandError(f"{finding.what}: {finding.value:.0f} runs/s is nonsense, not noise.")

    def _measure(self, options: dict[str, Any]) -> tuple[dict[str, str], list[Finding]]:
        names = options["scenario"].split(",")
        if unknown := set(names) - set(SCENARIOS):
            raise CommandError(f"No scenario {', '.join(sorted(unknown))}: there are {', '.join(SCENARIOS)}.")
        seconds: dict[str, float] = {}
        findings: list[Finding] = []
        with self._ground(options) as ground:
            facts = machine.description(ground.sql) | {"sizes": "small (--quick)" if ground.is_quick else "full"}
            for name, fact in facts.items():
                self.stdout.write(f"{name}: {fact}")
            for name in (name for name in SCENARIOS if name in names):
                began = time.monotonic()
                self.stdout.write(f"\n{name}: {(SCENARIOS[name].__doc__ or '').splitlines()[0]}")
                try:
                    for finding in SCENARIOS[name](ground):
                        findings.append(replace(finding, scenario=name))
                        self.stdout.write("  " + "  |  ".join(filter(None, report.cells(finding))))
                except (
                    RuntimeError,
                    subprocess.SubprocessError,
                    psycopg.Error,
                ) as error:  # the others are worth having all the same
                    self._failed.append(f"{name}: {error}")
                    self.stderr.write(self._failed[-1])
                seconds[name] = time.monotonic() - began
                self.stdout.write(f"  ({seconds[name]:.0f} s)")
                if options["json"]:
                    options["json"].write_text(json.dumps(report.document(facts, findings, seconds), indent=1))
        return facts, findings

    @contextlib.contextmanager
    def _ground(self, options: dict[str, Any]) -> Iterator[Ground]:
        """Start a server, point Django at it, migrate."""
        postgres.release_server()  # manage.py holds the checkout's own, which is not needed
        with (
            override_settings(DEBUG=False),  # with it on, Django keeps a log of every query
            postgres.TemporaryServer() as server,
            tempfile.TemporaryDirectory() as folder,
        ):
            with psycopg.connect(server.url, autocommit=True) as sql:
                sql.execute(f"ALTER SYSTEM SET max_connections = {CONNECTIONS}".encode())
            server.restart()
            marks.create(Path(folder) / "marks")
            connection.close()
            connection.settings_dict.update(postgres.django_database(server.url) | {"CONN_MAX_AGE": None})
            call_command("migrate", verbosity=0)
            rounds = options["rounds"] or (2 if options["quick"] else 5)
            try:
                with psycopg.connect(server.url, autocommit=True) as sql:
                    yield Ground(server, server.url, sql, options["quick"], rounds, options["processes"])
            finally:
                connection.close()


def _findings_of(path: Path) -> list[Finding]:
    """Return what an earlier --json holds."""
    return [Finding.from_dict(finding) for finding in json.loads(path.read_text())["findings"]]


def _is_nonsense(finding: Finding) -> bool:
    """Whether a drain is slow beyond what a busy machine explains: plain SQL would be slow there too."""
    return finding.value < NONSENSE_RUNS_PER_SECOND and (finding.ratio or 0.0) < NONSENSE_RATIO
