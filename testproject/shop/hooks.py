"""What follows when something is saved."""

from typing import Any

from django.db.models.signals import post_save
from django.dispatch import receiver

from testproject.shop.models import Order
from testproject.shop.tasks import send_receipt


@receiver(post_save, sender=Order)
def send_receipt_for_new_order(instance: Order, *, created: bool, raw: bool = False, **_: Any) -> None:
    """Enqueue the receipt in the order's own transaction: no order without its receipt, no receipt without an order."""
    if created and not raw:
        send_receipt.delay(instance.pk)
