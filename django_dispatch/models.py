"""What the database remembers: one row a run, one row a dispatcher's lease, one row a schedule, one row a rate's key.

Only the store writes runs and leases; a schedule may be edited by anybody at any time. The life of a run, and who moves
it on:

=============  ==========================================================  =========================================
status         meaning                                                     moved on by
=============  ==========================================================  =========================================
SCHEDULED      due later: ``run_after``, or waiting for a retry            a dispatcher's promote step, to READY
READY          may be claimed                                              claim, to RUNNING
BLOCKED        waits at a limit: ``blocked_by`` says at which              admission, to READY
RUNNING        claimed under a lease                                       finish, release or reclaim
SUCCESSFUL     the body returned                                           final: prune, after its retention
FAILED         it raised too often, timed out, or was lost too often       final: prune, after its retention
CANCELLED      somebody cancelled it                                       final: prune, after its retention
=============  ==========================================================  =========================================
"""

from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Coalesce, Now
from django.utils.translation import gettext_lazy as _

from .choices import FINAL, UNFINISHED, CatchUp, OnDuplicate, OnLost, Overlap, Source, Status

if TYPE_CHECKING:
    from .explain import Explanation

__all__ = [
    "FINAL",
    "LINE",
    "PLACE",
    "WAITS_ITS_TURN",
    "Bucket",
    "CatchUp",
    "Lease",
    "OnDuplicate",
    "OnLost",
    "Overlap",
    "PausedQueue",
    "Run",
    "Schedule",
    "Source",
    "Status",
    "Waiter",
]


# Where a run stands among those of its priority; and in which line: at a limit, or in its queue.
PLACE = Coalesce(F("turn"), F("id") * 2)
LINE = Coalesce(F("blocked_by"), F("queue"))
WAITS_ITS_TURN = Q(turn__isnull=False, status__in=["READY", "BLOCKED"])


class Lease(models.Model):
    """One dispatcher boot's time-limited right to the runs that point to it."""

    class State(models.TextChoices):
        ACTIVE = "ACTIVE", _("active")
        DRAINING = "DRAINING", _("draining")

    # Made by the dispatcher: a sequence can repeat itself after a failover, and this is half of the token.
    id = models.UUIDField(primary_key=True, editable=False)
    node = models.CharField(_("node"), max_length=200, db_default="")
    host = models.CharField(_("host"), max_length=255, db_default="")
    pid = models.PositiveIntegerField(_("process id"), db_default=0)
    process = models.JSONField(_("process identity"), default=dict, db_default={})
    queues = models.JSONField(_("queues"), default=list, db_default=[])
    slots = models.PositiveIntegerField(_("slots"), db_default=0)
    state = models.CharField(_("state"), max_length=10, choices=State.choices, db_default=State.ACTIVE)
    version = models.CharField(_("version"), max_length=50, db_default="")
    acquired_at = models.DateTimeField(_("acquired at"), db_default=Now())
    renewed_at = models.DateTimeField(_("renewed at"), db_default=Now())
    # Not indexed: an index would keep the renewals, the only frequent update here, from being heap-only.
    expires_at = models.DateTimeField(_("expires at"), db_default=Now())

    class Meta:
        verbose_name = _("lease")
        verbose_name_plural = _("leases")

    def __str__(self) -> str:
        return f"{self.node} ({str(self.id)[:8]})"


class Schedule(models.Model):
    """A rule that enqueues runs of a task at times: ``cron``, or ``every`` so often, or ``once_at`` a time.

    What the database's trigger sees to, whoever writes: a changed rule gets a new ``revision`` and wakes dispatchers,
    and ``next_at`` and ``last_at`` of a rule that has not changed never move back.
    """

    class Source(models.TextChoices):
        CODE = "code", _("code")
        ADMIN = "admin", _("admin")

    id = models.BigAutoField(primary_key=True)
    name = models.CharField(_("name"), max_length=255, unique=True)
    task = models.CharField(_("task"), max_length=255)
    args = models.JSONField(_("args"), default=list, blank=True, db_default=[])
    kwargs = models.JSONField(_("kwargs"), default=dict, blank=True, db_default={})
    # Null means: as the task says.
    queue = models.CharField(_("queue"), max_length=100, null=True, blank=True)
    priority = models.SmallIntegerField(_("priority"), null=True, blank=True)
    enabled = models.BooleanField(_("enabled"), default=True, db_default=True)
    cron = models.CharField(_("cron"), max_length=100, null=True, blank=True)
    every = models.DurationField(_("every"), null=True, blank=True)
    once_at = models.DateTimeField(_("once at"), null=True, blank=True)
    time_zone = models.CharField(_("time zone"), max_length=64, default="UTC", db_default="UTC")
    start_at = models.DateTimeField(_("start at"), null=True, blank=True)
    end_at = models.DateTimeField(_("end at"), null=True, blank=True)
    catch_up = models.CharField(
        _("catch up"), max_length=4, choices=CatchUp.choices, default=CatchUp.LAST, db_default=CatchUp.LAST
    )
    catch_up_window = models.DurationField(
        _("catch-up window"), default=timedelta(days=1), db_default=timedelta(days=1)
    )
    overlap = models.CharField(
        _("overlap"), max_length=5, choices=Overlap.choices, default=Overlap.ALLOW, db_default=Overlap.ALLOW
    )
    # Null: there is no next time, or it has not been worked out: then planned_revision is behind.
    next_at = models.DateTimeField(_("next at"), null=True, blank=True, editable=False)
    last_at = models.DateTimeField(_("last at"), null=True, blank=True, editable=False)
    revision = models.PositiveIntegerField(_("revision"), default=1, db_default=1, editable=False)
    planned_revision = models.PositiveIntegerField(_("planned revision"), default=0, db_default=0, editable=False)
    problem = models.TextField(_("problem"), default="", blank=True, db_default="", editable=False)
    source = models.CharField(
        _("source"),
        max_length=5,
        choices=Source.choices,
        default=Source.ADMIN,
        db_default=Source.ADMIN,
        editable=False,
    )
    # When a dispatcher last had it in its code; one that none has any more is not due.
    declared_at = models.DateTimeField(_("declared at"), null=True, blank=True, editable=False)

    class Meta:
        verbose_name = _("schedule")
        verbose_name_plural = _("schedules")

    def __str__(self) -> str:
        return self.name


class Run(models.Model):
    """One enqueued call of a task, from enqueue to a final status."""

    id = models.BigAutoField(primary_key=True)
    task = models.CharField(_("task"), max_length=255)
    queue = models.CharField(_("queue"), max_length=100, db_default="default")
    priority = models.SmallIntegerField(_("priority"), db_default=0)
    status = models.CharField(_("status"), max_length=10, choices=Status.choices, db_default=Status.READY)
    args = models.JSONField(_("args"), default=list, db_default=[])
    kwargs = models.JSONField(_("kwargs"), default=dict, db_default={})
    run_after = models.DateTimeField(_("run after"), null=True, blank=True)
    # lease and epoch are the token. The epoch counts claims and is never reset or lowered.
    lease = models.ForeignKey(Lease, models.DO_NOTHING, null=True, blank=True, db_constraint=False, db_index=False)
    epoch = models.PositiveIntegerField(_("epoch"), db_default=0)
    # Bodies started; of these, verdicts against the run; and deaths of its executor or dispatcher.
    attempt = models.PositiveSmallIntegerField(_("attempt"), db_default=0)
    failures = models.PositiveSmallIntegerField(_("failures"), db_default=0)
    interruptions = models.PositiveSmallIntegerField(_("interruptions"), db_default=0)
    # Null means: as the task says.
    max_attempts = models.PositiveSmallIntegerField(_("max attempts"), null=True, blank=True)
    timeout = models.DurationField(_("timeout"), null=True, blank=True)
    on_lost = models.CharField(
        _("on lost"), max_length=7, choices=OnLost.choices, blank=True, db_default=OnLost.REQUEUE
    )
    source = models.CharField(_("source"), max_length=10, choices=Source.choices, db_default=Source.SQL)
    # The schedule that the run is an occurrence of, and which: its time by the rule. Run by hand it has no such time.
    schedule = models.ForeignKey(
        Schedule, models.DO_NOTHING, null=True, blank=True, db_constraint=False, db_index=False
    )
    scheduled_for = models.DateTimeField(_("scheduled for"), null=True, blank=True)
    # Of the message that the run came by, if it did: known as long as the row, so that no message makes two runs.
    uuid = models.CharField(_("message uuid"), max_length=255, null=True, blank=True)
    unique_key = models.CharField(_("unique key"), max_length=255, null=True, blank=True)
    # It keeps its key until then, ended or not.
    unique_until = models.DateTimeField(_("unique until"), null=True, blank=True)
    on_duplicate = models.CharField(
        _("on duplicate"), max_length=9, choices=OnDuplicate.choices, blank=True, db_default=OnDuplicate.PARALLEL
    )
    # How many runs of the key may be READY or RUNNING, and become so in so many seconds.
    concurrency_key = models.CharField(_("concurrency key"), max_length=255, null=True, blank=True)
    concurrency_limit = models.PositiveIntegerField(_("concurrency limit"), null=True, blank=True)
    rate_amount = models.PositiveIntegerField(_("rate amount"), null=True, blank=True)
    rate_seconds = models.FloatField(_("rate seconds"), null=True, blank=True)
    # Where it waits while BLOCKED: at its concurrency key, then at its queue's, which is "queue:" and the name.
    blocked_by = models.CharField(_("blocked by"), max_length=255, null=True, blank=True)
    # Where it holds a place while it has not ended: 1: at its key; 2: at its key, if it has one, and at its queue.
    places = models.PositiveSmallIntegerField(_("places"), db_default=0)
    # Whose it is: the runs of each take turns in the line in which they wait. A trigger gives the turn (on SQLite, the
    # store), or the promotion, when the run comes into a line; in halves of ids, for a run without one stands at its
    # own id.
    fair_key = models.CharField(_("fair key"), max_length=255, null=True, blank=True)
    turn = models.BigIntegerField(_("turn"), null=True, blank=True, editable=False)
    # Not started by then, it never will be. Says nothing about a run that was started once.
    expires_at = models.DateTimeField(_("expires at"), null=True, blank=True)
    cancel_requested_at = models.DateTimeField(_("cancel requested at"), null=True, blank=True)
    progress = models.JSONField(_("progress"), null=True, blank=True)
    result = models.JSONField(_("result"), null=True, blank=True)
    errors = models.JSONField(_("errors"), default=list, db_default=[])
    meta = models.JSONField(_("meta"), default=dict, db_default={})
    # Seconds by final status, null: for ever. None at all: as RETENTION says when it is pruned.
    retention = models.JSONField(_("retention"), null=True, blank=True)
    enqueued_at = models.DateTimeField(_("enqueued at"), db_default=Now())
    # Since when it can be claimed, if not since it was enqueued: it was due later, or it is READY again.
    ready_at = models.DateTimeField(_("ready at"), null=True, blank=True)
    started_at = models.DateTimeField(_("started at"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)

    class Meta:
        verbose_name = _("run")
        verbose_name_plural = _("runs")
        # Every index is partial: each full one would cost two more entries a run.
        indexes = [
            # claim: the READY runs of one queue, best first
            models.Index(
                F("queue"), F("priority").desc(), PLACE, name="dispatch_run_claim", condition=Q(status="READY")
            ),
            # promote: the SCHEDULED runs, next due first
            models.Index(fields=["run_after"], name="dispatch_run_promote", condition=Q(status="SCHEDULED")),
            # expire: the runs that wait for their first start, next to expire first
            models.Index(
                fields=["expires_at"],
                name="dispatch_run_expire",
                condition=Q(attempt=0, expires_at__isnull=False, status__in=["SCHEDULED", "READY", "BLOCKED"]),
            ),
            # reclaim, release, cancel: the runs of one lease
            models.Index(fields=["lease"], name="dispatch_run_lease", condition=Q(lease__isnull=False)),
            # admit: who waits at a limit, best first; and at which limits anybody does
            models.Index(
                F("blocked_by"),
                F("priority").desc(),
                PLACE,
                name="dispatch_run_blocked",
                condition=Q(status="BLOCKED"),
            ),
            # a turn: the next one in a line; and the last one of a fair key there
            models.Index(LINE, F("priority"), F("turn"), name="dispatch_run_turns", condition=WAITS_ITS_TURN),
            models.Index(
                LINE, F("priority"), F("fair_key"), F("turn"), name="dispatch_run_fair", condition=WAITS_ITS_TURN
            ),
            # admit: how many places of a key are taken, and of a queue
            models.Index(
                fields=["concurrency_key"],
                name="dispatch_run_key_places",
                condition=Q(concurrency_key__isnull=False, places__gt=0, status__in=UNFINISHED),
            ),
            models.Index(
                fields=["queue"],
                name="dispatch_run_queue_places",
                condition=Q(places=2, status__in=UNFINISHED),
            ),
            # fire: whether a run of a schedule has not ended
            models.Index(
                fields=["schedule"],
                name="dispatch_run_overlap",
                condition=Q(schedule__isnull=False, finished_at__isnull=True),
            ),
            # prune: the final runs that are kept as RETENTION says, oldest first
            models.Index(
                fields=["finished_at"],
                name="dispatch_run_prune",
                condition=Q(finished_at__isnull=False, retention__isnull=True),
            ),
            # A migration makes one more, dispatch_run_prune_own: the others, by when each may go.
        ]
        constraints = [
            # unique: at most one waiting or running run a key
            models.UniqueConstraint(
                fields=["unique_key"], name="dispatch_run_unique", condition=Q(unique_key__isnull=False)
            ),
            # receive: each message that every dispatcher hears makes one run
            models.UniqueConstraint(fields=["uuid"], name="dispatch_run_uuid", condition=Q(uuid__isnull=False)),
            # fire: each occurrence is one run
            models.UniqueConstraint(
                fields=["schedule", "scheduled_for"], name="dispatch_run_slot", condition=Q(schedule__isnull=False)
            ),
            models.CheckConstraint(name="dispatch_run_priority", condition=Q(priority__range=(-100, 100))),
            models.CheckConstraint(
                name="dispatch_run_running_has_lease",
                condition=Q(status="RUNNING", lease__isnull=False) | (~Q(status="RUNNING") & Q(lease__isnull=True)),
            ),
            # Else a plain INSERT with run_after alone would be READY: run at once.
            models.CheckConstraint(
                name="dispatch_run_scheduled_has_run_after",
                condition=Q(status="SCHEDULED", run_after__isnull=False)
                | (~Q(status="SCHEDULED") & Q(run_after__isnull=True)),
            ),
            # No statement, of whomever, gets a run past its limit: only admission gives places.
            models.CheckConstraint(
                name="dispatch_run_ready_has_place",
                condition=Q(concurrency_key__isnull=True) | Q(places__gt=0) | ~Q(status__in=["READY", "RUNNING"]),
            ),
            models.CheckConstraint(
                name="dispatch_run_blocked_by_something",
                condition=~Q(status="BLOCKED") | (Q(blocked_by__isnull=False) & ~Q(blocked_by="")),
            ),
            models.CheckConstraint(
                name="dispatch_run_key_is_no_queue",
                condition=Q(concurrency_key__isnull=True)
                | (~Q(concurrency_key="") & ~Q(concurrency_key__startswith="queue:")),
            ),
        ]

    is_duplicate = False
    """Whether an enqueue that would have been a duplicate returned this run, which was there before."""

    def __str__(self) -> str:
        return f"{self.task} #{self.pk}"

    @property
    def is_final(self) -> bool:
        """Whether the run has ended for good."""
        return self.status in FINAL

    def explain(self) -> "Explanation":
        """Return why the run is not running, or what it does. See ``explain.explain()``."""
        # By name: models know nothing of what is above them.
        explanation: Explanation = import_module("django_dispatch.explain").explain(self)
        return explanation


class PausedQueue(models.Model):
    """A queue of which nothing is claimed; its runs wait, and bodies that run go on. Resuming it deletes the row."""

    name = models.CharField(_("queue"), max_length=100, primary_key=True)
    reason = models.TextField(_("reason"), max_length=1000, blank=True, db_default="")
    paused_by = models.CharField(_("paused by"), max_length=150, blank=True, db_default="")
    paused_at = models.DateTimeField(_("paused at"), db_default=Now(), editable=False)
    # Null means: until it is resumed.
    paused_until = models.DateTimeField(_("paused until"), null=True, blank=True)

    class Meta:
        verbose_name = _("paused queue")
        verbose_name_plural = _("paused queues")

    def __str__(self) -> str:
        return self.name


class Waiter(models.Model):
    """Whether a dispatcher waits for READY runs, so that enqueues notify. With ``NOTIFY`` "off" it never does.

    It ends with its lease. Where there is no row at all, every enqueue notifies: that is "always".
    """

    lease = models.OneToOneField(
        Lease,
        models.DO_NOTHING,
        primary_key=True,
        db_constraint=False,
        related_name="+",
        verbose_name=_("lease"),
    )
    queues = models.JSONField(_("queues"), default=list, db_default=[])
    is_waiting = models.BooleanField(_("is waiting"), db_default=False)

    class Meta:
        verbose_name = _("waiter")
        verbose_name_plural = _("waiters")

    def __str__(self) -> str:
        return str(self.pk)


class Bucket(models.Model):
    """How many runs of a rate's key may become READY now; it fills by itself. A key without a bucket has a full one."""

    key = models.CharField(_("key"), max_length=255, primary_key=True)
    tokens = models.FloatField(_("tokens"))
    filled_at = models.DateTimeField(_("filled at"))

    class Meta:
        verbose_name = _("bucket")
        verbose_name_plural = _("buckets")

    def __str__(self) -> str:
        return self.key
