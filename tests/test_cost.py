"""What a real dispatcher writes and holds open while it drains runs, by the server's own count."""

from tests.kit import tasks
from tests.kit.fixtures import Kit
from tests.kit.waiting import wait_for

RUNS = 1_000
COUNTS = "SELECT n_tup_ins, n_tup_upd, n_tup_del FROM pg_stat_user_tables WHERE relname = %s"
RUN, LEASE = ["django_dispatch_run"], ["django_dispatch_lease"]
LISTENER = "SELECT state, xact_start FROM pg_stat_activity WHERE application_name = 'django_dispatch listener'"
LEFT = "SELECT count(*) FROM django_dispatch_run WHERE status <> 'SUCCESSFUL'"
AGE = "SELECT extract(epoch FROM clock_timestamp() - acquired_at)::float8 FROM django_dispatch_lease"
RENEW_SECONDS = 1.0


def test_a_run_costs_one_insert_and_two_updates_and_no_renewal(kit: Kit) -> None:
    def counts(table: list[str]) -> tuple[int, ...]:
        kit.sql.execute("SELECT pg_stat_clear_snapshot()")
        row = kit.sql.execute(COUNTS, table).fetchone()
        assert row
        return tuple(row)

    def since(table: list[str], before: tuple[int, ...]) -> tuple[int, ...]:
        return tuple(now - then for now, then in zip(counts(table), before, strict=True))

    def value(query: str) -> float:
        row = kit.sql.execute(query).fetchone()  # type: ignore[call-overload]
        assert row
        return float(row[0])

    runs, leases = counts(RUN), counts(LEASE)
    kit.dispatchers(lease_ttl=3 * RENEW_SECONDS)
    listener = set()
    tasks.quick.delay_many([()] * RUNS)

    def is_done() -> bool:
        listener.update(kit.sql.execute(LISTENER).fetchall())
        return value(LEFT) == 0

    wait_for(is_done, 60, what="all runs")
    # A session's counts are in a moment after it became idle.
    wait_for(lambda: since(RUN, runs)[1] >= 2 * RUNS, what="the counts")
    assert since(RUN, runs) == (RUNS, 2 * RUNS, 0)
    assert since(LEASE, leases)[1] <= value(AGE) / RENEW_SECONDS + 1
    assert listener == {("idle", None)}
