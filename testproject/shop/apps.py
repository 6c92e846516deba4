"""The shop as a Django app."""

from django.apps import AppConfig


class ShopConfig(AppConfig):
    name = "testproject.shop"

    def ready(self) -> None:
        """Connect the hooks of the models."""
        from testproject.shop import hooks  # noqa: F401
