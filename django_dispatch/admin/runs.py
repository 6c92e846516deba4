"""Runs in the admin: find one, see what became of it, cancel it or run it again. Reading never writes or locks."""

from collections import Counter
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from django.contrib import admin
from django.contrib.admin.views.main import ChangeList
from django.contrib.messages import INFO, SUCCESS, WARNING
from django.db import transaction
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from django_dispatch import conf, steering
from django_dispatch.admin import display
from django_dispatch.admin.changelist import (
    BoundedPaginator,
    LeaseFilter,
    QueueFilter,
    RunChangeList,
    RunModelAdmin,
    StatusFilter,
    TaskFilter,
)
from django_dispatch.exceptions import InvalidOption
from django_dispatch.explain import explain
from django_dispatch.models import FINAL, Run

LARGEST_ID = 2**63 - 1
# "Select all" may mean millions; one request has to end before its time is up.
MAX_SELECTED = 10_000


class RunAdmin(RunModelAdmin):
    """The runs, the newest first."""

    list_display = (
        *("id", "status_", "task_", "queue", "priority"),
        *("attempts", "enqueued_ago", "time_and_lease"),
    )
    list_filter = (StatusFilter, QueueFilter, TaskFilter, LeaseFilter)
    list_per_page = 50
    sortable_by = ()
    # Only the primary key covers all runs, so it alone is searched; see get_search_results.
    search_fields = ("id",)
    search_help_text = _("The number of a run.")
    show_full_result_count = False
    # Counting each choice of each filter would be that many scans of the table.
    show_facets = admin.ShowFacets.NEVER
    paginator = BoundedPaginator
    actions = ("cancel", "run_again")
    fieldsets = (
        (
            None,
            {
                "fields": (
                    "task",
                    ("status_", "attempts", "duration"),
                    ("queue", "priority", "lease_", "blocked_by"),
                    "explanation",
                    "progress_",
                )
            },
        ),
        (_("Arguments"), {"fields": ("args_", "kwargs_")}),
        (_("Outcome"), {"fields": ("result_", "errors_")}),
        (
            _("Times"),
            {"fields": ("scheduled_", "enqueued", "due", "expires", "started", "finished", "cancel_requested")},
        ),
        (
            _("Options and counters"),
            {
                "classes": ("collapse",),
                "fields": (
                    ("max_attempts", "timeout", "on_lost", "source"),
                    ("attempt", "failures", "interruptions", "epoch"),
                    ("unique_key", "unique_until", "on_duplicate"),
                    ("concurrency_key", "concurrency_limit", "rate_amount", "rate_seconds", "places"),
                    ("fair_key", "turn"),
                    "meta_",
                ),
            },
        ),
    )

    class Media:
        css = {"all": ("django_dispatch/admin.css",)}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list, under a title that promises no editing."""
        return super().changelist_view(
            request, {"title": capfirst(self.opts.verbose_name_plural)} | (extra_context or {})
        )

    def get_changelist(self, request: HttpRequest, **kwargs: Any) -> type[ChangeList]:
        """Return the list that has one ordering."""
        return RunChangeList

    def get_queryset(self, request: HttpRequest) -> QuerySet[Run]:
        """Return the runs with the database's time and their leases, by an outer join: a lease's row may be gone."""
        runs = super().get_queryset(request).using(conf.current().database)
        return runs.select_related("lease").annotate(database_now=Now())

    def get_search_results(
        self, request: HttpRequest, queryset: QuerySet[Any], search_term: str
    ) -> tuple[QuerySet[Any], bool]:
        """Find a run by its number, with or without a leading ``#``; anything else would be a scan of the table."""
        term = search_term.strip().removeprefix("#")
        if not term:
            return queryset, False
        if term.isascii() and term.isdigit() and len(term) <= 19 and int(term) <= LARGEST_ID:
            return queryset.filter(pk=int(term)), False
        self.message_user(
            request, _("Runs are found by their number only. Use the filters for task, queue and status."), WARNING
        )
        return queryset.none(), False

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Runs are enqueued by code."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """The permission to change admits the actions; a run itself cannot be edited."""
        return obj is None and super().has_change_permission(request)

    def has_view_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Who may view or change runs sees each of them."""
        return super().has_view_permission(request)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Only final runs can be deleted; get_deleted_objects refuses the others when they are selected in the list."""
        return super().has_delete_permission(request) and (obj is None or obj.is_final)

    @admin.action(description=_("Cancel selected runs"), permissions=["change"])
    def cancel(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        """End the runs that wait, ask those that run to stop, and tell how many were which."""
        count = Counter(steering.cancel_many(self._selected(request, queryset)).values())
        self._tell(
            request,
            (count[steering.CancelAnswer.CANCELLED], SUCCESS, _("%d cancelled.")),
            (count[steering.CancelAnswer.REQUESTED], INFO, _("%d asked to stop; each ends when its body has ended.")),
            (count[steering.CancelAnswer.ALREADY_FINAL], WARNING, _("%d already ended, left as they are.")),
            (count[steering.CancelAnswer.UNKNOWN], WARNING, _("%d gone by now.")),
        )

    @admin.action(description=_("Run selected runs again"), permissions=["change"])
    def run_again(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        """Enqueue a copy of each run that has ended, all or none, and tell how many had not."""
        selected = self._selected(request, queryset)
        copies = []
        with transaction.atomic(using=conf.current().database):
            for run_id in selected:
                try:
                    copies.append(steering.run_again(run_id))
                except InvalidOption:
                    continue
        self._tell(
            request,
            (len(copies), SUCCESS, _("%d enqueued again, as new runs.")),
            (len(selected) - len(copies), WARNING, _("%d skipped: only a run that has ended can be run again.")),
        )

    def get_deleted_objects(self, objs: Sequence[Any] | QuerySet[Any], request: HttpRequest) -> Any:
        """Refuse to delete runs that have not ended, in the way that Django refuses protected objects."""
        runs = objs
        if isinstance(objs, QuerySet):
            runs = list(objs.select_related(None).only("task", "status")[: MAX_SELECTED + 1])
        final = [str(run) for run in runs if run.is_final]
        refused = [_("%s has not ended: cancel it first") % run for run in runs if not run.is_final]
        if len(runs) > MAX_SELECTED:
            refused = [_("more than %d runs: select fewer") % MAX_SELECTED]
        missing = set() if self.has_delete_permission(request) else {self.opts.verbose_name}
        return final, {self.opts.verbose_name_plural: len(final)}, missing, refused

    def delete_queryset(self, request: HttpRequest, queryset: QuerySet[Run]) -> None:
        """Delete the final ones, whatever has happened to the selection since it was confirmed."""
        queryset.filter(status__in=FINAL).delete()

    def delete_model(self, request: HttpRequest, obj: Run) -> None:
        """See delete_queryset()."""
        self.delete_queryset(request, self.get_queryset(request).filter(pk=obj.pk))

    def _selected(self, request: HttpRequest, queryset: QuerySet[Run]) -> list[int]:
        """Return the ids in the order of their enqueue, the newest MAX_SELECTED at most."""
        ids = list(queryset.order_by("-pk").values_list("pk", flat=True)[: MAX_SELECTED + 1])
        if len(ids) > MAX_SELECTED:
            self.message_user(request, _("Only the newest %d were taken. Select again.") % MAX_SELECTED, WARNING)
        return sorted(ids[:MAX_SELECTED])

    def _tell(self, request: HttpRequest, *outcomes: tuple[int, int, Any]) -> None:
        for count, level, text in outcomes:
            if count:
                self.message_user(request, text % count, level)

    @admin.display(description=_("status"))
    def status_(self, run: Run) -> SafeString:
        badge = display.badge(run.status, run.get_status_display())
        if run.cancel_requested_at and not run.is_final:
            return format_html('{}<div class="dispatch-note">{}</div>', badge, _("asked to stop"))
        return badge

    @admin.display(description=_("task"))
    def task_(self, run: Run) -> SafeString:
        return display.task_path(run.task)

    @admin.display(description=_("attempts"))
    def attempts(self, run: Run) -> str:
        """How many were started; beside it, of how many that may fail how many did: others may have been put off."""
        if run.max_attempts is None:
            return str(run.attempt)
        numbers = {"attempt": run.attempt, "failures": run.failures, "max": run.max_attempts}
        return _("%(attempt)d (%(failures)d of %(max)d failed)") % numbers

    @admin.display(description=_("duration"))
    def duration(self, run: Run) -> str:
        return display.length(span) if (span := _span(run)) is not None else display.EMPTY

    @admin.display(description=_("duration"))
    def time_and_lease(self, run: Run) -> SafeString | str:
        # Only a run that is RUNNING has a lease: a column of its own would be empty but for these.
        if run.lease_id is None:
            return self.duration(run)
        return format_html("{}<div>{}</div>", self.duration(run), self.lease_(run))

    @admin.display(description=_("lease"))
    def lease_(self, run: Run) -> SafeString | str:
        if run.lease_id is None:
            return display.EMPTY
        if run.lease is None:
            return format_html('<span title="{}">{}</span>', run.lease_id, display.badge("EXPIRED", str(_("gone"))))
        address = reverse(f"{self.admin_site.name}:django_dispatch_lease_change", args=[run.lease_id])
        link = format_html('<a href="{}" title="{}">{}</a>', address, run.lease_id, run.lease.node or run.lease)
        if run.lease.expires_at > display.database_now(run):
            return link
        return format_html("{} {}", link, display.badge("EXPIRED", str(_("expired"))))

    @admin.display(description=_("enqueued"))
    def enqueued_ago(self, run: Run) -> SafeString | str:
        return display.moment(run.enqueued_at, display.database_now(run))

    @admin.display(description=_("enqueued"))
    def enqueued(self, run: Run) -> SafeString | str:
        return display.exact_moment(run.enqueued_at, display.database_now(run))

    @admin.display(description=_("scheduled for"))
    def scheduled_(self, run: Run) -> SafeString | str:
        if run.schedule_id is None:
            return display.EMPTY
        address = reverse(f"{self.admin_site.name}:django_dispatch_schedule_change", args=[run.schedule_id])
        name = run.meta.get("schedule") if isinstance(run.meta, dict) else None
        when = display.exact_moment(run.scheduled_for, display.database_now(run))
        return format_html('{} (<a href="{}">{}</a>)', when, address, name or run.schedule_id)

    @admin.display(description=_("run after"))
    def due(self, run: Run) -> SafeString | str:
        return display.exact_moment(run.run_after, display.database_now(run))

    @admin.display(description=_("expires"))
    def expires(self, run: Run) -> SafeString | str:
        return display.exact_moment(run.expires_at, display.database_now(run))

    @admin.display(description=_("started"))
    def started(self, run: Run) -> SafeString | str:
        return display.exact_moment(run.started_at, display.database_now(run))

    @admin.display(description=_("finished"))
    def finished(self, run: Run) -> SafeString | str:
        return display.exact_moment(run.finished_at, display.database_now(run))

    @admin.display(description=_("cancel requested"))
    def cancel_requested(self, run: Run) -> SafeString | str:
        return display.exact_moment(run.cancel_requested_at, display.database_now(run))

    @admin.display(description=_("progress"))
    def progress_(self, run: Run) -> SafeString | str:
        return display.progress_bar(run.progress)

    @admin.display(description=_("why"))
    def explanation(self, run: Run) -> SafeString:
        return format_html_join("", "<div>{}</div>", ((cause.text,) for cause in explain(run).causes))

    @admin.display(description=_("args"))
    def args_(self, run: Run) -> SafeString:
        return display.json_block(run.args)

    @admin.display(description=_("kwargs"))
    def kwargs_(self, run: Run) -> SafeString:
        return display.json_block(run.kwargs)

    @admin.display(description=_("result"))
    def result_(self, run: Run) -> SafeString | str:
        return display.json_block(run.result) if run.result is not None else display.EMPTY

    @admin.display(description=_("errors"))
    def errors_(self, run: Run) -> SafeString | str:
        return display.error_blocks(run.errors)

    @admin.display(description=_("meta"))
    def meta_(self, run: Run) -> SafeString:
        return display.json_block(run.meta)


def _span(run: Run) -> timedelta | None:
    """Return how long the body of the last attempt took, or has been running by the database's clock."""
    if run.started_at is None or not (run.is_final or run.status == "RUNNING"):
        return None
    return (run.finished_at or display.database_now(run)) - run.started_at
