"""Schedules in the admin: edit them while everything runs, see their next times, run one now."""

from collections.abc import Sequence
from datetime import timedelta
from itertools import islice
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo, available_timezones

from django import forms
from django.conf import settings
from django.contrib import admin
from django.contrib.messages import SUCCESS, WARNING
from django.core.exceptions import ValidationError
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_dispatch import conf, registry, steering
from django_dispatch.admin import display
from django_dispatch.definition import Task
from django_dispatch.enqueue import check_priority, check_queue
from django_dispatch.exceptions import DispatchError, InvalidOption, UnknownTask
from django_dispatch.models import Run, Schedule
from django_dispatch.schedules import NO_BROADCAST, Rule, check_policy
from django_dispatch.store.schedule_rows import DECLARED_SECONDS

SHOWN_TIMES = 5
SHOWN_RUNS = 5
RULE_FIELDS = ("cron", "every", "once_at", "time_zone", "start_at", "end_at")

if TYPE_CHECKING:
    ScheduleModelAdmin = admin.ModelAdmin[Schedule]
    ScheduleModelForm = forms.ModelForm[Schedule]
else:
    ScheduleModelAdmin = admin.ModelAdmin
    ScheduleModelForm = forms.ModelForm


class ScheduleForm(ScheduleModelForm):
    """Refuses what a dispatcher would flag."""

    class Meta:
        model = Schedule
        fields = "__all__"
        widgets = {name: forms.Textarea({"rows": 3, "cols": 60}) for name in ("args", "kwargs")}
        help_texts = {
            "task": _("The path of a task, such as shop.tasks.report."),
            "cron": _(
                "Minute, hour, day, month, weekday; or six fields with the second first; or @daily and the like."
            ),
            "every": _(
                "Hours, minutes and seconds: 00:05:00; with days: 1 00:00:00. Counted from the start, or from 1970."
            ),
            "once_at": _("A single time, instead of a rule."),
            "queue": _("Left empty: as the task says."),
            "priority": _("From -100 to 100; left empty: as the task says."),
            "catch_up_window": _("What was missed longer ago than this is never made up for."),
        }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        if "time_zone" in self.fields:
            zones = available_timezones() | {settings.TIME_ZONE, self.instance.time_zone}
            self.fields["time_zone"] = forms.ChoiceField(
                label=_("Time zone"), choices=[(zone, zone) for zone in sorted(zones)], initial=settings.TIME_ZONE
            )
            if self.instance.pk is None:
                self.initial["time_zone"] = settings.TIME_ZONE

    def clean(self) -> dict[str, Any] | None:
        """Check the rule as a whole, and the arguments against the task if it is known here."""
        cleaned = super().clean() or self.cleaned_data
        if "task" not in self.fields or self.errors:
            return cleaned
        for field, check in (("queue", check_queue), ("priority", check_priority)):
            if cleaned.get(field) is not None:
                self._try(field, lambda check=check, field=field: check(cleaned[field]))
        self._try(None, lambda: check_policy(cleaned["catch_up"], cleaned["catch_up_window"], cleaned["overlap"]))
        rule = Rule(**{name: cleaned.get(name) for name in RULE_FIELDS})  # type: ignore[arg-type]
        self._try("cron" if cleaned.get("cron") else None, rule.check)
        if not isinstance(cleaned.get("args"), list):
            self.add_error("args", _("This must be a JSON array."))
        elif not isinstance(cleaned.get("kwargs"), dict):
            self.add_error("kwargs", _("This must be a JSON object."))
        elif (task := known_task(cleaned["task"])) is not None:
            self._try("args", lambda: task.new_run(cleaned["args"], cleaned["kwargs"]))
            if task.broadcast:
                self.add_error("task", NO_BROADCAST)
        return cleaned

    def _try(self, field: str | None, check: Any) -> None:
        try:
            check()
        except DispatchError as error:
            self.add_error(field, ValidationError(str(error)))


class ScheduleAdmin(ScheduleModelAdmin):
    """The schedules, by name."""

    form = ScheduleForm
    list_display = ("name_", "state", "rule", "next_", "last_", "source")
    list_filter = ("enabled", "source")
    list_per_page = 100
    search_fields = ("name", "task")
    ordering = ("name",)
    sortable_by = ()
    show_full_result_count = False
    actions = ("run_now", "enable", "disable")
    readonly_fields = ("state", "rule", "next_times", "last_exact", "problem_", "last_runs", "source")
    fieldsets = (
        (None, {"fields": ("name", ("state", "source"), "problem_", "enabled")}),
        (_("Occurrences"), {"fields": ("rule", "next_times", "last_exact", "last_runs")}),
        (_("When"), {"fields": ("cron", "every", "once_at", "time_zone", ("start_at", "end_at"))}),
        (_("What"), {"fields": ("task", "args", "kwargs", "queue", "priority")}),
        (_("If late, or still running"), {"fields": ("catch_up", "catch_up_window", "overlap")}),
    )

    class Media:
        css = {"all": ("django_dispatch/admin.css",)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[Schedule]:
        """Return the schedules with the database's time."""
        return super().get_queryset(request).using(conf.current().database).annotate(database_now=Now())

    def get_fieldsets(self, request: HttpRequest, obj: Schedule | None = None) -> Any:
        """Leave out what a schedule that is not saved yet has not."""
        if obj is not None:
            return super().get_fieldsets(request, obj)
        return ((None, {"fields": ("name", "enabled")}), *self.fieldsets[2:])

    def get_readonly_fields(self, request: HttpRequest, obj: Schedule | None = None) -> tuple[str, ...]:
        """Of a schedule of the code, only whether it is enabled can be changed: the rest is changed in the code."""
        if obj is None or obj.source != Schedule.Source.CODE:
            return self.readonly_fields
        return (*self.readonly_fields, *(field.name for field in obj._meta.fields if field.name != "enabled"))

    def save_model(self, request: HttpRequest, obj: Schedule, form: Any, change: bool) -> None:
        """Write what was changed, and no column that dispatchers write; warn of a task that is not known here."""
        if not change:
            obj.save(using=conf.current().database)
        elif form.changed_data:
            obj.save(update_fields=form.changed_data)
        if known_task(obj.task) is None:
            self.message_user(
                request,
                _("No task %s is known here. It is due only where dispatchers know it.") % obj.task,
                WARNING,
            )

    def response_change(self, request: HttpRequest, obj: Schedule) -> HttpResponse:
        """Run it now, if that button was pressed, and stay."""
        if "_run_now" not in request.POST:
            return super().response_change(request, obj)
        self._run_now(request, obj)
        return HttpResponseRedirect(request.get_full_path())

    def has_delete_permission(self, request: HttpRequest, obj: Schedule | None = None) -> bool:
        """What a dispatcher has in its code cannot be deleted: it is disabled."""
        return super().has_delete_permission(request, obj) and (obj is None or not is_declared(obj))

    def get_deleted_objects(self, objs: Sequence[Any] | QuerySet[Any], request: HttpRequest) -> Any:
        """Refuse to delete what a dispatcher has in its code, in the way that Django refuses protected objects."""
        free = [str(schedule) for schedule in objs if not is_declared(schedule)]
        refused = [_("%s is in the code: disable it") % schedule for schedule in objs if is_declared(schedule)]
        missing = set() if super().has_delete_permission(request) else {self.opts.verbose_name}
        return free, {self.opts.verbose_name_plural: len(free)}, missing, refused

    @admin.action(description=_("Run selected schedules now"), permissions=["change"])
    def run_now(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        """Enqueue a run for each."""
        for schedule in queryset:
            self._run_now(request, schedule)

    @admin.action(description=_("Enable selected schedules"), permissions=["change"])
    def enable(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        """Switch on; what was missed while off is not made up for."""
        count = queryset.filter(enabled=False).update(enabled=True)
        self.message_user(request, _("%d enabled.") % count, SUCCESS)

    @admin.action(description=_("Disable selected schedules"), permissions=["change"])
    def disable(self, request: HttpRequest, queryset: QuerySet[Schedule]) -> None:
        """Switch off; runs that are enqueued already stay."""
        count = queryset.filter(enabled=True).update(enabled=False)
        self.message_user(request, _("%d disabled.") % count, SUCCESS)

    def _run_now(self, request: HttpRequest, schedule: Schedule) -> None:
        try:
            run = steering.run_now(schedule)
        except DispatchError as error:
            self.message_user(request, f"{schedule}: {error}", WARNING)
            return
        link = reverse(f"{self.admin_site.name}:django_dispatch_run_change", args=[run.pk])
        words = _("run %d is there already.") if run.is_duplicate else _("run %d is enqueued.")
        text = format_html('{}: <a href="{}">{}</a>', schedule, link, words % run.pk)
        self.message_user(request, text, WARNING if run.is_duplicate else SUCCESS)

    @admin.display(description=_("state"))
    def state(self, schedule: Schedule) -> SafeString | str:
        if schedule.pk is None:
            return display.EMPTY
        if schedule.problem:
            return format_html(
                '<span title="{}">{}</span>', schedule.problem, display.badge("FAILED", str(_("problem")))
            )
        if not schedule.enabled:
            return display.badge("CANCELLED", str(_("disabled")))
        if schedule.source == Schedule.Source.CODE and not is_declared(schedule):
            return display.badge("CANCELLED", str(_("no longer in the code")))
        if schedule.next_at is None and schedule.planned_revision == schedule.revision:
            return display.badge("SUCCESSFUL", str(_("over")))
        return display.badge("ACTIVE", str(_("enabled")))

    @admin.display(description=_("name"))
    def name_(self, schedule: Schedule) -> SafeString:
        name = display.task_path(schedule.name)
        if schedule.name.startswith(schedule.task):
            return name
        return format_html('{}<div class="dispatch-note">{}</div>', name, display.task_path(schedule.task))

    @admin.display(description=_("rule"))
    def rule(self, schedule: Schedule) -> SafeString | str:
        rule = checked_rule(schedule)
        if rule is None:
            return schedule.cron or display.EMPTY
        words = rule.in_words()
        if not schedule.cron:
            return words
        return format_html('{}<div class="dispatch-note">{}</div>', words, schedule.cron)

    @admin.display(description=_("next"))
    def next_(self, schedule: Schedule) -> SafeString | str:
        return display.moment(schedule.next_at if schedule.enabled else None, display.database_now(schedule))

    @admin.display(description=_("last"))
    def last_(self, schedule: Schedule) -> SafeString | str:
        return display.moment(schedule.last_at, display.database_now(schedule))

    @admin.display(description=_("last"))
    def last_exact(self, schedule: Schedule) -> SafeString | str:
        return display.exact_moment(schedule.last_at, display.database_now(schedule))

    @admin.display(description=_("problem"))
    def problem_(self, schedule: Schedule) -> str:
        return schedule.problem or display.EMPTY

    @admin.display(description=_("next times"))
    def next_times(self, schedule: Schedule) -> SafeString | str:
        rule = checked_rule(schedule)
        if rule is None or not schedule.enabled:
            return display.EMPTY
        now = display.database_now(schedule)
        first = schedule.next_at - timedelta(microseconds=1) if schedule.next_at is not None else now
        try:
            times = list(islice(rule.times_after(first), SHOWN_TIMES))
        except (OverflowError, ValueError):
            times = []
        zone = ZoneInfo(schedule.time_zone)
        shown = ((f"{time.astimezone(zone):%a %Y-%m-%d %H:%M:%S %Z}", display.moment(time, now)) for time in times)
        return format_html_join("", '<div>{} <span class="dispatch-note">{}</span></div>', shown) or display.EMPTY

    @admin.display(description=_("last runs"))
    def last_runs(self, schedule: Schedule) -> SafeString | str:
        runs = Run.objects.using(conf.current().database).filter(schedule=schedule).order_by("-pk")
        name = f"{self.admin_site.name}:django_dispatch_run_change"
        shown = (
            (reverse(name, args=[run.pk]), f"#{run.pk}", display.badge(run.status, run.get_status_display()))
            for run in runs.only("status")[:SHOWN_RUNS]
        )
        return format_html_join("", '<div><a href="{}">{}</a> {}</div>', shown) or display.EMPTY


def known_task(path: str) -> Task[..., Any] | None:
    """Return the task if this process can find it."""
    registry.autodiscover()
    try:
        return registry.get(path)
    except UnknownTask:
        return None


def is_declared(schedule: Schedule) -> bool:
    """Whether a dispatcher has it in its code, as the database read it just now."""
    if schedule.source != Schedule.Source.CODE or schedule.declared_at is None:
        return False
    return schedule.declared_at > display.database_now(schedule) - timedelta(seconds=DECLARED_SECONDS)


def checked_rule(schedule: Schedule) -> Rule | None:
    """Return the rule, if it makes sense."""
    rule = Rule(**{name: getattr(schedule, name) for name in RULE_FIELDS})
    try:
        rule.check()
    except InvalidOption:
        return None
    return rule
