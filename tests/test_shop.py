"""The shop's own side of its tasks: what its hooks and views enqueue, and what the bodies do."""

import json
from decimal import Decimal

import pytest
from django.core import mail
from django.core.files.storage import FileSystemStorage, InMemoryStorage
from django.db import transaction
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from django_dispatch import TaskContext
from django_dispatch.context import StopReason
from django_dispatch.models import Run
from testproject.shop import sales, tasks
from testproject.shop.models import CatalogueImport, Order, Product
from testproject.shop.views import ACTIONS

pytestmark = pytest.mark.django_db


@pytest.fixture
def upload(monkeypatch: pytest.MonkeyPatch) -> InMemoryStorage:
    """Keep uploaded files in memory."""
    storage = InMemoryStorage()
    field = CatalogueImport._meta.get_field("file")
    assert isinstance(field.storage, FileSystemStorage)
    monkeypatch.setattr(field, "storage", storage)
    return storage


def test_an_order_and_its_receipt_stand_or_fall_together() -> None:
    (order,) = sales.place_orders(1)
    with pytest.raises(ZeroDivisionError), transaction.atomic():
        sales.place_orders(1)
        raise ZeroDivisionError
    run = Run.objects.get()
    assert (run.task, run.args, run.queue) == ("testproject.shop.tasks.send_receipt", [order.pk], "mail")


def test_a_receipt_is_sent_once_however_often_it_is_attempted() -> None:
    (order,) = sales.place_orders(1)
    tasks.send_receipt(order.pk)
    tasks.send_receipt(order.pk)
    (message,) = mail.outbox
    assert message.to == [order.email]
    assert f"Total: {Decimal(order.product.price) * order.quantity}" in message.body
    assert Order.objects.get().receipt_sent_at is not None


def run_import(catalogue: CatalogueImport, reports: list[str], *, stop_after: int) -> int:
    """Run the import's body under a context that is cancelled after so many reports."""

    def why_stop() -> StopReason | None:
        return "cancel" if len(reports) >= stop_after else None

    context = TaskContext(run_id=1, epoch=1, attempt=1, worker_id="", report=reports.append, why_stop=why_stop)
    return tasks.import_catalogue.invoke(context, [catalogue.pk], {})


def test_an_import_stops_between_batches_and_the_next_attempt_goes_on_there(upload: InMemoryStorage) -> None:
    rows = tasks.BATCH_ROWS * 2 + 1
    catalogue = sales.receive_catalogue(rows)
    reports: list[str] = []
    assert run_import(catalogue, reports, stop_after=1) == Product.objects.count() == tasks.BATCH_ROWS
    Product.objects.all().delete()
    assert run_import(catalogue, reports, stop_after=9) == rows
    assert Product.objects.count() == tasks.BATCH_ROWS + 1
    assert [json.loads(report)["done"] for report in reports] == [tasks.BATCH_ROWS, tasks.BATCH_ROWS * 2, rows]


def test_the_primes_below_a_hundred_are_twenty_five() -> None:
    assert tasks.count_primes(100) == 25


@pytest.mark.parametrize("name", ACTIONS)
def test_each_button_enqueues_work(client: Client, upload: InMemoryStorage, name: str) -> None:
    response = client.post(f"/do/{name}/", follow=True)
    assert "the rest happens in the background" in response.text
    assert Run.objects.count() == (50 if name == "fifty-orders" else 1)


def test_the_home_page_costs_the_same_however_much_there_is(
    client: Client, django_assert_num_queries: DjangoAssertNumQueries
) -> None:
    with django_assert_num_queries(5):
        assert "No orders yet" in client.get("/").text
    sales.place_orders(20)
    with django_assert_num_queries(5):
        assert "<b>20</b> ready" in client.get("/").text


def test_looking_does_not_enqueue(client: Client) -> None:
    assert client.get("/do/order/").status_code == 405
    assert client.post("/do/nonsense/").status_code == 404
    assert not Run.objects.exists()
