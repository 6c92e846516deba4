"""Uses that a type checker must accept."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import assert_type

from django_dispatch import (
    Call,
    Cancel,
    CancelAnswer,
    Cron,
    Every,
    Exponential,
    Fixed,
    Linear,
    Retry,
    Snooze,
    Task,
    TaskContext,
    cancel,
    cancel_many,
    pause_queue,
    resume_queue,
    run_again,
    task,
)
from django_dispatch.explain import Explanation
from django_dispatch.models import Run


@task
def add(a: int, b: int = 0, *, label: str = "") -> int:
    return a + b


@task()
def empty() -> None: ...


@task(queue="mail", priority=10, timeout=timedelta(minutes=5), max_attempts=3, on_lost="fail")
def send(address: str) -> bool:
    return bool(address)


def queue_of(order: int) -> str:
    return f"shop-{order % 4}"


@task(queue=queue_of, timeout=2.5)
def ship(order: int) -> None: ...


@task(broadcast=True, retention=timedelta(days=1))
def refresh() -> None: ...


@task(retention={"SUCCESSFUL": 60, "FAILED": None})
def audit() -> None: ...


@task(concurrency=3, rate="100/m", key="tenant-{tenant}", on_duplicate="discard", unique_for=timedelta(hours=1))
def sync_tenant(tenant: int) -> None: ...


@task(bind=True, on_duplicate="serial", key=lambda account: f"account-{account}", fair_key="{account}")
def book(context: TaskContext, account: int) -> None: ...


def backoff(failures: int, error: BaseException) -> timedelta | None:
    return timedelta(seconds=failures) if isinstance(error, OSError) else None


@task(max_attempts=3, backoff=backoff, retry_on=OSError, no_retry_on=(FileNotFoundError, PermissionError))
def pay(order: int) -> None:
    if order == 1:
        raise Retry(after=timedelta(minutes=1), queue="slow", priority=-5)
    raise Cancel("there is no such order")


@task(bind=True, backoff=Exponential(base=2, cap=timedelta(hours=1), jitter=0.5), retry_on_timeout=False, expires=60)
def poll(context: TaskContext, order: int) -> int | Snooze:
    return order or Snooze(60)


fixed = task(backoff=Fixed(5), expires=timedelta(hours=1))(queue_of)
linear = task(backoff=Linear(timedelta(seconds=5)))(queue_of)
seconds = task(backoff=2.5)(queue_of)


@task(bind=True)
def count(context: TaskContext, upto: int) -> str:
    context.progress(1, upto, "half way")
    context.log.info("attempt %s of %s", context.attempt, context.uuid)
    return context.worker_id


@task
async def fetch(url: str) -> bytes:
    return url.encode()


# mypy does not look at what a class decorator returns; called as functions, the decorators are typed.
class Report:
    def run(self, month: int) -> list[int]:
        return [month]


class BoundReport:
    def run(self, context: TaskContext, month: int) -> int:
        return month


report = task(Report)
bound_report = task(bind=True, queue="reports")(BoundReport)


@task(
    schedule=[Cron("0 3 * * *", tz="Europe/Paris", args=[1]), Every(minutes=5)], every=timedelta(hours=1), on_start=True
)
def tidy(days: int = 1) -> None: ...


async def use() -> None:
    assert_type(add(1, b=2), int)
    assert_type(send("a"), bool)
    assert_type(count(3), str)
    assert_type(report(1), list[int])
    assert_type(bound_report(month=1), int)
    assert_type(await fetch("u"), bytes)
    assert_type(add.delay(1, 2, label="x"), Run)
    assert_type(await add.adelay(1), Run)
    assert_type(add.apply_async((1,), {"label": "x"}, countdown=5, max_attempts=2), Run)
    assert_type(await add.aapply_async([1], run_after=datetime(2040, 1, 1)), Run)
    assert_type(add.delay_many([(1,), Call((2,), {"label": "x"})], queue="bulk"), Sequence[Run])
    assert_type(await add.adelay_many([(1,)], timeout=timedelta(seconds=1)), Sequence[Run])
    assert_type(sync_tenant.apply_async((1,), key="t", fair_key="f", idempotency_key="order-7").is_duplicate, bool)
    book.delay(7)

    assert_type(poll.apply_async((1,), expires=datetime(2040, 1, 1)), Run)
    empty.delay()
    ship.delay(5)
    count.delay(upto=3)
    report.delay(1)
    bound_report.delay(1)
    run = run_again(7)
    assert_type(cancel(run), CancelAnswer)
    assert_type(run.explain(), Explanation)
    assert_type(refresh.delay(), Run)
    pause_queue("mail", reason="moving", until=timedelta(hours=1), by="ann")
    assert_type(resume_queue("mail"), bool)
    assert_type(cancel_many([run, 7]), dict[int, CancelAnswer])
    general: Task[[str], object] = send
    general.delay("a")
