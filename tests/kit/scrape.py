"""A dispatcher's HTTP port, as a scraper sees it."""

import socket
import urllib.request
from collections import Counter
from collections.abc import Callable
from urllib.error import HTTPError

from prometheus_client.parser import text_string_to_metric_families

Labels = tuple[tuple[str, str], ...]


class Scrape:
    """What one scrape brought: values by the name of the sample and its labels."""

    def __init__(self, text: str) -> None:
        self.families = list(text_string_to_metric_families(text))
        self.values: dict[tuple[str, Labels], float] = {
            (sample.name, tuple(sorted(sample.labels.items()))): sample.value
            for family in self.families
            for sample in family.samples
        }
        self.kinds = {family.name: family.type for family in self.families}

    @property
    def names(self) -> set[str]:
        return {name for name, _ in self.values}

    def value(self, name: str, **labels: str) -> float:
        """Return the sum over all that has these labels."""
        return sum(
            value
            for (found, have), value in self.values.items()
            if found == name and labels.items() <= dict(have).items()
        )

    def by(self, name: str, *labels: str) -> dict[tuple[str, ...], int]:
        """Return the values of a name, by the values of these labels."""
        found: Counter[tuple[str, ...]] = Counter()
        for (its_name, have), value in self.values.items():
            if its_name == name:
                found[tuple(dict(have)[label] for label in labels)] += int(value)
        return dict(found)


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def get(port: int, path: str = "/metrics", accept: str = "", seconds: float = 10) -> tuple[int, str, str]:
    """Return status, content type and body."""
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers={"Accept": accept})
    try:
        with urllib.request.urlopen(request, timeout=seconds) as response:
            return response.status, response.headers["Content-Type"], response.read().decode()
    except HTTPError as error:
        return error.code, error.headers["Content-Type"], error.read().decode()


def scrape(port: int) -> Scrape:
    status, _, text = get(port)
    assert status == 200
    return Scrape(text)


def serving(port: int) -> Callable[[], bool]:
    def is_serving() -> bool:
        with socket.socket() as client:
            return client.connect_ex(("127.0.0.1", port)) == 0

    return is_serving
