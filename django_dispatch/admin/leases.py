"""Leases in the admin: which dispatchers live, what they serve and hold, by the database's clock. Read only."""

from typing import TYPE_CHECKING, Any

from django.contrib import admin
from django.db.models import Count, IntegerField, OuterRef, QuerySet, Subquery
from django.db.models.functions import Coalesce, Now
from django.http import HttpRequest, HttpResponse
from django.urls import reverse
from django.utils.html import format_html
from django.utils.safestring import SafeString
from django.utils.text import capfirst
from django.utils.translation import gettext_lazy as _

from django_dispatch import conf
from django_dispatch.admin import display
from django_dispatch.models import Lease, Run

if TYPE_CHECKING:
    LeaseModelAdmin = admin.ModelAdmin[Lease]
else:
    LeaseModelAdmin = admin.ModelAdmin


class LeaseAdmin(LeaseModelAdmin):
    """The dispatchers, alive and lost."""

    list_display = ("node_", "host", "pid", "state_", "queues_", "slots", "held", "renewed", "expires")
    list_per_page = 50
    sortable_by = ()
    ordering = ("node", "-acquired_at")
    show_full_result_count = False
    fieldsets = (
        (None, {"fields": (("node", "state_"), ("host", "pid"), "version", "id")}),
        (_("Serves"), {"fields": ("queues_", ("slots", "held"))}),
        (_("Times"), {"fields": ("acquired", "renewed", "expires")}),
        (_("Process identity"), {"classes": ("collapse",), "fields": ("process_",)}),
    )

    class Media:
        css = {"all": ("django_dispatch/admin.css",)}

    def changelist_view(self, request: HttpRequest, extra_context: dict[str, Any] | None = None) -> HttpResponse:
        """Show the list, under a title that promises no editing."""
        return super().changelist_view(
            request, {"title": capfirst(self.opts.verbose_name_plural)} | (extra_context or {})
        )

    def get_queryset(self, request: HttpRequest) -> QuerySet[Lease]:
        """Return the leases, each with the number of runs it holds and the database's time."""
        held = Run.objects.filter(lease=OuterRef("pk")).order_by().values("lease").annotate(held=Count("pk"))
        return (
            super()
            .get_queryset(request)
            .using(conf.current().database)
            .annotate(
                held_runs=Coalesce(Subquery(held.values("held"), output_field=IntegerField()), 0), database_now=Now()
            )
        )

    def has_add_permission(self, request: HttpRequest) -> bool:
        """Leases are taken by dispatchers alone."""
        return False

    def has_change_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Leases are renewed by dispatchers alone."""
        return False

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """Leases are removed by dispatchers alone: their runs must be reclaimed first."""
        return False

    @admin.display(description=_("node"))
    def node_(self, lease: Lease) -> str:
        return lease.node or str(lease.pk)

    @admin.display(description=_("state"))
    def state_(self, lease: Lease) -> SafeString:
        return badge(lease)

    @admin.display(description=_("queues"))
    def queues_(self, lease: Lease) -> str:
        return display.names(lease.queues) or str(_("all"))

    @admin.display(description=_("held runs"))
    def held(self, lease: Lease) -> SafeString:
        address = reverse(f"{self.admin_site.name}:django_dispatch_run_changelist")
        return format_html('<a href="{}?lease={}">{}</a>', address, lease.pk, vars(lease)["held_runs"])

    @admin.display(description=_("acquired"))
    def acquired(self, lease: Lease) -> SafeString | str:
        return display.exact_moment(lease.acquired_at, display.database_now(lease))

    @admin.display(description=_("renewed"))
    def renewed(self, lease: Lease) -> SafeString | str:
        return display.moment(lease.renewed_at, display.database_now(lease))

    @admin.display(description=_("expires"))
    def expires(self, lease: Lease) -> SafeString | str:
        now = display.database_now(lease)
        when = display.moment(lease.expires_at, now)
        return when if lease.expires_at > now else format_html(str(_("expired {}")), when)

    @admin.display(description=_("process identity"))
    def process_(self, lease: Lease) -> SafeString:
        return display.json_block(lease.process)


def badge(lease: Lease) -> SafeString:
    """Return the state of a lease that the database read just now; an expired lease is expired, whatever it says."""
    if lease.expires_at <= display.database_now(lease):
        return display.badge("EXPIRED", str(_("expired")))
    return display.badge(lease.state, lease.get_state_display())
