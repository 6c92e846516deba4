"""Which queues this dispatcher serves, and in which order: each gets its share, by weight. In the dispatcher."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from ..patterns import plain_names, serves, weight_of

NO_WEIGHTS: Mapping[str, int] = MappingProxyType({})


class Queues:
    """The names to claim from. Who has had least for its weight comes first, so that none starves the rest.

    Each run that a queue was given moves its time on by 1 / weight; the queue whose time is the earliest is next. A
    queue that had nothing to do begins where the others are: idleness is not saved up.
    """

    def __init__(self, patterns: Sequence[str] | None, weights: Mapping[str, int] = NO_WEIGHTS) -> None:
        self._patterns = tuple(patterns or ("*",))
        self._weights = weights
        plain = plain_names(self._patterns)
        self.learns = plain is None
        """Whether queues are served whose names are not known yet."""
        self._times = dict.fromkeys(plain or (), 0.0)
        self._now = 0.0
        self._turn = 0
        self.private: str | None = None
        """The queue of our lease."""

    def add(self, names: Iterable[str]) -> bool:
        """Take note of queues that have READY runs; return whether any of them is served here."""
        is_served = False
        for name in names:
            if self.learns and name not in self._times and serves(self._patterns, name):
                self._times[name] = self._now
            is_served = is_served or name in self._times or name == self.private
        return is_served

    def names(self) -> list[str]:
        """Return the queues in the order in which they are served this time. Equals take turns."""
        names = list(self._times)
        self._turn = (self._turn + 1) % max(1, len(names))
        names = names[self._turn :] + names[: self._turn]
        names.sort(key=self._time_of)
        return names if self.private is None else [self.private, *names]

    def note_claimed(self, names: Iterable[str]) -> None:
        """Take note of the queue of each run that was claimed."""
        counts = {name: count for name, count in Counter(names).items() if name in self._times}
        if not counts:
            return
        began = min(map(self._time_of, counts))
        for name, count in counts.items():
            self._times[name] = self._time_of(name) + count / weight_of(name, self._weights)
        self._now = max(self._now, began)

    def _time_of(self, name: str) -> float:
        return max(self._now, self._times[name])
