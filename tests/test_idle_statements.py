"""How often an idle dispatcher asks the database anything, by the server's own log and clock."""

import itertools
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psycopg
import pytest
from psycopg import sql

from testproject.postgres import TemporaryServer
from tests.kit.fixtures import Kit
from tests.kit.waiting import wait_for

pytestmark = pytest.mark.slow

LOGGED = re.compile(
    r"^([\d.]+)\|django_dispatch (\w+)\|LOG:  (?:execute|statement)[^:]*:((?:.|\n(?![\d.]+\|))*)", re.MULTILINE
)
SECONDS = 20.0
# Proofs that LISTEN works, agendas, renewals, declarations: no oftener than this, and no more than so many at once.
MOST_PER_SECOND = 1 / 1.6 + 1 / 4 + 1 / 5 + 2 / 16
MOST_AT_ONCE = 5


@pytest.fixture
def logged(server: TemporaryServer) -> Iterator[Any]:
    """What dispatchers have executed: (seconds, role, statement)."""
    with closing(psycopg.connect(server.url, autocommit=True)) as connection:
        for name, value in {"log_statement": "all", "log_line_prefix": "%n|%a|"}.items():
            connection.execute(sql.SQL("ALTER SYSTEM SET {} = {}").format(sql.Identifier(name), sql.Literal(value)))
        connection.execute("SELECT pg_reload_conf()")
    log = server.home / "log"

    def read() -> list[tuple[float, str, str]]:
        found = LOGGED.findall(log.read_text(errors="replace"))
        return [(float(at), role, " ".join(text.split())) for at, role, text in found]

    yield read


def test_an_idle_dispatcher_asks_no_more_than_once_a_second_or_so(
    kit: Kit, server: TemporaryServer, logged: Any
) -> None:
    """However many steps it has: one statement asks for all of them. (A fleet shares the proofs.)"""
    kit.dispatchers(database_url=server.url, poll_interval=1, lease_ttl=15)

    def agendas() -> list[float]:
        return [at for at, role, text in logged() if role == "store" and "holder AS" in text]

    def quiet() -> list[float]:
        """The agendas since they are as far apart as when LISTEN is proved, and all steps had their first turn."""
        times = agendas()
        pairs = list(itertools.pairwise(times))
        return [later for earlier, later in pairs if later - earlier > 3.5][1:]

    wait_for(lambda: (times := quiet()) and times[-1] - times[0] >= SECONDS, seconds=120, what="agendas for a while")
    times = quiet()
    began, ended = times[0], times[-1]
    asked = Counter(f"{role}: {text[:200]}" for at, role, text in logged() if began < at <= ended)
    assert asked.total() <= MOST_PER_SECOND * (ended - began) + MOST_AT_ONCE, asked
    for statement, times_asked in asked.items():
        is_expected = statement.startswith("keeper") or "pg_notify" in statement or "RECURSIVE clock" in statement
        assert is_expected or times_asked <= (ended - began) / 10 + 1, f"a step asks by itself: {statement}"
