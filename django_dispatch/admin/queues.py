"""Paused queues in the admin: pause one, say why and until when, and resume it."""

from typing import TYPE_CHECKING, Any

from django import forms
from django.contrib import admin
from django.contrib.messages import SUCCESS
from django.db.models import QuerySet
from django.db.models.functions import Now
from django.http import HttpRequest
from django.utils import timezone
from django.utils.safestring import SafeString
from django.utils.translation import gettext_lazy as _

from django_dispatch import conf, steering
from django_dispatch.admin import display
from django_dispatch.enqueue import check_queue
from django_dispatch.exceptions import InvalidOption
from django_dispatch.models import PausedQueue

if TYPE_CHECKING:
    PausedQueueModelAdmin = admin.ModelAdmin[PausedQueue]
    PausedQueueModelForm = forms.ModelForm[PausedQueue]
else:
    PausedQueueModelAdmin = admin.ModelAdmin
    PausedQueueModelForm = forms.ModelForm


class PausedQueueForm(PausedQueueModelForm):
    """What is paused, why, and until when."""

    def clean_name(self) -> str:
        """Refuse what can be no queue."""
        name: str = self.cleaned_data["name"]
        try:
            return check_queue(name)
        except InvalidOption as error:
            raise forms.ValidationError(str(error)) from None

    def clean_paused_until(self) -> Any:
        """Refuse an end that has passed."""
        until = self.cleaned_data["paused_until"]
        if until is not None and until <= timezone.now():
            raise forms.ValidationError(_("This time has passed."))
        return until

    def validate_unique(self) -> None:
        """A queue that is paused already gets the new reason and end."""


class PausedQueueAdmin(PausedQueueModelAdmin):
    """The queues of which nothing is claimed."""

    form = PausedQueueForm
    fields = ("name", "reason", "paused_until")
    list_display = ("name", "reason", "state", "paused", "until", "paused_by")
    sortable_by = ()
    ordering = ("name",)
    show_full_result_count = False
    actions = ("resume",)

    class Media:
        css = {"all": ("django_dispatch/admin.css",)}

    def get_queryset(self, request: HttpRequest) -> QuerySet[PausedQueue]:
        """Return the queues with the database's time."""
        return super().get_queryset(request).using(conf.current().database).annotate(database_now=Now())

    def get_readonly_fields(self, request: HttpRequest, obj: Any = None) -> tuple[str, ...]:
        """A pause stays that of its queue."""
        return () if obj is None else ("name",)

    def has_delete_permission(self, request: HttpRequest, obj: Any = None) -> bool:
        """To delete one is to resume it: there is one way to do that."""
        return False

    def save_model(self, request: HttpRequest, obj: PausedQueue, form: Any, change: Any) -> None:
        """Pause the queue, in the name of who is logged in."""
        by = str(request.user.get_username())[: steering.MAX_BY_LENGTH]
        steering.pause_queue(obj.name, reason=obj.reason, until=obj.paused_until, by=by)

    @admin.action(description=_("Resume selected queues"), permissions=["change"])
    def resume(self, request: HttpRequest, queryset: QuerySet[PausedQueue]) -> None:
        """Have the queues claimed from again."""
        names = list(queryset.values_list("name", flat=True))
        for name in names:
            steering.resume_queue(name)
        self.message_user(request, _("%d resumed.") % len(names), SUCCESS)

    @admin.display(description=_("state"))
    def state(self, queue: PausedQueue) -> SafeString:
        is_over = queue.paused_until is not None and queue.paused_until <= display.database_now(queue)
        return display.badge("SUCCESSFUL", str(_("resumed"))) if is_over else display.badge("BLOCKED", str(_("paused")))

    @admin.display(description=_("paused"))
    def paused(self, queue: PausedQueue) -> SafeString | str:
        return display.moment(queue.paused_at, display.database_now(queue))

    @admin.display(description=_("until"))
    def until(self, queue: PausedQueue) -> SafeString | str:
        if queue.paused_until is None:
            return str(_("it is resumed"))
        return display.exact_moment(queue.paused_until, display.database_now(queue))
