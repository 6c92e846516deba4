"""Each statement reads by its index, and few rows, at a large backlog and history; whatever the statistics say.

auto_explain shows the plans by which the verbs really ran: under the session's own planner settings, and under the
server's defaults, which hold when a transaction pooler gives sessions no state.
"""

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import psycopg
import pytest
from django.core.management import call_command
from django.db import connections, transaction

from django_dispatch.models import Lease, Run
from django_dispatch.store import postgres_enqueue
from django_dispatch.store.postgres import PostgresStore
from django_dispatch.store.session import PLAN, Session, Terms, connection_params
from django_dispatch.store.values import NewRun, Settlement
from django_dispatch.store.walks import Line
from django_dispatch.wakeups.base import CHANNEL
from tests.databases import own_database

from .tables import FAR_OFF

pytestmark = pytest.mark.slow

ALIAS = "plans"
READY = SCHEDULED = 200_000
FINISHED = 500_000
HELD = 50
WAITING = 100_000
LIVE, EXPIRED = UUID(int=1), UUID(int=2)
FEW = 2_000
"""No statement has a reason to read more rows of the run table than this; the limits below are of 100."""


def ready(count: int) -> str:
    """Runs of some queues, one of them much larger than the others."""
    return f"""
    INSERT INTO django_dispatch_run (task, source, queue, priority, args, expires_at)
    SELECT 'shop.add', 'app', CASE WHEN n % 4 < 3 THEN 'bulk' WHEN n % 8 = 3 THEN 'mail' ELSE 'q' || n % 50 END,
           (n * 7919 % 11) - 5, jsonb_build_array(n), CASE WHEN n % 7 = 0 THEN clock_timestamp() + n % 100 * interval
           '1 hour' - interval '1 minute' END FROM generate_series(1::bigint, {count}) AS n
    """


def scheduled(count: int) -> str:
    """Runs of which one in a thousand is due."""
    return f"""
    INSERT INTO django_dispatch_run (task, source, status, queue, run_after)
    SELECT 'shop.add', 'app', 'SCHEDULED', 'bulk', clock_timestamp() + (n * 7919 % 100000 - 100) * interval '1 second'
    FROM generate_series(1::bigint, {count}) AS n
    """


KEPT = 20_000


def kept(count: int) -> str:
    """Runs that ended within six days, and have a retention of their own: for ever, or a day."""
    return f"""
    INSERT INTO django_dispatch_run (task, source, status, queue, finished_at, retention)
    SELECT 'shop.add', 'app', 'SUCCESSFUL', 'bulk', now() - (n * 7919 % {count}) * interval '500000 seconds' / {count},
           CASE WHEN n % 2 = 0 THEN '{{"SUCCESSFUL": 86400.0}}'::jsonb ELSE '{{"SUCCESSFUL": null}}' END
    FROM generate_series(1::bigint, {count}) AS n
    """


def finished(count: int) -> str:
    """Runs that ended within six days."""
    return f"""
    INSERT INTO django_dispatch_run (task, source, status, queue, finished_at, result)
    SELECT 'shop.add', 'app', (ARRAY['SUCCESSFUL', 'SUCCESSFUL', 'SUCCESSFUL', 'FAILED', 'CANCELLED'])[1 + n % 5],
           'bulk', now() - (n * 7919 % {count}) * interval '500000 seconds' / {count}, jsonb_build_array(n)
    FROM generate_series(1::bigint, {count}) AS n
    """


BLOCKED = f"""
INSERT INTO django_dispatch_run (
  task, source, status, queue, priority, concurrency_key, concurrency_limit, blocked_by, places, lease_id)
SELECT 'shop.add', 'app', 'BLOCKED', 'held', 0, 'hot', 5, 'hot', 0, NULL::uuid FROM generate_series(1, {WAITING})
UNION ALL SELECT 'shop.add', 'app', 'BLOCKED', 'held', 0, NULL, NULL, 'queue:held', 0, NULL
FROM generate_series(1, {WAITING})
UNION ALL SELECT 'shop.add', 'app', 'BLOCKED', 'held', 0, 'key ' || n, 1, 'key ' || n, 0, NULL
FROM generate_series(1, 3000) AS n
UNION ALL SELECT 'shop.add', 'app', 'RUNNING', 'held', 0, 'hot', 5, NULL, 1 + n % 2, '{UUID(int=4)}'
FROM generate_series(1, 3) AS n
"""
FAIR = f"""
INSERT INTO django_dispatch_run (task, source, queue, fair_key, turn)
SELECT 'shop.add', 'app', 'fair', 'tenant ' || n % 2, n * 2 FROM generate_series(1, {WAITING}) AS n
"""
RUNNING = f"""
INSERT INTO django_dispatch_run (task, source, status, lease_id, epoch, attempt, started_at, cancel_requested_at)
SELECT 'shop.add', 'app', 'RUNNING', lease, 1, 1, now(), CASE WHEN n = 1 THEN now() END
FROM unnest(ARRAY['{LIVE}', '{EXPIRED}', '{UUID(int=3)}']::uuid[]) AS lease, generate_series(1, {HELD}) AS n
"""
FOR_NOBODY = "INSERT INTO django_dispatch_run (task, source, queue) VALUES ('shop.add', 'app', 'lease:gone')"
LEASES = f"""
INSERT INTO django_dispatch_lease (id, host, expires_at)
VALUES ('{LIVE}', 'here', 'infinity'), ('{EXPIRED}', 'here', '-infinity'), ('{UUID(int=4)}', 'there', 'infinity')
"""


TELL_NESTED = "SET LOCAL auto_explain.log_nested_statements = on"
TELL_PLANS = [
    "SET auto_explain.log_min_duration = 0",
    "SET auto_explain.log_analyze = on",
    "SET auto_explain.log_timing = off",
    "SET auto_explain.log_format = json",
    "SET auto_explain.log_level = notice",
]


@dataclass
class Plans:
    """The plans that the server told, since they were last taken."""

    told: list[dict[str, Any]] = field(default_factory=list)

    def hear(self, diagnostic: psycopg.errors.Diagnostic) -> None:
        message = diagnostic.message_primary or ""
        if "plan:" in message:
            self.told.append(json.loads(message.split("plan:", 1)[1])["Plan"])

    def listen(self, connection: psycopg.Connection[Any]) -> None:
        connection.execute("LOAD 'auto_explain'")
        for setting in TELL_PLANS:
            connection.execute(setting.encode())
        connection.add_notice_handler(self.hear)


class ExplainedSession(Session):
    """The dispatcher's session, with settings of the test's after its own, and ears for the plans."""

    def __init__(self, plans: Plans, changes: dict[str, str | None]) -> None:
        super().__init__(Terms(ALIAS, "test", statement_timeout_seconds=60.0))
        self.plans = plans
        self.changes = changes

    def _connect(self) -> psycopg.Connection[tuple[Any, ...]]:
        connection = super()._connect()
        for name, value in self.changes.items():
            connection.execute(f"SET {name} TO {value or 'DEFAULT'}".encode())
        self.plans.listen(connection)
        return connection


@contextlib.contextmanager
def database_without_vacuum() -> Iterator[psycopg.Connection[Any]]:
    """An empty database of its own, where nobody gathers statistics but the test."""
    with own_database(ALIAS):
        call_command("migrate", "django_dispatch", database=ALIAS, verbosity=0)
        with psycopg.connect(**connection_params(ALIAS, "test"), autocommit=True) as connection:
            if connection.execute("SHOW is_superuser").fetchone() != ("on",):
                pytest.skip("auto_explain may be loaded by a superuser only")
            connection.execute("ALTER TABLE django_dispatch_run SET (autovacuum_enabled = off)")
            yield connection


@pytest.fixture(scope="module")
def large_database(django_db_modify_db_settings: None, django_db_blocker: Any) -> Iterator[psycopg.Connection[Any]]:
    """All those rows, with statistics from before the backlog came."""
    with django_db_blocker.unblock(), database_without_vacuum() as connection:
        connection.execute("ALTER TABLE django_dispatch_run DISABLE TRIGGER USER")
        for statement in (
            finished(FINISHED),
            kept(KEPT),
            "ANALYZE",
            ready(READY),
            scheduled(SCHEDULED),
            BLOCKED,
            FAIR,
            RUNNING,
            LEASES,
            FOR_NOBODY,
        ):
            connection.execute(statement.encode())
        connection.execute("ALTER TABLE django_dispatch_run ENABLE TRIGGER USER")
        yield connection


# In this order, for statistics cannot be made to forget.
@pytest.fixture(scope="module", params=["stale statistics", "fresh statistics"])
def statistics(request: pytest.FixtureRequest, large_database: psycopg.Connection[Any]) -> None:
    if request.param == "fresh statistics":
        large_database.execute("ANALYZE")


SETTINGS: dict[str, dict[str, str | None]] = {
    "the session's settings": {},
    "the settings of claims": {"plan_cache_mode": "force_generic_plan"},
    "default settings, generic plans": dict.fromkeys(PLAN) | {"plan_cache_mode": "force_generic_plan"},
    "default settings, custom plans": dict.fromkeys(PLAN) | {"plan_cache_mode": "force_custom_plan"},
}


def held_by(lease_id: UUID) -> list[int]:
    return list(Run.objects.using(ALIAS).filter(lease_id=lease_id).order_by("pk").values_list("pk", flat=True))


def outcomes() -> list[Settlement]:
    return [Settlement(run_id, 1, "SUCCESSFUL", result="1") for run_id in held_by(LIVE)]


def claim(store: PostgresStore, **options: Any) -> int:
    return len(store.exchange(LIVE, [], queues=["mail", "q1", "bulk"], limit=100, **options).claimed)


def claim_further_on(store: PostgresStore, settlements: Sequence[Settlement] = ()) -> int:
    """In a line where claims begin behind the first of the READY runs."""
    line = store._walks._lines[()] = Line(whole_at=float("inf"))
    line.places["bulk"] = {0: 2 * (FINISHED + READY // 2)}
    return len(store.exchange(LIVE, settlements, queues=["bulk"], limit=100).claimed)


def admit(store: PostgresStore, *keys: str) -> int:
    """Return how many were admitted."""
    store.session.execute(TELL_NESTED)
    limits = json.dumps({"held": {"concurrency": 10}}) if keys[0].startswith("queue:") else "{}"
    store.admit(keys, most=100, queue_limits=limits)
    ready = "SELECT count(*) FROM django_dispatch_run WHERE status = 'READY' AND queue = 'held'"
    return int(store.session.execute(ready).fetchall()[0][0])


def agenda(store: PostgresStore) -> tuple[int, int, bool]:
    """Return how many queues have work, at how many keys runs wait, and whether all that is due was seen."""
    found = store.agenda(host="here", tasks=["shop.add"], grace_seconds=2.0, limit=100)
    seconds = (found.promote_seconds, found.expire_seconds)
    is_due = found.has_lost and all(one is not None and one < 0 for one in seconds)
    return len(found.ready_queues), len(found.blocked_keys), is_due


def turn(store: PostgresStore, key: str | None, line: str = "fair") -> int:
    store.session.execute(TELL_NESTED)
    params = {"line": line, "key": key}
    found = store.session.execute("SELECT django_dispatch_turn(%(line)s, 0::smallint, %(key)s::text, 1)", params)
    return int(found.fetchall()[0][0])


# name: the indexes that it may read runs by, the call, and what it must return to have done its work
BLOCKED_INDEX = "dispatch_run_blocked"
CLAIM, LEASE, KEY = "dispatch_run_claim", "dispatch_run_lease", "django_dispatch_run_pkey"
PLACES = {BLOCKED_INDEX, "dispatch_run_key_places", "dispatch_run_queue_places", CLAIM, KEY}
TURNS = {"dispatch_run_turns", "dispatch_run_fair"}
BOUNDED = {
    "backlogs": 75_000,  # 10,000 rows of each of the large queues, and all of the small ones
    "a turn of a key that waits": 1,
    "a turn of a key of which none waits": 1,
}
VERBS: dict[str, tuple[set[str], Callable[[PostgresStore], object], object]] = {
    "claim": ({CLAIM, KEY}, claim, 100),
    "claim without some tasks": ({CLAIM, KEY}, lambda store: claim(store, excluded_tasks=["shop.slow"]), 100),
    "claim further on": ({CLAIM, KEY}, claim_further_on, 100),
    "finish and claim further on": ({CLAIM, KEY}, lambda store: claim_further_on(store, outcomes()), 100),
    "claim in turns": (
        {CLAIM, KEY},
        lambda store: len(store.exchange(LIVE, [], queues=["fair"], limit=100).claimed),
        100,
    ),
    "a turn of a key that waits": (TURNS, lambda store: turn(store, "tenant 1") > WAITING, True),
    "a turn of a key of which none waits": (
        TURNS,
        lambda store: 1 < turn(store, "tenant 2") == turn(store, None),
        True,
    ),
    "a turn in an empty line": (TURNS, lambda store: turn(store, "tenant 1", "none"), 2),
    "finish": ({KEY}, lambda store: store.exchange(LIVE, outcomes(), queues=[], limit=0).refused, []),
    "finish what is not ours": (
        {KEY},
        lambda store: len(store.exchange(LIVE, [s._replace(epoch=0) for s in outcomes()], queues=[], limit=0).refused),
        HELD,
    ),
    "finish and claim": (
        {CLAIM, KEY},
        lambda store: len(store.exchange(LIVE, outcomes(), queues=["bulk"], limit=100).claimed),
        100,
    ),
    "held": ({LEASE}, lambda store: len(store.held(LIVE)), HELD),
    "cancellations": ({LEASE}, lambda store: len(store.cancellations(LIVE)), 1),
    "progress": (
        {KEY},
        lambda store: store.report_progress(LIVE, {(run_id, 1): "1" for run_id in held_by(LIVE)}),
        None,
    ),
    "surrender": ({LEASE}, lambda store: store.surrender(LIVE), False),
    "reclaim": (
        {LEASE, KEY},
        lambda store: len(store.reclaim(grace_seconds=2.0, max_interruptions=3)),
        2 * HELD,
    ),
    "promote": ({"dispatch_run_promote", KEY}, lambda store: store.promote(limit=10)[0], ["bulk"]),
    "promote all that is due": ({"dispatch_run_promote", KEY}, lambda store: store.promote(limit=5_000)[0], ["bulk"]),
    "promote into a queue with a limit": (
        {"dispatch_run_promote", KEY},
        lambda store: store.promote(limit=10, limited_queues=["bulk"])[2],
        ["queue:bulk"],
    ),
    "admit at a key where many wait": (PLACES, lambda store: admit(store, "hot"), 2),
    "admit at a queue where many wait": (PLACES, lambda store: admit(store, "queue:held"), 8),
    "admit at many keys": (PLACES, lambda store: admit(store, *(f"key {n}" for n in range(1, 101))), 100),
    "blocked keys": ({BLOCKED_INDEX}, lambda store: len(store.blocked_keys(after="key", limit=100)), 100),
    "expire": ({"dispatch_run_expire", KEY}, lambda store: store.expire(limit=10)[0], 10),
    "expire what is late": (
        {"dispatch_run_expire", KEY},
        lambda store: 0 < store.expire(limit=5_000)[0] < 5_000,
        True,
    ),
    "prune": (
        {"dispatch_run_prune", KEY},
        lambda store: store.prune(status="SUCCESSFUL", age_seconds=86_400.0, limit=100),
        100,
    ),
    "prune all that is old": (
        {"dispatch_run_prune", KEY},
        lambda store: 0 < store.prune(status="SUCCESSFUL", age_seconds=499_000.0, limit=5_000) < 5_000,
        True,
    ),
    "prune what has a retention of its own": (
        {"dispatch_run_prune_own", KEY},
        lambda store: store.prune_own(limit=100),
        100,
    ),
    "agenda": ({CLAIM, BLOCKED_INDEX, LEASE, "dispatch_run_promote", "dispatch_run_expire"}, agenda, (29, 100, True)),
    "cancel what is for nobody": ({CLAIM, KEY}, lambda store: store.cancel_unreachable(), 1),
    "age": ({CLAIM, KEY}, lambda store: store.age(age_seconds=0.0, limit=2), 2 * 27 * 10),
    "ready queues": ({CLAIM}, lambda store: len(store.ready_queues()), 29),
    "backlogs": ({CLAIM}, lambda store: max((one.ready for one in store.backlogs()), default=0), 10_000),
    "neighbours": (set(), lambda store: len(store.neighbours(host="here", besides=LIVE)), 1),
}


@pytest.mark.parametrize("settings_name", SETTINGS)
@pytest.mark.parametrize("verb", VERBS)
def test_a_verb_reads_by_its_index_and_few_rows(
    statistics: None, django_db_blocker: Any, verb: str, settings_name: str
) -> None:
    indexes, call, expected = VERBS[verb]
    plans = Plans()
    store = PostgresStore(ExplainedSession(plans, SETTINGS[settings_name]))
    with django_db_blocker.unblock():
        store.session.execute("BEGIN")
        assert call(store) == expected
        store.session.execute("ROLLBACK")
        store.close()
    assert plans.told
    for plan in plans.told:
        check(plan, indexes, most=BOUNDED.get(verb, FEW))


CALLS: dict[str, tuple[set[str], Callable[[list[int]], object]]] = {
    "enqueue": (set(), lambda held: postgres_enqueue.enqueue(ALIAS, NewRun("shop.add"))),
    "enqueue and wake": (
        set(),
        lambda held: postgres_enqueue.enqueue_and_wake(ALIAS, NewRun("shop.add"), CHANNEL, "ready:default")[0],
    ),
    "enqueue many": (set(), lambda held: postgres_enqueue.enqueue_many(ALIAS, [NewRun("shop.add")] * 500)),
    "cancel": ({KEY}, lambda held: postgres_enqueue.cancel(ALIAS, [*held, 1, FINISHED + 1, FINISHED + READY + 1])),
    "enqueue with a fair key": (set(), lambda held: postgres_enqueue.enqueue(ALIAS, NewRun("shop.add", fair_key="a"))),
    "rerun": ({KEY}, lambda held: postgres_enqueue.rerun(ALIAS, 1)),
}


@pytest.mark.parametrize("name", CALLS)
def test_a_callers_statement_reads_by_the_primary_key(statistics: None, django_db_blocker: Any, name: str) -> None:
    indexes, call = CALLS[name]
    plans = Plans()
    with django_db_blocker.unblock():
        connection = connections[ALIAS]
        held = held_by(LIVE)
        connection.set_autocommit(False)
        plans.listen(connection.connection)
        assert call(held)
        connection.rollback()
        connection.close()
    (plan,) = plans.told
    check(plan, indexes)


TABLE_KEYS = ("django_dispatch_pausedqueue_pkey", "django_dispatch_bucket_pkey")


@pytest.mark.parametrize("status", ["READY", "SCHEDULED", "BLOCKED", "RUNNING", "SUCCESSFUL"])
def test_to_say_why_a_run_is_not_running_reads_few_rows(
    statistics: None, django_db_blocker: Any, settings: Any, status: str
) -> None:
    settings.DISPATCH = {"DATABASE": ALIAS}
    plans = Plans()
    with django_db_blocker.unblock():
        with transaction.atomic(using=ALIAS):
            runs = Run.objects.using(ALIAS)
            runs.create(task="shop.add", status="BLOCKED", concurrency_key="k", source="app")
            run = runs.filter(status=status).order_by("-pk")[0]
            leases = Lease.objects.using(ALIAS)
            leases.exclude(pk=EXPIRED).update(expires_at=FAR_OFF)  # Python has no infinity
            leases.filter(pk=LIVE).update(queues=["*"], slots=1)
            plans.listen(connections[ALIAS].connection)
            assert run.explain().causes
            transaction.set_rollback(True, using=ALIAS)
        connections[ALIAS].close()
    assert plans.told
    for plan in plans.told:
        check(plan, {CLAIM, KEY, LEASE, "dispatch_run_key_places", *TABLE_KEYS})


def test_the_trigger_reads_what_was_inserted_and_who_waits_and_nothing_else(
    large_database: psycopg.Connection[Any], statistics: None
) -> None:
    plans = Plans()
    with psycopg.connect(**connection_params(ALIAS, "test")) as connection:
        plans.listen(connection)
        connection.execute("SET auto_explain.log_nested_statements = on")
        connection.execute("INSERT INTO django_dispatch_run (task) SELECT 'shop.add' FROM generate_series(1, 100)")
        connection.rollback()
    condition, waiters, wakeup, insert = plans.told
    assert {node["Relation Name"] for node in nodes_of(waiters) if "Relation Name" in node} == {
        "django_dispatch_waiter"
    }
    types = [{node["Node Type"] for node in nodes_of(plan)} for plan in (condition, wakeup, insert)]
    assert "Named Tuplestore Scan" in types[0] & types[1]
    assert not {"Seq Scan", "Index Scan", "Index Only Scan", "Bitmap Heap Scan"} & set().union(*types)


def check(plan: dict[str, Any], indexes: set[str], *, most: int = FEW) -> None:
    shown = "\n".join(outline(plan))
    for node in nodes_of(plan):
        if not node["Actual Loops"]:
            continue
        if node.get("Relation Name") == "django_dispatch_run" and node["Node Type"] != "ModifyTable":
            assert node["Node Type"] in ("Index Scan", "Index Only Scan", "Bitmap Heap Scan", "Tid Scan"), shown
        if index := node.get("Index Name"):
            assert index in indexes | {"django_dispatch_lease_pkey", "django_dispatch_waiter_pkey"}, shown
            assert rows_read(node) <= most, shown
        if node["Node Type"] in ("Sort", "Incremental Sort"):
            assert rows_read(node) <= most, shown


def rows_read(node: dict[str, Any]) -> float:
    removed = node.get("Rows Removed by Filter", 0) + node.get("Rows Removed by Index Recheck", 0)
    return float((node["Actual Rows"] + removed) * node["Actual Loops"])


def outline(node: dict[str, Any], depth: int = 0) -> Iterator[str]:
    what = [node[key] for key in ("Subplan Name", "Node Type", "Relation Name", "Index Name") if key in node]
    yield f"{'  ' * depth}{' '.join(what)}: {rows_read(node):g} rows"
    for child in node.get("Plans", ()):
        yield from outline(child, depth + 1)


def nodes_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes_of(child)
