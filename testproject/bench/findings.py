"""What a scenario found: samples of ours, of the limit beside it, and whether the target is met. Pure."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal


@dataclass(frozen=True)
class Target:
    """A floor (``at least``) or a ceiling (``at most``) of the ratio to the limit, or of the value itself."""

    word: Literal["at least", "at most"]
    number: float
    of: Literal["ratio", "value"] = "ratio"

    def is_met_by(self, found: float) -> bool:
        return found >= self.number if self.word == "at least" else found <= self.number

    def share(self, found: float) -> float:
        """Return how far along the way to the target this is; 1 and more is there."""
        share = found / self.number if self.word == "at least" else self.number / max(found, 1e-9)
        return max(share, 0.0)


@dataclass(frozen=True)
class Finding:
    """One line of the table. ``at`` is the quantile of both sides that is compared; 0.5 is the median."""

    what: str
    unit: str
    ours: Sequence[float]
    limit: Sequence[float] = ()
    limit_name: str = ""
    at: float = 0.5
    target: Target | None = None
    note: str = ""
    scenario: str = ""

    @property
    def value(self) -> float:
        return quantile(self.ours, self.at)

    @property
    def limit_value(self) -> float | None:
        return quantile(self.limit, self.at) if self.limit else None

    @property
    def ratio(self) -> float | None:
        return self.value / self.limit_value if self.limit_value else None

    @property
    def judged(self) -> float | None:
        """What the target is compared with."""
        return self.value if self.target is not None and self.target.of == "value" else self.ratio

    @property
    def is_met(self) -> bool | None:
        """Whether the target is met; None if there is none."""
        return None if self.target is None or self.judged is None else self.target.is_met_by(self.judged)

    def as_dict(self) -> dict[str, Any]:
        """Return all of it for a JSON document, with what follows from the samples."""
        derived = {"value": self.value, "limit_value": self.limit_value, "ratio": self.ratio, "is_met": self.is_met}
        return asdict(self) | derived

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> "Finding":
        """Return the finding of which this is the JSON document."""
        own = {name: document[name] for name in cls.__dataclass_fields__ if name != "target"}
        return cls(**own, target=Target(**document["target"]) if document["target"] else None)


def quantile(samples: Sequence[float], at: float) -> float:
    """Return the smallest sample that a share ``at`` of all does not exceed; for 0.5 the median."""
    if at == 0.5:
        return statistics.median(samples)
    return sorted(samples)[min(len(samples) - 1, int(len(samples) * at))]


def by_turns(rounds: int, sides: Mapping[str, Callable[[], float]]) -> dict[str, list[float]]:
    """Measure each side once a round, every second round backwards, so that a drift of the machine favours nobody."""
    found: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds):
        for name in list(sides)[:: 1 if number % 2 == 0 else -1]:
            found[name].append(sides[name]())
    return found
