"""What the database remembers: one row a run, one row a dispatcher's lease.

Only the store writes these tables. The life of a run, and who moves it on:

=============  ==========================================================  =========================================
status         meaning                                                     moved on by
=============  ==========================================================  =========================================
SCHEDULED      due later: ``run_after``, or waiting for a retry            a dispatcher's promote step, to READY
READY          may be claimed                                              claim, to RUNNING
BLOCKED        its concurrency key is full                                 the finish that frees the key, to READY
RUNNING        claimed under a lease                                       finish, release or reclaim
SUCCESSFUL     the body returned                                           final: prune, after its retention
FAILED         it raised too often, timed out, or was lost too often       final: prune, after its retention
CANCELLED      somebody cancelled it                                       final: prune, after its retention
=============  ==========================================================  =========================================
"""

from django.db import models
from django.db.models import F, Q
from django.db.models.functions import Now
from django.utils.translation import gettext_lazy as _


class Status(models.TextChoices):
    """Where a run is in its life. The last three are final."""

    SCHEDULED = "SCHEDULED", _("scheduled")
    READY = "READY", _("ready")
    BLOCKED = "BLOCKED", _("blocked")
    RUNNING = "RUNNING", _("running")
    SUCCESSFUL = "SUCCESSFUL", _("successful")
    FAILED = "FAILED", _("failed")
    CANCELLED = "CANCELLED", _("cancelled")


FINAL = (Status.SUCCESSFUL, Status.FAILED, Status.CANCELLED)


class OnLost(models.TextChoices):
    """What becomes of a run whose body ended without a verdict."""

    REQUEUE = "requeue", _("run again")
    FAIL = "fail", _("fail, at most once")


class Source(models.TextChoices):
    """The door by which a run came in. Rows of ``sql`` are announced by the table's own trigger."""

    APP = "app", _("application")
    SQL = "sql", _("plain SQL")
    NOTIFY = "notify", _("message")


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
    on_lost = models.CharField(_("on lost"), max_length=7, choices=OnLost.choices, db_default=OnLost.REQUEUE)
    source = models.CharField(_("source"), max_length=10, choices=Source.choices, db_default=Source.SQL)
    # Of the message that the run came by, if it did: known as long as the row, so that no message makes two runs.
    uuid = models.CharField(_("message uuid"), max_length=255, null=True, blank=True)
    unique_key = models.CharField(_("unique key"), max_length=255, null=True, blank=True)
    concurrency_key = models.CharField(_("concurrency key"), max_length=255, null=True, blank=True)
    # Not started by then, it never will be. Says nothing about a run that was started once.
    expires_at = models.DateTimeField(_("expires at"), null=True, blank=True)
    cancel_requested_at = models.DateTimeField(_("cancel requested at"), null=True, blank=True)
    progress = models.JSONField(_("progress"), null=True, blank=True)
    result = models.JSONField(_("result"), null=True, blank=True)
    errors = models.JSONField(_("errors"), default=list, db_default=[])
    meta = models.JSONField(_("meta"), default=dict, db_default={})
    enqueued_at = models.DateTimeField(_("enqueued at"), db_default=Now())
    started_at = models.DateTimeField(_("started at"), null=True, blank=True)
    finished_at = models.DateTimeField(_("finished at"), null=True, blank=True)

    class Meta:
        verbose_name = _("run")
        verbose_name_plural = _("runs")
        # Every index is partial: each full one would cost two more entries a run.
        indexes = [
            # claim: the READY runs of one queue, best first
            models.Index(
                F("queue"), F("priority").desc(), F("id"), name="dispatch_run_claim", condition=Q(status="READY")
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
            # unblock: how full a concurrency key is, and who waits for it
            models.Index(
                fields=["concurrency_key", "status"],
                name="dispatch_run_concurrency",
                condition=Q(concurrency_key__isnull=False, status__in=["RUNNING", "BLOCKED"]),
            ),
            # prune: the final runs, oldest first
            models.Index(fields=["finished_at"], name="dispatch_run_prune", condition=Q(finished_at__isnull=False)),
        ]
        constraints = [
            # unique: at most one waiting or running run a key
            models.UniqueConstraint(
                fields=["unique_key"], name="dispatch_run_unique", condition=Q(unique_key__isnull=False)
            ),
            # receive: each message that every dispatcher hears makes one run
            models.UniqueConstraint(fields=["uuid"], name="dispatch_run_uuid", condition=Q(uuid__isnull=False)),
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
        ]

    def __str__(self) -> str:
        return f"{self.task} #{self.pk}"

    @property
    def is_final(self) -> bool:
        """Whether the run has ended for good."""
        return self.status in FINAL
