"""``manage.py dispatch_bench``: ours and the raw limit of PostgreSQL, measured by turns in one run."""

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandParser
from django.db import connection
from django.test import override_settings

from testproject import postgres
from testproject.bench import drain, latency, marks, raw

BATCH = 100


class Command(BaseCommand):
    help = "Measures drain rate and start latency, beside what plain SQL reaches, on a fresh PostgreSQL of its own."

    def add_arguments(self, parser: CommandParser) -> None:
        parser.add_argument("--runs", type=int, default=30_000, help="Backlog of each drain.")
        parser.add_argument("--rounds", type=int, default=3, help="How often each side has its turn.")
        parser.add_argument("--samples", type=int, default=200, help="Enqueues of the latency measurement.")
        parser.add_argument("--processes", type=int, default=2, help="Executors for synchronous runs.")

    @override_settings(DEBUG=False)  # with it on, Django keeps a log of every query
    def handle(self, **options: Any) -> None:
        with postgres.TemporaryServer() as server, tempfile.TemporaryDirectory() as folder:
            marks.create(Path(folder) / "marks")
            connection.close()
            connection.settings_dict.update(postgres.django_database(server.url) | {"CONN_MAX_AGE": None})
            call_command("migrate", verbosity=0)
            self._drains(server.url, options["runs"], options["rounds"], options["processes"])
            self._latency(server.url, options["samples"])
            connection.close()

    def _drains(self, url: str, runs: int, rounds: int, processes: int) -> None:
        sides: dict[str, Callable[[], float]] = {
            f"raw SQL, claim + finish in one statement, batch {BATCH}": lambda: raw.drain_rate(url, runs, BATCH),
            f"sync, {processes} isolated processes": lambda: drain.drain_rate(
                url, runs, "testproject.bench.tasks.noop", processes
            ),
            "async, one event loop": lambda: drain.drain_rate(url, runs, "testproject.bench.tasks.anoop", 1),
        }
        rates: dict[str, list[float]] = {side: [] for side in sides}
        for _ in range(rounds):
            for side, measure in sides.items():
                rates[side].append(measure())
        limit = statistics.median(next(iter(rates.values())))
        self.stdout.write(f"Drain of {runs} empty runs, median of {rounds} rounds by turns, runs/s:")
        for side, found in rates.items():
            median = statistics.median(found)
            spread = f"{min(found):,.0f} … {max(found):,.0f}"
            self.stdout.write(f"  {side:55} {median:8,.0f}   {median / limit:5.2f} of raw   ({spread})")

    def _latency(self, url: str, samples: int) -> None:
        ours, bare = latency.measure(url, samples)
        self.stdout.write(f"Latency, idle, {samples} samples by turns, ms:")
        for side, found in (
            ("bare insert + NOTIFY until the listener wakes", bare),
            ("before .delay() until the body", ours),
        ):
            p50, p99 = statistics.median(found), statistics.quantiles(found, n=100)[98]
            ratio = p50 / statistics.median(bare)
            self.stdout.write(f"  {side:55} p50 {p50:6.2f}   p99 {p99:6.2f}   {ratio:5.2f} of bare at p50")
