"""The Django app."""

from django.apps import AppConfig
from django.utils.translation import gettext_lazy as _


class DjangoDispatchConfig(AppConfig):
    """Registers the system checks. Task modules are not imported here: whoever needs them asks the registry."""

    name = "django_dispatch"
    label = "django_dispatch"
    verbose_name = _("Dispatch")
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Register the system checks."""
        from django_dispatch.checks import register_checks

        register_checks()
