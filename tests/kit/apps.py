import os

from django.apps import AppConfig
from django.db import connection

from . import sabotage


class KitConfig(AppConfig):
    name = "tests.kit"
    label = "kit"

    def ready(self) -> None:
        """Do what projects should not do, if a test says so."""
        sabotage.commit()
        if "KIT_CONNECTS_EARLY" in os.environ:
            connection.ensure_connection()
