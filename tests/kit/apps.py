from django.apps import AppConfig

from . import sabotage


class KitConfig(AppConfig):
    name = "tests.kit"
    label = "kit"

    def ready(self) -> None:
        sabotage.commit()
