"""Two dispatchers for a whole module; a test leaves them as it found them."""

from collections.abc import Iterator

import pytest
from pytest_django.plugin import DjangoDbBlocker

from tests.kit.fixtures import Kit, open_kit

SETTINGS = {"NOTIFY_CHANNELS": {"test_channel": "default"}, "CONTROL_CHANNEL": "test_channel"}


@pytest.fixture(scope="module")
def pair(
    tmp_path_factory: pytest.TempPathFactory, database_url: str, django_db_blocker: DjangoDbBlocker
) -> Iterator[Kit]:
    """Dispatchers "a" and "b", with leases long enough for one to be frozen for a while."""
    with open_kit(tmp_path_factory.mktemp("pair"), database_url, django_db_blocker) as kit:
        for node in ("a", "b"):
            kit.dispatchers(node, is_awaited=False, async_concurrency=600, lease_ttl=30, settings=SETTINGS)
        for dispatcher in kit.dispatchers.all:
            dispatcher.wait_until_ready(2)
        yield kit


@pytest.fixture(autouse=True)
def same_channel(settings: pytest.FixtureRequest) -> None:
    settings.DISPATCH = SETTINGS  # type: ignore[attr-defined]
