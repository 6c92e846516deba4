"""How many runs at once, and how many in a time: what a limit says; pure, in any process."""

import re
from dataclasses import dataclass
from typing import NamedTuple

from .exceptions import InvalidOption

MOST = 1_000_000
PERIODS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_RATE = re.compile(r"([1-9]\d{0,6})/([smhd])", re.ASCII)


class Rate(NamedTuple):
    """So many runs in so many seconds: a bucket that holds ``amount`` and fills in this time."""

    amount: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Limit:
    """How many runs at once, and how many in a time; None: any number."""

    concurrency: int | None = None
    rate: Rate | None = None


NO_LIMIT = Limit()


def check_concurrency(value: object) -> int:
    """Return how many at once. Raises InvalidOption if that is no number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MOST:
        raise InvalidOption(f"concurrency must be a whole number from 1 to {MOST:,}, not {shown(value)}.")
    return value


def check_rate(value: object) -> Rate:
    """Read ``"100/m"``: a number, and a second, minute, hour or day. Raises InvalidOption."""
    found = _RATE.fullmatch(value) if isinstance(value, str) else None
    if found is None:
        raise InvalidOption(f"rate must be a text such as '100/m': a number, and s, m, h or d; not {shown(value)}.")
    return Rate(min(int(found[1]), MOST), PERIODS[found[2]])


def check_limit(value: object) -> Limit:
    """Return the limit of a queue: a number at once, a rate, or a dict of ``concurrency`` and ``rate``.

    Raises InvalidOption.
    """
    if isinstance(value, str):
        return Limit(rate=check_rate(value))
    if not isinstance(value, dict):
        return Limit(concurrency=check_concurrency(value))
    if not value or not set(value) <= {"concurrency", "rate"}:
        raise InvalidOption(f"a limit must be a number, a rate, or a dict of concurrency and rate, not {shown(value)}.")
    concurrency, rate = value.get("concurrency"), value.get("rate")
    return Limit(
        None if concurrency is None else check_concurrency(concurrency), None if rate is None else check_rate(rate)
    )


def shown(value: object) -> str:
    """Return a repr that is short, and exists: a repr may raise, as that of an int of 5000 digits does."""
    try:
        return f"{value!r:.100}"
    except Exception:
        return f"an object of type {type(value).__name__}"
