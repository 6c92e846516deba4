"""The router of ``DATABASE_ROUTERS`` for projects of several databases; in every process."""

from typing import Any

from django.db.models import Model

from . import conf

APP_LABEL = "django_dispatch"


class DispatchRouter:
    """Keeps runs, leases and schedules on ``DISPATCH["DATABASE"]``: reads, writes and migrations. Leaves others alone.

    Name it first: a router before it that spreads reads over replicas would show runs as they were a while ago.
    """

    def db_for_read(self, model: type[Model], **hints: Any) -> str | None:
        """Return the alias for our models. ``using()`` still goes wherever it is told to."""
        return conf.current().database if model._meta.app_label == APP_LABEL else None

    def db_for_write(self, model: type[Model], **hints: Any) -> str | None:
        """See db_for_read()."""
        return self.db_for_read(model)

    def allow_relation(self, first: Model, second: Model, **hints: Any) -> bool | None:
        """Allow relations among our models, wherever they were read."""
        return True if {first._meta.app_label, second._meta.app_label} == {APP_LABEL} else None

    def allow_migrate(self, db: str, app_label: str, **hints: Any) -> bool | None:
        """Allow our migrations there, and nowhere else."""
        return db == conf.current().database if app_label == APP_LABEL else None
