"""Which queues this dispatcher serves: those it was told, or all that it learns of. In the dispatcher."""

from collections.abc import Iterable


class Queues:
    """The names to claim from. Each call of names() begins with another queue, so that none starves the rest."""

    def __init__(self, served: tuple[str, ...] | None) -> None:
        self.serves_all = served is None
        self._names = list(served or ())
        self._turn = 0

    def add(self, names: Iterable[str]) -> bool:
        """Take note of queues that have READY runs; return whether any of them is served here."""
        is_served = False
        for name in names:
            if self.serves_all and name not in self._names:
                self._names.append(name)
            is_served = is_served or name in self._names
        return is_served

    def names(self) -> list[str]:
        """Return the queues in the order in which they are served this time."""
        self._turn = (self._turn + 1) % max(1, len(self._names))
        return self._names[self._turn :] + self._names[: self._turn]
