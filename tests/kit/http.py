"""HTTP as probes and scrapers speak it."""

import json
import socket
import time
import urllib.error
import urllib.request
from typing import Any, NamedTuple


class Answer(NamedTuple):
    """What came back, and within how many seconds."""

    status: int
    text: str
    seconds: float

    @property
    def document(self) -> Any:
        return json.loads(self.text)


def free_port() -> int:
    """Return a port that nobody has."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port


def get(port: int, path: str) -> Answer:
    """Ask; what is no success is an answer too. No connection: status 0."""
    began = time.monotonic()
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=20) as response:
            return Answer(response.status, response.read().decode(), time.monotonic() - began)
    except urllib.error.HTTPError as error:
        return Answer(error.code, error.read().decode(), time.monotonic() - began)
    except (urllib.error.URLError, ConnectionError):
        return Answer(0, "", time.monotonic() - began)
