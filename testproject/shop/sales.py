"""Make-believe customers and suppliers for the demo."""

import random

from django.core.files.base import ContentFile
from django.db import transaction

from testproject.shop.models import CatalogueImport, Order, Product

SHELF = [
    ("TEA-001", "Darjeeling, first flush", "8.90"),
    ("TEA-002", "Assam, strong", "6.40"),
    ("CUP-001", "Porcelain cup", "12.00"),
    ("POT-001", "Cast-iron pot", "48.50"),
    ("TIN-001", "Tea tin, small", "4.20"),
]
CUSTOMERS = ["ada", "grace", "alan", "edsger", "barbara", "donald"]


def place_orders(count: int) -> list[Order]:
    """Place some orders in one transaction, as the shop's customers would."""
    with transaction.atomic():
        return [_place_order() for _ in range(count)]


def receive_catalogue(rows: int = 20_000) -> CatalogueImport:
    """Make up a supplier's catalogue and upload it."""
    lines = (f"SUP-{n:05},Tea no. {n},{random.uniform(3, 30):.2f}" for n in range(rows))
    catalogue = CatalogueImport()
    catalogue.file.save("catalogue.csv", ContentFile("\n".join(["sku,name,price", *lines]).encode()))
    return catalogue


def _place_order() -> Order:
    sku, name, price = random.choice(SHELF)
    product, _ = Product.objects.get_or_create(sku=sku, defaults={"name": name, "price": price})
    customer = f"{random.choice(CUSTOMERS)}@example.com"
    return Order.objects.create(email=customer, product=product, quantity=random.randint(1, 5))
