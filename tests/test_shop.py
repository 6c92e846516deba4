"""The shop's own side of its tasks: what its hooks and views enqueue, and what the bodies do."""

from decimal import Decimal

import pytest
from django.core import mail
from django.core.files.base import ContentFile
from django.core.files.storage import FileSystemStorage, InMemoryStorage
from django.db import transaction
from django.test import Client
from pytest_django import DjangoAssertNumQueries

from django_dispatch import TaskContext
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


def test_an_import_reports_progress_and_goes_on_where_the_last_attempt_ended(upload: InMemoryStorage) -> None:
    rows = [f"SUP-{n},Tea no. {n},{n}.50" for n in range(tasks.BATCH_ROWS * 2 + 1)]
    catalogue = CatalogueImport(rows_done=tasks.BATCH_ROWS)
    catalogue.file.save("catalogue.csv", ContentFile("\n".join(["sku,name,price", *rows]).encode()))
    reports: list[str] = []
    context = TaskContext(
        run_id=1, epoch=1, attempt=2, worker_id="", report=reports.append, is_stopping=lambda: len(reports) > 1
    )
    assert tasks.import_catalogue.invoke(context, [catalogue.pk], {}) == len(rows)
    assert Product.objects.count() == tasks.BATCH_ROWS + 1
    assert Product.objects.get(sku="SUP-400").price == Decimal("400.50")
    assert [f'"done":{done},"total":401' in report for done, report in zip((400, 401), reports, strict=True)] == [
        True
    ] * 2


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
