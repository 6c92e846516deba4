"""``manage.py prunedispatch``: delete runs that have ended, as dispatchers do by themselves, or by an age given."""

import argparse
import re
import time
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

from ... import checks, conf
from ...store.prunable import Prunable, older_than, past_retention
from ...store.vendors import callers

BATCH = 5000
BREATH_SECONDS = 0.05
UNITS = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86_400}


class Command(BaseCommand):
    help = "Deletes runs that have ended and are past their retention, or older than an age that you give."
    requires_system_checks = [checks.SETTINGS_TAG]

    def add_arguments(self, parser: CommandParser) -> None:
        add = parser.add_argument
        add("--dry-run", action="store_true", help="Say how many there are, and delete nothing.")
        add(
            "--older-than",
            type=_age,
            metavar="AGE",
            help="Those that ended longer ago, whatever their retention: 90, 30m, 12h, 7d. Default: past retention.",
        )
        add("--status", choices=conf.FINAL_STATUSES, help="Only those of this status.")
        add("--task", help="Only those of the task with this path.")

    def handle(self, *, dry_run: bool, **options: Any) -> None:
        settings = conf.current()
        status, task, age = options["status"], options["task"], options["older_than"]
        if age is None:
            found = past_retention(settings.retention, status=status, task=task)
        else:
            found = older_than(age, statuses=[status] if status else [*conf.FINAL_STATUSES], task=task)
        total = 0
        for prunable in found:
            using = settings.database
            count = callers(using).count_prunable(using, prunable) if dry_run else self._delete(using, prunable)
            total += count
            if count:
                self.stdout.write(f"{count:>10,} {prunable.what}")
        self.stdout.write(f"{total:,} runs {'would be' if dry_run else 'were'} deleted.")

    def _delete(self, using: str, prunable: Prunable) -> int:
        total = 0
        for deleted in callers(using).prune(using, prunable, limit=BATCH):
            total += deleted
            if deleted == BATCH:
                time.sleep(BREATH_SECONDS)
        return total


def _age(text: str) -> float:
    found = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)([smhd]?)", text)
    if found is None:
        raise argparse.ArgumentTypeError(f"an age looks like 90, 30m, 12h or 7d, not {text!r}")
    seconds = float(found[1]) * UNITS[found[2]]
    if seconds > conf.LONGEST_SECONDS * 10:
        raise argparse.ArgumentTypeError(f"an age is 100 years at most, not {text!r}")
    return seconds
