"""A list of runs that stays fast at millions of rows: bounded counts, bounded filter choices, one ordering."""

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any
from uuid import UUID

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db import connections
from django.db.models import QuerySet
from django.db.models.expressions import Combinable
from django.http import HttpRequest
from django.utils.functional import cached_property
from django.utils.translation import gettext_lazy as _

from django_dispatch.models import Lease, Run, Status

COUNT_LIMIT = 10_000
SAMPLE_SIZE = 1000
# Of any size, and not shown in the list.
WIDE_FIELDS = ("args", "kwargs", "progress", "result", "errors", "meta", "lease__process", "lease__queues")

if TYPE_CHECKING:
    RunPaginator = Paginator[Run]
    RunModelAdmin = admin.ModelAdmin[Run]
else:
    RunPaginator = Paginator
    RunModelAdmin = admin.ModelAdmin


class RunChangeList(ChangeList):
    """Runs by primary key, the newest first: no other order has an index that covers all of them."""

    def get_ordering(self, request: HttpRequest, queryset: QuerySet[Any]) -> list[str | Combinable]:
        """Return the one ordering, whatever the address asks for."""
        return ["-pk"]

    def get_queryset(self, request: HttpRequest, exclude_parameters: list[str | None] | None = None) -> QuerySet[Any]:
        """Return the runs to be listed, without what may be large."""
        return super().get_queryset(request, exclude_parameters).defer(*WIDE_FIELDS)

    def get_results(self, request: HttpRequest) -> None:
        """Choose the page's runs, without a count beside the search field: it may be an estimate."""
        super().get_results(request)
        # A page that held everything when it was counted may not any more.
        self.result_list = self.result_list[: self.list_max_show_all]
        self.full_result_count = self.result_count


class BoundedPaginator(RunPaginator):
    """Counts COUNT_LIMIT runs at most; of a larger table that is not filtered it asks the planner how large."""

    @cached_property
    def count(self) -> int:
        """Return how many runs can be paged through."""
        return self.estimate or min(self._bounded_count, COUNT_LIMIT)

    @property
    def is_bounded(self) -> bool:
        """Whether there are more runs than ``count`` says."""
        return not self.estimate and self._bounded_count > COUNT_LIMIT

    @cached_property
    def estimate(self) -> int | None:
        """The planner's guess at the size of the whole table.

        None if it is small, if a filter makes guesses wild, or if the planner does not say.
        """
        runs = self._runs
        if runs.query.where or "JSON" not in connections[runs.db].features.supported_explain_formats:
            return None
        plan = json.loads(runs.order_by().values("pk").explain(format="json"))[0]["Plan"]
        return plan["Plan Rows"] if plan["Plan Rows"] > COUNT_LIMIT else None

    @cached_property
    def _bounded_count(self) -> int:
        return self._runs.order_by()[: COUNT_LIMIT + 1].count()

    @property
    def _runs(self) -> QuerySet[Run]:
        runs = self.object_list
        assert isinstance(runs, QuerySet)
        return runs


class StatusFilter(admin.SimpleListFilter):
    """Runs of one status."""

    title = _("status")
    parameter_name = "status"

    def lookups(self, request: HttpRequest, model_admin: Any) -> Sequence[tuple[str, Any]]:
        """Return all statuses, whether or not a run has them now."""
        return Status.choices

    def queryset(self, request: HttpRequest, queryset: QuerySet[Run]) -> QuerySet[Run] | None:
        """Return the runs of the chosen status."""
        if self.value() == Status.RUNNING:
            # Implied by the status; said, it lets the lease index find the few among the many.
            return queryset.filter(status=Status.RUNNING, lease__isnull=False)
        if self.value():
            return queryset.filter(status=self.value()) if self.value() in Status.values else queryset.none()
        return None


class RecentValuesFilter(admin.SimpleListFilter):
    """Runs with one value of a column. Offers the values of the newest SAMPLE_SIZE runs, and the one in the address.

    No index covers all runs of a queue or a task, so that finding every value would mean to read the whole table.
    """

    def value(self) -> str | None:
        """Return the value in the address, without the NULs that PostgreSQL's text cannot hold."""
        value = super().value()
        return value and value.replace("\0", "")

    def lookups(self, request: HttpRequest, model_admin: RunModelAdmin) -> list[tuple[str, str]]:
        """Return the values that were in use lately."""
        runs = model_admin.get_queryset(request).order_by("-pk")
        values = set(runs.values_list(str(self.parameter_name), flat=True)[:SAMPLE_SIZE])
        return [(value, value) for value in sorted(values | {self.value() or ""} - {""})]

    def queryset(self, request: HttpRequest, queryset: QuerySet[Run]) -> QuerySet[Run] | None:
        """Return the runs with the chosen value."""
        return queryset.filter(**{str(self.parameter_name): self.value()}) if self.value() else None


class QueueFilter(RecentValuesFilter):
    """Runs of one queue."""

    title = _("queue")
    parameter_name = "queue"


class TaskFilter(RecentValuesFilter):
    """Runs of one task."""

    title = _("task")
    parameter_name = "task"


class LeaseFilter(admin.SimpleListFilter):
    """Runs held under one lease. There are as many leases as dispatchers, so all are offered."""

    title = _("lease")
    parameter_name = "lease"

    def lookups(self, request: HttpRequest, model_admin: RunModelAdmin) -> list[tuple[str, str]]:
        """Return the leases by node, and the one in the address even if its row is gone."""
        leases = Lease.objects.using(model_admin.get_queryset(request).db).only("id", "node").order_by("node", "id")
        choices = {str(lease.pk): str(lease) for lease in leases}
        if chosen := self.value():
            choices.setdefault(chosen, chosen)
        return list(choices.items())

    def queryset(self, request: HttpRequest, queryset: QuerySet[Run]) -> QuerySet[Run] | None:
        """Return the runs that the chosen lease holds; none for what cannot be a lease's id."""
        if not self.value():
            return None
        try:
            return queryset.filter(lease=UUID(self.value()))
        except ValueError:
            return queryset.none()
