"""The scenarios by name, in the order in which they are measured: what else builds on a drain rate comes after it."""

from collections.abc import Callable, Iterator

from testproject.bench.findings import Finding
from testproject.bench.ground import Ground

from .bloat import bloat
from .drain import drain, scale
from .enqueue import bulk, enqueue
from .fleet import fleet, memory, renewal
from .growth import growth
from .idle import idle, start
from .latency import delays, idle_latency, loaded_latency
from .limits import limits
from .notify import notify
from .recovery import dead_host, kill
from .slots import busy, mixed
from .stats import stats
from .wakeups import wakeups
from .writes import writes

SCENARIOS: dict[str, Callable[[Ground], Iterator[Finding]]] = {
    function.__name__: function
    for function in (
        *(drain, scale, busy, mixed),
        *(idle_latency, wakeups, loaded_latency, delays, kill, dead_host),
        *(enqueue, bulk, notify),
        *(growth, limits, memory, renewal, fleet),
        *(bloat, writes),
        *(idle, start, stats),
    )
}
