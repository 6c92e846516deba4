"""The shop's background work: one task for each kind that a site has."""

import asyncio
import csv
import itertools
import math
import os
import signal
from datetime import timedelta
from decimal import Decimal

from django.conf import settings
from django.core.mail import send_mail
from django.db import transaction
from django.template.loader import render_to_string
from django.utils import timezone

from django_dispatch import Cron, TaskContext, task
from testproject.shop.models import CatalogueImport, Order, Product

BATCH_ROWS = 200


@task(queue="mail", priority=10, timeout=timedelta(seconds=30))
def send_receipt(order_id: int) -> str:
    """Mail the customer a receipt. A repeated attempt finds the first one's mark and sends nothing."""
    order = Order.objects.select_related("product").get(pk=order_id)
    if order.receipt_sent_at is not None:
        return "was sent before"
    body = render_to_string("shop/receipt.txt", {"order": order, "total": order.product.price * order.quantity})
    send_mail(f"Your order {order.number}", body, None, [order.email])
    Order.objects.filter(pk=order_id).update(receipt_sent_at=timezone.now())
    return f"sent to {order.email}"


@task(bind=True, timeout=timedelta(minutes=10))
def import_catalogue(ctx: TaskContext, import_id: int) -> int:
    """Read a supplier's CSV file into the products, a batch a transaction; a new attempt goes on where one ended."""
    catalogue = CatalogueImport.objects.get(pk=import_id)
    with catalogue.file.open("r") as file:
        rows = list(csv.DictReader(file))
    while catalogue.rows_done < len(rows) and not ctx.cancel_requested:
        batch = rows[catalogue.rows_done :][:BATCH_ROWS]
        with transaction.atomic():
            Product.objects.bulk_create(
                [Product(sku=row["sku"], name=row["name"], price=Decimal(row["price"])) for row in batch],
                update_conflicts=True,
                unique_fields=["sku"],
                update_fields=["name", "price"],
            )
            catalogue.rows_done += len(batch)
            catalogue.save(update_fields=["rows_done"])
        ctx.progress(catalogue.rows_done, len(rows), f"up to {batch[-1]['sku']}")
    ctx.log.info("imported %d of %d products", catalogue.rows_done, len(rows))
    return catalogue.rows_done


@task(schedule=Cron("*/30 * * * * *", overlap="skip", catch_up="none") if settings.SHOP_SCHEDULES else None)
def report_sales() -> str:
    """Say every half minute what was ordered so far."""
    return f"{Order.objects.count()} orders, {Order.objects.filter(receipt_sent_at=None).count()} without a receipt"


@task(schedule=Cron("0 3 * * mon-fri", tz="Europe/Paris", args=[30]) if settings.SHOP_SCHEDULES else None)
def forget_imports(days: int) -> int:
    """Delete imports that are older than so many days."""
    return CatalogueImport.objects.filter(uploaded_at__lt=timezone.now() - timedelta(days=days)).delete()[0]


@task(priority=-10, timeout=timedelta(minutes=5))
def count_primes(limit: int = 400_000) -> int:
    """Count the primes below a limit, the slow way: work for a processor and nothing else."""
    return sum(all(n % divisor for divisor in range(2, math.isqrt(n) + 1)) for n in range(2, limit))


@task(timeout=timedelta(minutes=1))
async def fetch_suppliers(suppliers: int = 20) -> dict[str, int]:
    """Ask all suppliers for their stock at once. The site itself plays the suppliers, and takes its time."""
    import httpx  # a tenth of a second, which the web and every start would pay

    async with httpx.AsyncClient(base_url=settings.SITE_URL, timeout=30) as client:
        answers = await asyncio.gather(*(client.get("/slow/", params={"supplier": n}) for n in range(suppliers)))
    stock = [answer.raise_for_status().json()["stock"] for answer in answers]
    return {"suppliers": len(stock), "stock": sum(stock)}


@task(max_attempts=2)
def always_fails() -> None:
    """Raise, on every attempt."""
    shelf = dict(itertools.pairwise("ABC"))
    raise LookupError(f"No shelf for this product, only {shelf}.")


@task(on_lost="fail")
def crash() -> None:
    """Die with the process, as a bug in a C extension or the kernel's out-of-memory killer would have it."""
    os.kill(os.getpid(), signal.SIGKILL)
