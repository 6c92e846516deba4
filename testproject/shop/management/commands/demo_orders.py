"""A stream of live work for the demo."""

import itertools
import time
from argparse import ArgumentParser
from typing import Any

from django.core.management.base import BaseCommand
from django.db import OperationalError, connection

from testproject.shop import sales
from testproject.shop.views import ACTIONS

OTHER_WORK = ["primes", "suppliers", "import", "fail"]
ORDERS_PER_OTHER_WORK = 25


class Command(BaseCommand):
    help = "Places an order every few hundred milliseconds, and now and then starts other work."

    def add_arguments(self, parser: ArgumentParser) -> None:
        parser.add_argument("--count", type=int, help="how many orders to place; default: until stopped")
        parser.add_argument("--every", type=float, default=0.4, help="seconds between two orders (%(default)s)")

    def handle(self, *, count: int | None, every: float, **_: Any) -> None:
        other_work = itertools.cycle(OTHER_WORK)
        for n in range(1, count + 1) if count else itertools.count(1):
            try:
                self._work(next(other_work) if n % ORDERS_PER_OTHER_WORK == 0 else None)
            except OperationalError as error:
                self.stderr.write(f"no order placed: {error}")
                connection.close()
            time.sleep(every)

    def _work(self, other: str | None) -> None:
        (order,) = sales.place_orders(1)
        self.stdout.write(f"order {order.number}: {order.quantity} x {order.product} for {order.email}")
        if other is not None:
            label, action = ACTIONS[other]
            action()
            self.stdout.write(label)
