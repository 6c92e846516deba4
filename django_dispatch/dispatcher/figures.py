"""A dispatcher's metrics: what it counts, and how its parts are now, as families of figures. On its loop.

The one source of what the HTTP port and the command ``metrics`` say. Looking changes nothing and asks no database.
"""

from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..executors.fence import now_ns
from ..messages import Kind
from ..metrics import enqueued
from ..metrics.backlogs import backlog_families
from ..metrics.families import Family, counter, gauge, histogram

if TYPE_CHECKING:
    from .service import Dispatcher

STATES = ("active", "paused", "grounded", "draining")


def families(dispatcher: "Dispatcher") -> list[Family]:
    """Return all that there is to say."""
    backlogs = dispatcher.backlogs
    return [
        *_names_of_dispatcherd(dispatcher),
        *_itself(dispatcher),
        *_runs(dispatcher),
        *_durations(dispatcher),
        *_held(dispatcher),
        *_executors(dispatcher),
        *_lease(dispatcher),
        *_wakeups(dispatcher),
        *_messages(dispatcher),
        *_loops(dispatcher),
        *backlog_families(backlogs.known, backlogs.age_seconds),
    ]


def _names_of_dispatcherd(dispatcher: "Dispatcher") -> Iterator[Family]:
    """As dispatcherd has them, the last one's type too: who moves here keeps dashboards."""
    stats = dispatcher.stats
    yield counter(
        "dispatcher_messages_received_total",
        "Payloads received on the channels of control commands and messages.",
        (),
        {(): stats.messages_received},
    )
    yield counter(
        "dispatcher_control_messages_count_total",
        "Control commands received.",
        (),
        {(): stats.control_commands.total()},
    )
    yield counter(
        "dispatcher_worker_count_total",
        "Executors there are now. (A counter by its type only, as in dispatcherd.)",
        (),
        {(): len(dispatcher.pool.executors)},
    )


def _itself(dispatcher: "Dispatcher") -> Iterator[Family]:
    info = {(dispatcher.settings.node, dispatcher.version): 1}
    yield gauge("django_dispatch_dispatcher_info", "Always 1: who this is.", ("node", "version"), info)
    yield gauge(
        "django_dispatch_dispatcher_started_timestamp_seconds",
        "When this dispatcher began, in seconds since 1970.",
        (),
        {(): dispatcher.stats.started_at},
    )
    states = {state: int(state == dispatcher.state) for state in STATES}
    yield gauge("django_dispatch_dispatcher_state", "1 for the state that it is in.", ("state",), states)


def _runs(dispatcher: "Dispatcher") -> Iterator[Family]:
    stats = dispatcher.stats
    by_task_and_queue = ("task", "queue")
    yield counter(enqueued.NAME, enqueued.HELP, by_task_and_queue, stats.runs_enqueued)
    yield counter("django_dispatch_runs_claimed_total", "Runs claimed.", (), {(): stats.runs_claimed})
    yield counter("django_dispatch_runs_started_total", "Bodies begun.", by_task_and_queue, stats.runs_started)
    yield counter(
        "django_dispatch_runs_finished_total",
        "Claims ended, by what the run has become: READY and SCHEDULED mean again.",
        ("task", "queue", "status"),
        stats.runs_finished,
    )
    yield counter(
        "django_dispatch_outcomes_dropped_total",
        "Outcomes that did not count, for the lease was lost.",
        (),
        {(): stats.outcomes_dropped},
    )
    yield counter(
        "django_dispatch_runs_reclaimed_total",
        "Runs taken back from lost leases, by what they have become.",
        ("queue", "status"),
        stats.runs_reclaimed,
    )


def _durations(dispatcher: "Dispatcher") -> Iterator[Family]:
    stats = dispatcher.stats
    yield histogram(
        "django_dispatch_run_wait_seconds",
        "From when a run was due, by the database's clock, to the start of its body.",
        ("queue",),
        stats.wait_seconds,
    )
    yield histogram(
        "django_dispatch_run_body_seconds", "From a body's start to its end.", ("task",), stats.body_seconds
    )
    yield histogram(
        "django_dispatch_claim_seconds",
        "Duration of the statement that finishes and claims.",
        (),
        {(): stats.claim_seconds},
    )
    yield histogram(
        "django_dispatch_claim_runs", "Runs of a claim that there was room for.", (), {(): stats.claim_runs}
    )


def _held(dispatcher: "Dispatcher") -> Iterator[Family]:
    pool = dispatcher.pool
    flights = pool.flights()
    running = sum(flight.started_at is not None for flight in flights)
    yield gauge(
        "django_dispatch_runs_held",
        "Runs that this dispatcher has claimed: their bodies run, or have yet to begin.",
        ("state",),
        {"running": running, "waiting": len(flights) - running + len(pool.waiting)},
    )


def _executors(dispatcher: "Dispatcher") -> Iterator[Family]:
    stats, pool = dispatcher.stats, dispatcher.pool
    slots: Counter[tuple[str, str]] = Counter({(kind.value, state): 0 for kind in Kind for state in ("busy", "free")})
    there: Counter[str] = Counter({kind.value: 0 for kind in Kind})
    for executor in pool.executors.values():
        busy = min(executor.capacity, sum(flight.started_at is not None for flight in executor.flights.values()))
        there[executor.kind.value] += 1
        slots[executor.kind.value, "busy"] += busy
        if executor.is_open:
            slots[executor.kind.value, "free"] += executor.capacity - busy
    yield gauge("django_dispatch_slots", "Room for bodies: taken, or free.", ("kind", "state"), slots)
    yield gauge("django_dispatch_executors", "Executors there are.", ("kind",), there)
    yield counter("django_dispatch_executors_started_total", "Executors started.", ("kind",), stats.executors_started)
    yield counter(
        "django_dispatch_executors_exited_total",
        "Executors that ended, by cause; itself: it was none of the dispatcher's.",
        ("cause",),
        stats.executors_exited,
    )


def _lease(dispatcher: "Dispatcher") -> Iterator[Family]:
    keeper, has_lease = dispatcher.keeper, dispatcher.claims.lease_id is not None
    seconds_left = (dispatcher.board.deadline_ns() - now_ns()) / 1e9 if has_lease else 0.0
    yield counter("django_dispatch_leases_acquired_total", "Leases acquired.", (), {(): keeper.acquired})
    yield counter("django_dispatch_lease_renewals_total", "Renewals of the lease.", (), {(): keeper.renewed})
    yield counter("django_dispatch_leases_lost_total", "Leases lost.", (), {(): dispatcher.stats.leases_lost})
    yield gauge(
        "django_dispatch_lease_seconds_left",
        "Until bodies are stopped if no renewal comes; 0 without a lease.",
        (),
        {(): max(0.0, seconds_left)},
    )


def _wakeups(dispatcher: "Dispatcher") -> Iterator[Family]:
    stats, listener, bell = dispatcher.stats, dispatcher.ears.listener, dispatcher.ears.bell
    yield counter(
        "django_dispatch_wakeups_received_total", "Wakeups received.", ("source", "kind"), stats.wakeups_received
    )
    yield histogram(
        "django_dispatch_wakeup_seconds",
        "From the sending of a wakeup, by the dispatcher to itself, to its arrival.",
        ("source",),
        stats.wakeup_seconds,
    )
    if listener is not None:
        yield gauge(
            "django_dispatch_listener_connected",
            "1 if the listening connection stands.",
            (),
            {(): int(listener.is_connected)},
        )
        yield gauge(
            "django_dispatch_listener_proved",
            "1 if the listening connection has brought a wakeup that was sent to ourselves.",
            (),
            {(): int(listener.is_proved)},
        )
    if bell is not None:
        yield gauge(
            "django_dispatch_redis_connected", "1 if wakeups by Redis are proved.", (), {(): int(bell.is_connected)}
        )
        yield counter(
            "django_dispatch_wakeups_refused_total",
            "What came where wakeups come, and is none.",
            ("source",),
            {(source,): number for source, number in stats.wakeups_refused.items()},
        )


def _messages(dispatcher: "Dispatcher") -> Iterator[Family]:
    stats = dispatcher.stats
    yield counter(
        "django_dispatch_control_commands_total", "Control commands done.", ("command",), stats.control_commands
    )
    yield counter("django_dispatch_messages_refused_total", "Messages refused.", ("reason",), stats.messages_refused)
    yield counter(
        "django_dispatch_runs_received_total",
        "Runs that this dispatcher recorded for messages.",
        (),
        {(): stats.runs_received},
    )


def _loops(dispatcher: "Dispatcher") -> Iterator[Family]:
    loops, late = dispatcher.stats.loops, dispatcher.stats.late()
    done = {name: loop.last_success_at for name, loop in loops.items() if loop.last_success_at is not None}
    yield gauge(
        "django_dispatch_loop_last_success_timestamp_seconds",
        "When each loop last did its work, in seconds since 1970.",
        ("loop",),
        done,
    )
    yield gauge(
        "django_dispatch_loop_late",
        "1 for a loop that has not done its work for too long.",
        ("loop",),
        {name: int(name in late) for name in loops},
    )
