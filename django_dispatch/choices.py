"""The words that columns hold, and what they mean."""

from django.db.models import TextChoices
from django.utils.translation import gettext_lazy as _


class Status(TextChoices):
    """Where a run is in its life. The last three are final."""

    SCHEDULED = "SCHEDULED", _("scheduled")
    READY = "READY", _("ready")
    BLOCKED = "BLOCKED", _("blocked")
    RUNNING = "RUNNING", _("running")
    SUCCESSFUL = "SUCCESSFUL", _("successful")
    FAILED = "FAILED", _("failed")
    CANCELLED = "CANCELLED", _("cancelled")


FINAL = (Status.SUCCESSFUL, Status.FAILED, Status.CANCELLED)
UNFINISHED = ["SCHEDULED", "READY", "BLOCKED", "RUNNING"]


class OnLost(TextChoices):
    """What becomes of a run whose body ended without a verdict. Most are the first: a row is written three times."""

    REQUEUE = "", _("run again")
    FAIL = "fail", _("fail, at most once")


class OnDuplicate(TextChoices):
    """What becomes of a run while another one of its key waits or runs. Most are the first."""

    PARALLEL = "", _("run beside it")
    DISCARD = "discard", _("is not recorded")
    SERIAL = "serial", _("runs after it")
    QUEUE_ONE = "queue_one", _("runs after it, if none waits yet")
    REPLACE = "replace", _("takes the place of the one that waits")


class Source(TextChoices):
    """The door by which a run came in. Rows of ``sql`` are announced by the table's own trigger."""

    APP = "app", _("application")
    SQL = "sql", _("plain SQL")
    NOTIFY = "notify", _("message")
    SCHEDULE = "schedule", _("schedule")


class CatchUp(TextChoices):
    """What becomes of occurrences that no dispatcher was there for."""

    NONE = "none", _("skip what is more than a minute late")
    LAST = "last", _("run the last one missed")
    ALL = "all", _("run every one missed")


class Overlap(TextChoices):
    """Whether an occurrence is enqueued while a run of the same schedule has not ended."""

    ALLOW = "allow", _("enqueue beside it")
    SKIP = "skip", _("skip the occurrence")
