"""What was done and what was seen, merged by time: the faults, and what the dispatchers logged about them."""

import logging
import re
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

LINE = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) (\w+) +(\S+): (.*)")
OUTCOME = re.compile(r"Run \d+ \S+ [A-Z]+: ")
RECLAIMED = re.compile(r"Run \d+ \(\S+\) is reclaimed from lease (\S+): (\w+)\.")
VARIES = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}|\d+(\.\d+)?|\(\S+\)")
TOGETHER_SECONDS = 2.0
QUIET = ("DEBUG", "INFO")
TELLING = ("Lease ", "Draining", "Ended;")


@dataclass(frozen=True)
class Event:
    """Something at a moment, in seconds since 1970; ``count`` of its like, one soon after the other."""

    at: float
    who: str
    text: str
    count: int = 1


class Timeline(logging.Handler):
    """Collects what the soak itself does (``say(text)`` notes it now), and what the product logs in its process."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.began_at = time.time()
        self._done: list[Event] = []
        self._logged: list[Event] = []

    def say(self, text: str) -> None:
        self._done.append(Event(time.time(), "SOAK", text))

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record of the writers' threads."""
        self._logged.append(Event(record.created, "writers", f"{record.levelname} {record.getMessage()}"))

    def lines(self, logs: Iterable[Path]) -> Iterator[str]:
        """Return all in the order of time, a line each, seconds from the beginning first."""
        seen = [event for log in logs for event in events_of(log)]
        for event in sorted([*self._done, *together(self._logged), *seen], key=lambda event: event.at):
            times = f" (x {event.count})" if event.count > 1 else ""
            yield f"{event.at - self.began_at:8.2f}  {event.who:12} {event.text}{times}"


def events_of(log: Path) -> list[Event]:
    """Return what a dispatcher's log tells of trouble."""
    who = log.stem.partition("-")[2]
    return together(filter(None, (_event(line, who) for line in log.read_text(errors="replace").splitlines())))


def together(all_events: Iterable[Event]) -> list[Event]:
    """Make one event of those of one kind, soon after each other."""
    events: list[Event] = []
    newest: dict[str, int] = {}
    for event in all_events:
        kind = VARIES.sub("#", event.text)
        place = newest.get(kind)
        if place is not None and event.at - events[place].at < TOGETHER_SECONDS:
            events[place] = replace(events[place], count=events[place].count + 1)
        else:
            newest[kind] = len(events)
            events.append(event)
    return events


def tally_of(logs: Iterable[Path]) -> Counter[str]:
    """Count what the dispatchers logged, by kind, for the summary."""
    tally: Counter[str] = Counter()
    for log in logs:
        text = log.read_text(errors="replace")
        tally["reclaimed runs"] += len(RECLAIMED.findall(text))
        tally["leases lost"] += len(re.findall(r"Lease \S+ is lost", text))
        tally["outcomes dropped"] += text.count("its outcome is dropped") + text.count("the outcome is dropped")
        tally["answers lost, runs released"] += text.count("but the answer was lost")
        tally["outcomes written before the connection broke"] += text.count("its outcome was written before")
    return tally


def _event(line: str, who: str) -> Event | None:
    found = LINE.match(line)
    if found is None:
        return None
    moment, level, _, text = found.groups()
    is_telling = text.startswith(TELLING) if level in QUIET else not OUTCOME.match(text)
    if not is_telling:
        return None
    if reclaimed := RECLAIMED.match(text):
        text = f"reclaimed from lease {reclaimed[1]}: {reclaimed[2]}"
    at = datetime.strptime(moment, "%Y-%m-%d %H:%M:%S,%f").replace(tzinfo=UTC).timestamp()
    return Event(at, who, text if level in QUIET else f"{level} {text}")
