"""What people do in the admin: cancel, run again, delete. A thread, from a seeded stream; it notes what it asks."""

import random
import threading

from django.db import Error as DatabaseError
from django.db import connection, connections

from django_dispatch import InvalidOption, cancel_many, run_again
from django_dispatch.models import FINAL, Run

PAUSE_SECONDS = 0.5
PICK = """
    SELECT id FROM django_dispatch_run WHERE (finished_at IS NULL) = %s AND coalesce(run_after < now() + '1h', true)
    ORDER BY hashint8extended(id, %s) LIMIT %s
"""


class Steering(threading.Thread):
    """Asks for something now and then. ``asked`` are the ids, by verb, noted before each is asked for."""

    def __init__(self, seed: int) -> None:
        super().__init__(name="steering", daemon=True)
        self._dice = random.Random(f"{seed}/steering")
        self._is_over = threading.Event()
        self.asked: dict[str, set[int]] = {"cancel": set(), "rerun": set(), "delete": set()}
        self.problem: BaseException | None = None

    def stop(self) -> None:
        self._is_over.set()
        self.join()

    def run(self) -> None:
        """Steer until stopped."""
        try:
            while not self._is_over.wait(self._dice.expovariate(1 / PAUSE_SECONDS)):
                verb = self._dice.choices([self._cancel_some, self._run_one_again, self._delete_some], [6, 2, 2])[0]
                try:
                    verb()
                except DatabaseError:
                    connections.close_all()
        except BaseException as error:
            self.problem = error
            raise
        finally:
            connections.close_all()

    def _cancel_some(self) -> None:
        ids = self._pick(is_final=False, count=self._dice.choice([1, 1, 1, 5]))
        self.asked["cancel"].update(ids)
        cancel_many(ids)

    def _run_one_again(self) -> None:
        for run_id in self._pick(is_final=True, count=1):
            self.asked["rerun"].add(run_id)
            try:
                run_again(run_id)
            except InvalidOption:
                continue  # pruned meanwhile

    def _delete_some(self) -> None:
        ids = self._pick(is_final=True, count=3)
        self.asked["delete"].update(ids)
        Run.objects.filter(pk__in=ids, status__in=FINAL).delete()

    def _pick(self, *, is_final: bool, count: int) -> list[int]:
        with connection.cursor() as cursor:
            cursor.execute(PICK, [not is_final, self._dice.getrandbits(32), count])
            return [row[0] for row in cursor.fetchall()]
