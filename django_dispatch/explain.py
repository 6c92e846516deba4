"""Say why a run is not running, or what it does: by what the database knows, in any process. Reading never writes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Literal

from django.db.models import Count, Q
from django.db.models.functions import Now

from . import conf
from .models import FINAL, PLACE, Bucket, Lease, PausedQueue, Run, Status
from .patterns import PRIVATE_PREFIX, private_queue, serves
from .rates import NO_LIMIT, Limit, Rate

CauseKind = Literal[
    "final",
    "running",
    "cancel_requested",
    "lease_expired",
    "lease_gone",
    "paused",
    "target_gone",
    "no_dispatcher",
    "not_served",
    "draining",
    "unknown_task",
    "due_later",
    "due",
    "key",
    "rate",
    "admission",
    "expired",
    "busy",
    "behind",
    "next",
]
COUNTED = 1000  # of the runs before one, at most: a backlog of millions is not counted
HOLDERS = 5
QUEUE_KEY = "queue:"
UNFINISHED = [status for status in Status if status not in FINAL]


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that holds, as a sentence and as data: names, numbers, and times in ISO format."""

    kind: CauseKind
    text: str
    data: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Explanation:
    """What holds for a run, the most telling first; ``str()`` is the sentences, ``as_document()`` is for JSON."""

    run_id: int
    task: str
    queue: str
    status: str
    causes: Sequence[Cause]

    def __str__(self) -> str:
        return "\n".join(cause.text for cause in self.causes)

    def as_document(self) -> dict[str, Any]:
        """Return it as a document for JSON."""
        causes = [{"kind": cause.kind, "text": cause.text, **cause.data} for cause in self.causes]
        return {"run": self.run_id, "task": self.task, "queue": self.queue, "status": self.status, "causes": causes}


def explain(run: Run | int) -> Explanation:
    """Return why the run, given as such or by its id, is not running, or what it does, as the database has it now.

    A few short queries on ``DISPATCH["DATABASE"]``, whatever the backlog. Raises Run.DoesNotExist.
    """
    run_id = run if isinstance(run, int) else run.pk
    runs = Run.objects.using(conf.current().database)
    found = runs.select_related("lease").annotate(now=Now()).get(pk=run_id)
    now: datetime = found.now
    if found.is_final:
        causes = [_final(found)]
    elif found.status == Status.RUNNING:
        causes = list(_running(found, now))
    else:
        causes = list(_waiting(found, now))
    return Explanation(found.pk, found.task, found.queue, found.status, causes)


def _final(run: Run) -> Cause:
    text = f"It ended {run.status} at {_shown(run.finished_at)}"
    error = _last_error(run)
    if error and run.status != Status.SUCCESSFUL:
        text += f": {error.get('message') or error.get('kind')}"
    return Cause("final", f"{text.rstrip('.')}.", {"finished_at": _iso(run.finished_at), "error": error.get("kind")})


def _running(run: Run, now: datetime) -> Iterator[Cause]:
    lease = run.lease
    since = {"since": _iso(run.started_at), "attempt": run.attempt}
    if lease is None:
        yield Cause(
            "lease_gone",
            "The lease that it runs under does not exist any more: the next live dispatcher that looks takes it back.",
            {"lease": str(run.lease_id)},
        )
    elif lease.expires_at <= now:
        yield Cause(
            "lease_expired",
            f"Its lease is held by {_named(lease)}, which is not live: it expired at {_shown(lease.expires_at)}. A live"
            f" dispatcher takes the run back within {_reclaim_seconds():.0f} s after that.",
            {"node": lease.node, "lease": str(lease.pk), "expired_at": _iso(lease.expires_at)},
        )
    else:
        text = f"It runs on {_named(lease)} since {_shown(run.started_at)}, attempt {run.attempt}."
        yield Cause("running", text, {"node": lease.node, "lease": str(lease.pk), **since})
    if run.cancel_requested_at is not None:
        yield Cause(
            "cancel_requested",
            f"It was asked to stop at {_shown(run.cancel_requested_at)}; it ends when its body has ended.",
            {"requested_at": _iso(run.cancel_requested_at)},
        )


def _waiting(run: Run, now: datetime) -> Iterator[Cause]:
    """What keeps a run that is SCHEDULED, BLOCKED or READY from being claimed; the queue's causes hold for all."""
    if run.expires_at is not None and run.attempt == 0 and run.expires_at <= now:
        text = f"It expired at {_shown(run.expires_at)} and will not be started: a dispatcher cancels it soon."
        yield Cause("expired", text, {"expired_at": _iso(run.expires_at)})
        return
    if run.status == Status.SCHEDULED:
        yield _scheduled(run, now)
    elif run.status == Status.BLOCKED:
        yield _blocked(run, now)
    hindered = False
    for cause in (_paused(run, now), _unserved(run, now)):
        if cause is not None:
            hindered = True
            yield cause
    if run.status == Status.READY and not hindered:
        yield from _in_line(run, now)


def _scheduled(run: Run, now: datetime) -> Cause:
    error = _last_error(run)
    reason = {"lost": "it was lost", "unknown_task": "nobody knew its task"}.get(error.get("kind", ""))
    if reason is None:
        reason = "it is tried again" if run.attempt else "it was enqueued for then"
    data = {"due_at": _iso(run.run_after), "reason": error.get("kind") or "delay"}
    if error.get("kind") == "unknown_task":
        nodes = sorted({str(one["executor"]) for one in _errors(run) if one.get("executor")})
        where = f" ({', '.join(nodes)})" if nodes else ""
        text = f"No dispatcher that claimed it{where} knows the task {run.task!r}; another look is due at"
        return Cause("unknown_task", f"{text} {_shown(run.run_after)}.", {**data, "nodes": nodes})
    if run.run_after is not None and run.run_after <= now:
        text = f"It has been due since {_shown(run.run_after)}: the next live dispatcher that looks makes it READY."
        return Cause("due", text, data)
    return Cause("due_later", f"It is due at {_shown(run.run_after)}: {reason}.", data)


def _blocked(run: Run, now: datetime) -> Cause:
    """At which limit it waits: who holds the places there, or when the rate lets the next one pass."""
    at = str(run.blocked_by)
    where, data = (f"key {at!r}", {"key": at})
    unfinished = Run.objects.using(run._state.db).filter(status__in=UNFINISHED)
    if at.startswith(QUEUE_KEY):
        queue = at.removeprefix(QUEUE_KEY)
        where, limit = f"the limit of queue {queue!r}", conf.current().queue_limits.get(queue, NO_LIMIT)
        holders = unfinished.filter(queue=queue, places=2)
    else:
        rate = Rate(run.rate_amount, run.rate_seconds) if run.rate_amount and run.rate_seconds else None
        limit = Limit(run.concurrency_limit if rate or run.concurrency_limit else 1, rate)
        holders = unfinished.filter(concurrency_key=at, concurrency_key__isnull=False, places__gt=0)
    if limit.concurrency is not None:
        held = list(holders.order_by("pk").values_list("pk", flat=True)[: limit.concurrency])
        if len(held) >= limit.concurrency:
            names = ", ".join(map(str, held[:HOLDERS])) + (", …" if len(held) > HOLDERS else "")
            text = f"It waits at {where}, which lets {limit.concurrency} run at once; held by run {names}."
            return Cause("key", text, {**data, "limit": limit.concurrency, "runs": held[:HOLDERS]})
    until = _next_token(run, at, limit.rate) if limit.rate is not None else None
    if until is not None and until > now:
        text = f"It waits at {where}, whose rate lets the next run pass at {_shown(until)}."
        return Cause("rate", text, {**data, "until": _iso(until)})
    return Cause(
        "admission", f"It waits at {where}, where a place is free: the next dispatcher that looks, soon.", data
    )


def _next_token(run: Run, key: str, rate: Rate) -> datetime | None:
    """When a bucket has its next token; None: it is full."""
    bucket = Bucket.objects.using(run._state.db).filter(pk=key).first()
    missing = 0.0 if bucket is None else max(0.0, 1 - bucket.tokens)
    return None if bucket is None else bucket.filled_at + timedelta(seconds=missing * rate.seconds / rate.amount)


def _paused(run: Run, now: datetime) -> Cause | None:
    paused = PausedQueue.objects.using(run._state.db).filter(pk=run.queue).first()
    if paused is None or (paused.paused_until is not None and paused.paused_until <= now):
        return None
    by = f" by {paused.paused_by}" if paused.paused_by else ""
    until = _shown(paused.paused_until) if paused.paused_until else "it is resumed"
    why = f": {paused.reason}" if paused.reason else ""
    return Cause(
        "paused",
        f"Queue {run.queue!r} is paused{by} since {_shown(paused.paused_at)} until {until}{why}.",
        {
            "queue": run.queue,
            "reason": paused.reason,
            "paused_by": paused.paused_by,
            "since": _iso(paused.paused_at),
            "until": _iso(paused.paused_until),
        },
    )


def _unserved(run: Run, now: datetime) -> Cause | None:
    live = _live(run, now)
    if run.queue.startswith(PRIVATE_PREFIX):
        if any(private_queue(lease.pk) == run.queue for lease in live):
            return None
        text = "It was for one dispatcher alone, which lives no more: the next one that looks cancels it."
        return Cause("target_gone", text, {"lease": run.queue.removeprefix(PRIVATE_PREFIX)})
    if not live:
        return Cause("no_dispatcher", "No dispatcher is live: start one with manage.py rundispatcher.")
    serving = [lease for lease in live if serves(_patterns(lease), run.queue)]
    if not serving:
        served = "; ".join(f"{lease.node}: {','.join(_patterns(lease))}" for lease in live)
        text = f"No live dispatcher serves queue {run.queue!r} (they serve {served})."
        return Cause("not_served", text, {"queue": run.queue, "nodes": [lease.node for lease in live]})
    if all(lease.state == Lease.State.DRAINING for lease in serving):
        nodes = [lease.node for lease in serving]
        text = f"All dispatchers that serve queue {run.queue!r} are draining: {', '.join(nodes)}."
        return Cause("draining", text, {"queue": run.queue, "nodes": nodes})
    return None


def _in_line(run: Run, now: datetime) -> Iterator[Cause]:
    leases = [lease for lease in _live(run, now) if _may_claim(lease, run.queue)]
    held = dict(
        Run.objects.using(run._state.db)
        .filter(lease__in=[lease.pk for lease in leases])
        .values_list("lease_id")
        .annotate(count=Count("pk"))
    )
    before = _count_before(run)
    if leases and all(held.get(lease.pk, 0) >= lease.slots for lease in leases):
        slots, taken = sum(lease.slots for lease in leases), sum(held.values())
        text = f"All {slots} slots of the dispatchers that serve queue {run.queue!r} are taken, by {taken} runs."
        yield Cause("busy", text, {"slots": slots, "runs": taken, "nodes": [lease.node for lease in leases]})
    if before:
        count = f"more than {COUNTED}" if before > COUNTED else str(before)
        text = f"{count.capitalize()} READY runs of queue {run.queue!r} come before it."
        data = {"queue": run.queue, "runs": min(before, COUNTED), "is_more": before > COUNTED}
        if run.fair_key is not None:
            text += f" Those of its fair key {run.fair_key!r} take turns with those of others."
            data["fair_key"] = run.fair_key
        yield Cause("behind", text, data)
    else:
        text = f"It is the next of queue {run.queue!r}: a dispatcher with a free slot claims it when it looks, soon."
        yield Cause("next", text, {"queue": run.queue})


def _may_claim(lease: Lease, queue: str) -> bool:
    if lease.state == Lease.State.DRAINING:
        return False
    return private_queue(lease.pk) == queue or serves(_patterns(lease), queue)


def _count_before(run: Run) -> int:
    ready = Run.objects.using(run._state.db).filter(status=Status.READY, queue=run.queue).alias(place=PLACE)
    place = run.pk * 2 if run.turn is None else run.turn
    is_before = Q(priority__gt=run.priority) | Q(priority=run.priority, place__lt=place)
    # In the order of the claim's index, so that it is that which is read, as far as the limit.
    return ready.filter(is_before, priority__gte=run.priority).order_by("-priority", "place")[: COUNTED + 1].count()


def _live(run: Run, now: datetime) -> list[Lease]:
    return list(Lease.objects.using(run._state.db).filter(expires_at__gt=now).order_by("node", "pk"))


def _patterns(lease: Lease) -> list[str]:
    return [str(pattern) for pattern in lease.queues] if isinstance(lease.queues, list) else []


def _errors(run: Run) -> list[dict[str, Any]]:
    # Rows of plain SQL may hold anything.
    return [error for error in run.errors if isinstance(error, dict)] if isinstance(run.errors, list) else []


def _last_error(run: Run) -> dict[str, Any]:
    return (_errors(run) or [{}])[-1]


def _named(lease: Lease) -> str:
    return f"{lease.node} (pid {lease.pid} on {lease.host})"


def _reclaim_seconds() -> float:
    # Two seconds of grace, and a sweep every half TTL, give or take a fifth.
    return 2 + conf.current().lease_ttl_seconds / 2 * 1.2


def _shown(moment: datetime | None) -> str:
    return "an unknown time" if moment is None else moment.isoformat(sep=" ", timespec="seconds")


def _iso(moment: datetime | None) -> str | None:
    return None if moment is None else moment.isoformat()
