"""All that the audit looks at: plain facts, with times as seconds since 1970 by the one clock of the machine."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

Fate = Literal["committed", "rolled back", "in doubt"]


@dataclass(frozen=True)
class Enqueue:
    """One transaction of a writer: the keys of the runs that it enqueued, and what became of it."""

    keys: Sequence[str]
    fate: Fate


@dataclass(frozen=True)
class Start:
    """One start of a body. ``seen_at`` is its last sign of life; ``how`` it ended is empty when it was killed."""

    run_id: int
    epoch: int
    attempt: int
    pid: int
    at: float
    seen_at: float
    how: str = ""
    value: Any = None
    overlaps: Sequence[int] = ()
    """Epochs of earlier starts whose processes were alive, and still in that body, when this one began."""
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Change:
    """One change of a run's row. ``old_status`` is None when it was inserted, ``status`` when it was deleted."""

    at: float
    run_id: int
    old_status: str | None
    status: str | None
    epoch: int = 0
    attempt: int = 0
    failures: int = 0
    interruptions: int = 0
    lease: str | None = None
    lease_left: float | None = None
    """How many seconds its lease was to live then, if there was one."""
    key: str | None = None
    task: str = ""
    max_attempts: int | None = None
    on_lost: str = ""
    run_after: float | None = None
    result: Any = None
    errors: Sequence[tuple[int, str]] = ()
    rerun_of: int | None = None
    actor: str = ""


@dataclass(frozen=True)
class Effect:
    """A row that a body wrote in a transaction of its own, and when that was committed."""

    run_id: int
    epoch: int
    committed_at: float


@dataclass(frozen=True)
class Frozen:
    """A whole family, executors and zygote too, stood still: the one case in which a body may outlive its claim."""

    pids: frozenset[int]
    began_at: float
    ended_at: float


@dataclass
class Evidence:
    """What is left when everything has ended."""

    enqueues: Sequence[Enqueue] = ()
    starts: Sequence[Start] = ()
    changes: Sequence[Change] = ()
    effects: Sequence[Effect] = ()
    frozen: Sequence[Frozen] = ()
    asked: Mapping[str, set[int]] = field(default_factory=lambda: {"cancel": set(), "rerun": set(), "delete": set()})
    rows: Mapping[int, str] = field(default_factory=dict)
    """The status of every run that is in the table at the end."""
    left_behind: Sequence[str] = ()
    """Leases, sessions, processes, descriptors, files: each in words."""
    ended_at: float = 0.0

    @cached_property
    def _effects(self) -> Mapping[int, Sequence[Effect]]:
        found: dict[int, list[Effect]] = {}
        for effect in self.effects:
            found.setdefault(effect.run_id, []).append(effect)
        return found

    def effects_of(self, run_id: int) -> Sequence[Effect]:
        """Return what a run's bodies have committed."""
        return self._effects.get(run_id, ())
