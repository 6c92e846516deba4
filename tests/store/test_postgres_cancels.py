"""Two cancels of the same runs at the same time: each locks them by id, so neither can deadlock with the other."""

from concurrent.futures import ThreadPoolExecutor

from django.db import connection, connections, transaction

from django_dispatch import CancelAnswer, cancel, cancel_many
from tests.kit.waiting import wait_for

from .tables import add_runs

WAITS = """
    SELECT count(*) FROM pg_stat_activity
    WHERE datname = current_database() AND query LIKE %s AND cardinality(pg_blocking_pids(pid)) > 0
"""


def test_two_cancels_of_the_same_runs_do_not_deadlock(transactional_db: None) -> None:
    ids = add_runs(2)

    def cancel_both() -> dict[int, CancelAnswer]:
        try:
            return cancel_many(ids[::-1])
        finally:
            connections.close_all()

    def is_waiting() -> bool:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_stat_clear_snapshot()")  # in a transaction it would stay as it was
            cursor.execute(WAITS, ["%target AS MATERIALIZED%"])
            return bool(cursor.fetchone()[0])

    with ThreadPoolExecutor(1) as threads:
        with transaction.atomic():
            cancel(ids[0])
            answers = threads.submit(cancel_both)
            wait_for(is_waiting, what="the second cancel waits for the first")
            assert cancel(ids[1]) is CancelAnswer.CANCELLED
        assert set(answers.result(30).values()) == {CancelAnswer.ALREADY_FINAL}
