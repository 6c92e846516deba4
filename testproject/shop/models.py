"""Products, orders, and catalogues that suppliers send."""

import secrets

from django.db import models


def new_order_number() -> str:
    """Return a number that tells nobody how many orders there are."""
    return secrets.token_hex(4).upper()


class Product(models.Model):
    """Something to buy."""

    sku = models.CharField("SKU", max_length=20, unique=True)
    name = models.CharField(max_length=100)
    price = models.DecimalField(max_digits=8, decimal_places=2)

    def __str__(self) -> str:
        return self.name


class Order(models.Model):
    """A customer's order of one product. Its receipt is sent by a task, see hooks.py."""

    class Status(models.TextChoices):
        PLACED = "placed"
        SHIPPED = "shipped"

    number = models.CharField(max_length=8, unique=True, default=new_order_number)
    email = models.EmailField("customer's e-mail")
    product = models.ForeignKey(Product, models.PROTECT)
    quantity = models.PositiveSmallIntegerField(default=1)
    status = models.CharField(max_length=10, choices=Status.choices, default=Status.PLACED)
    placed_at = models.DateTimeField(auto_now_add=True)
    receipt_sent_at = models.DateTimeField(null=True, blank=True)

    def __str__(self) -> str:
        return self.number


class CatalogueImport(models.Model):
    """A supplier's CSV file of products, and how far its import has come."""

    file = models.FileField(upload_to="catalogues")
    rows_done = models.PositiveIntegerField(default=0)
    uploaded_at = models.DateTimeField(auto_now_add=True)

    def __str__(self) -> str:
        return self.file.name or ""
