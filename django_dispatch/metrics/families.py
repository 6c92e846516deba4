"""Families of figures as plain values, and the histogram that is cheap enough for the hot path. In every process."""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

OTHER = "other"
MOST_TASKS = 500
MOST_QUEUES = 200

# Seconds: from what a wakeup takes to what a night of waiting is.
WAIT_BOUNDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
BODY_BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0)
CALL_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0)
BATCH_BOUNDS = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0)


class Histogram:
    """Counts by fixed upper bounds, each inclusive, the last one beyond all bounds; and the sum."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    def copy(self) -> "Histogram":
        """Return it as it is now."""
        copy = Histogram(self.bounds)
        copy.counts, copy.sum = self.counts.copy(), self.sum
        return copy

    @property
    def count(self) -> int:
        return sum(self.counts)


Value = int | float | Histogram


@dataclass(frozen=True, slots=True)
class Family:
    """Figures of one name. A counter's name ends in ``_total``; each sample has the values of the labels, in order."""

    name: str
    kind: Literal["counter", "gauge", "histogram"]
    help: str
    labels: tuple[str, ...] = ()
    samples: Sequence[tuple[tuple[str, ...], Value]] = field(default_factory=list)

    def document(self) -> Any:
        """Return the figures as JSON has them: one value if there are no labels, else a list."""
        rows = [dict(zip(self.labels, values, strict=True)) | _shown(value) for values, value in self.samples]
        return rows if self.labels else next(iter(rows), None)


def counter(name: str, help: str, labels: tuple[str, ...], values: Mapping[Any, int]) -> Family:
    """Return a counter of what a Counter has; its keys are label values, a tuple of them if there are several."""
    return Family(name, "counter", help, labels, _samples(values))


def gauge(name: str, help: str, labels: tuple[str, ...], values: Mapping[Any, float]) -> Family:
    """Return a gauge, in the same way."""
    return Family(name, "gauge", help, labels, _samples(values))


def histogram(name: str, help: str, labels: tuple[str, ...], values: Mapping[Any, Histogram]) -> Family:
    """Return histograms as they are now, in the same way."""
    return Family(name, "histogram", help, labels, _samples({key: value.copy() for key, value in values.items()}))


class Names:
    """Keeps the values of a label few: whoever enqueues may name a queue for each customer. The rest is ``other``."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: set[str] = set()

    def admit(self, name: str) -> str:
        """Return the name if it is one of the first so many, else ``other``."""
        if name in self._known:
            return name
        if len(self._known) >= self._most:
            return OTHER
        self._known.add(name)
        return name


def _samples(values: Mapping[Any, Any]) -> list[tuple[tuple[str, ...], Any]]:
    return sorted(
        ((key if isinstance(key, tuple) else (key,), value) for key, value in values.items()), key=lambda item: item[0]
    )


def _shown(value: Value) -> dict[str, Any]:
    if isinstance(value, Histogram):
        return {"count": value.count, "sum": round(value.sum, 6)}
    return {"value": value if isinstance(value, int) else round(value, 6)}
