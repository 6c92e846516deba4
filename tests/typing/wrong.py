"""Uses that a type checker must refuse, at each line marked with ``# error``."""

from django_dispatch import Call, Retry, Snooze, TaskContext, cancel, pause_queue, task


@task
def add(a: int, b: int = 0) -> int:
    return a + b


@task(bind=True)
def count(context: TaskContext, upto: int) -> int:
    return upto


class Report:
    def run(self, month: int) -> int:
        return month


report = task(Report)


@task(bind=True)  # error
def unbound(number: int) -> None: ...


@task(on_lost="retry")  # error
def options(number: int) -> None: ...


@task(retention={"FAILED": "1 day"})  # error
def kept(number: int) -> None: ...


@task(on_duplicate="merge")  # error
def duplicates(number: int) -> None: ...


@task(rate=5)  # error
def rated(number: int) -> None: ...


@task(key=7)  # error
def keyed(number: int) -> None: ...


@task(backoff="soon")  # error
def wrong_backoff(number: int) -> None: ...


@task(retry_on=ValueError("an instance"))  # error
def wrong_types(number: int) -> None: ...


@task(retries=3)  # error
def unknown_option(number: int) -> None: ...


add("1")  # error
add.delay("1")  # error
add.delay()  # error
add.delay(1, c=2)  # error
count.delay("many")  # error
count.delay(TaskContext.detached(), 3)  # error
report.delay("May")  # error
report()  # error
text: str = add(1)  # error
add.apply_async((1,), countdown="soon")  # error
add.apply_async((1,), delay=5)  # error
add.apply_async((1,), key=5)  # error
add.apply_async((1,), expires="soon")  # error
Snooze()  # error
Retry(after="soon")  # error
add.delay_many([1, 2])  # error
add.delay_many([(1,)], priority="high")  # error
Call(1)  # error
cancel("7")  # error
pause_queue("mail", "moving")  # error
pause_queue("mail", until=60)  # error


async def twins() -> int:
    await add.adelay("1")  # error
    await add.aapply_async((1,), eta="tomorrow")  # error
    return await add.adelay(1)  # error
