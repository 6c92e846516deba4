"""Writers: threads that enqueue by every door, from a seeded stream, and note what became of each transaction."""

import json
import random
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import psycopg
from django.db import Error as DatabaseError
from django.db import connection, connections, transaction
from django.utils import timezone

from . import tasks
from .evidence import Enqueue, Fate

PAUSE_SECONDS = 0.2
TROUBLED_SECONDS = 0.5
QUEUES = ("default", "mail", "reports", "a queue of many words")
UNSERVED_SECONDS = 86_400
CRASHES = ("segfault", "exit", "abort", "kill")
INSERT = (
    "INSERT INTO django_dispatch_run (task, args, queue, priority, status, run_after)"
    " VALUES (%s, %s::jsonb, %s, %s, CASE WHEN %s::float8 > 0 THEN 'SCHEDULED' ELSE 'READY' END,"
    " CASE WHEN %s::float8 > 0 THEN clock_timestamp() + %s::float8 * interval '1 second' END)"
)


class RolledBack(Exception):
    """The writer changed its mind."""


class Writer(threading.Thread):
    """One seeded stream of work. ``has_room`` says whether there is not too much waiting already."""

    def __init__(self, name: str, seed: int, url: str, has_room: Callable[[], bool]) -> None:
        super().__init__(name=f"writer {name}", daemon=True)
        self._stream = name
        self._dice = random.Random(f"{seed}/writer {name}")
        self._url = url
        self._has_room = has_room
        self._is_over = threading.Event()
        self._count = 0
        self.enqueues: list[Enqueue] = []
        self.problem: BaseException | None = None

    def stop(self) -> None:
        self._is_over.set()
        self.join()

    def run(self) -> None:
        """Enqueue until stopped."""
        try:
            while not self._is_over.wait(self._dice.expovariate(1 / PAUSE_SECONDS)):
                if self._has_room():
                    door = self._dice.choices(
                        [self._one, self._one_with_options, self._transaction, self._many, self._by_sql],
                        [6, 4, 4, 1, 2],
                    )[0]
                    door()
        except BaseException as error:
            self.problem = error
            raise
        finally:
            connections.close_all()

    # the doors

    def _one(self) -> None:
        name, args, options = self._work()
        if options:
            self._note([args[0]], lambda: getattr(tasks, name).apply_async(args, **options))
        else:
            self._note([args[0]], lambda: getattr(tasks, name).delay(*args))

    def _one_with_options(self) -> None:
        name, args, options = self._work()
        options |= {"queue": self._dice.choice(QUEUES), "priority": self._dice.randint(-100, 100)}
        match self._dice.random():
            case luck if luck < 0.3:
                options["countdown"] = self._dice.uniform(0, 3)
            case luck if luck < 0.4:
                options["run_after"] = timezone.now() + timedelta(seconds=self._dice.uniform(-1, 3))
            case luck if luck < 0.45:
                options["countdown"] = UNSERVED_SECONDS
        self._note([args[0]], lambda: getattr(tasks, name).apply_async(args, **options))

    def _transaction(self) -> None:
        """Several in one transaction, with a row that the run will look for; some of these are rolled back."""
        works = [self._work() for _ in range(self._dice.randint(1, 4))]
        order = self._key()
        keys = [*(args[0] for _, args, _ in works), order]
        is_kept = self._dice.random() < 0.7

        def write() -> None:
            with transaction.atomic():
                for name, args, options in works:
                    getattr(tasks, name).apply_async(args, **options)
                tasks.follows.delay(order)
                with connection.cursor() as cursor:
                    cursor.execute("INSERT INTO soak_order (key) VALUES (%s)", [order])
                self._is_over.wait(0.05)
                if not is_kept:
                    raise RolledBack

        self._note(keys, write)

    def _many(self) -> None:
        keys = [self._key() for _ in range(self._dice.randint(2, 40))]
        body = self._dice.choice([tasks.tiny, tasks.atiny])
        queue = self._dice.choice(QUEUES)
        self._note(keys, lambda: body.delay_many([(key,) for key in keys], queue=queue))

    def _by_sql(self) -> None:
        """As another program would, which knows the table alone."""
        name, args, _ = self._work(without=("hangs", "ahangs", "stubborn"))
        delay = self._dice.choice([0, 0, 1.5])
        values = [f"tests.soak.tasks.{name}", json.dumps(args), self._dice.choice(QUEUES), self._dice.randint(-5, 5)]

        def write() -> None:
            with psycopg.connect(self._url, autocommit=True, application_name="soak outsider") as outsider:
                outsider.execute(INSERT, [*values, delay, delay, delay])

        self._note([args[0]], write)

    # what

    def _work(self, without: Sequence[str] = ()) -> tuple[str, list[Any], dict[str, Any]]:
        """Draw a task, its arguments, and the options that it needs."""
        dice, key = self._dice, self._key()
        drawn: list[tuple[float, str, list[Any], dict[str, Any]]] = [
            (20, "tiny", [], {}),
            (10, "atiny", [], {}),
            (8, "naps", [dice.uniform(0.05, 1.5)], {}),
            (8, "anaps", [dice.uniform(0.05, 4)], {}),
            (4, "once", [dice.uniform(0.05, 1)], {}),
            (3, "fails", [], {}),
            (5, "flaky", [dice.randint(1, 2)], {"max_attempts": dice.choice([1, 3, 4])}),
            (2, "hangs", [], {"timeout": dice.uniform(0.3, 1), "max_attempts": dice.choice([1, 2])}),
            (2, "ahangs", [], {"timeout": dice.uniform(0.3, 1), "max_attempts": dice.choice([1, 2])}),
            (1, "stubborn", [], {"timeout": 0.5}),
            (3, "crashes", [dice.choice(CRASHES), dice.choice([1, 1, 2, 100])], {}),
            (1, "acrashes", [dice.choice(CRASHES), 1], {}),
            (3, "returns", [dice.choice(["nul", "big", "object"])], {}),
            (6, "holds", [dice.uniform(0.05, 1)], {}),
            (2, "spawns", [dice.uniform(0.05, 0.5)], {}),
        ]
        drawn = [work for work in drawn if work[1] not in without]
        _, name, rest, options = dice.choices(drawn, [work[0] for work in drawn])[0]
        return name, [key, *rest], options

    def _key(self) -> str:
        self._count += 1
        return f"{self._stream}-{self._count}"

    # its fate

    def _note(self, keys: Sequence[str], write: Callable[[], object]) -> None:
        """Do it, and note its fate: nobody knows what became of a commit whose answer did not come."""
        fate: Fate = "committed"
        try:
            write()
        except RolledBack:
            fate = "rolled back"
        except (DatabaseError, psycopg.Error):
            fate = "in doubt"
            connections.close_all()
            self._is_over.wait(TROUBLED_SECONDS)
        self.enqueues.append(Enqueue(keys, fate))
