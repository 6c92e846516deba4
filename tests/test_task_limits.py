"""What a task may say of limits and duplicates, and what it may not: refused where it is written."""

from inspect import signature
from typing import Any

import pytest

from django_dispatch import InvalidOption, InvalidTask, Task
from django_dispatch.exceptions import InvalidArguments
from django_dispatch.limits import check_limits
from django_dispatch.rates import Limit, Rate, check_limit, check_rate


def body(order_id: int, items: dict[str, int] | None = None, *, city: str = "x", **more: Any) -> None: ...


def plain(order_id: int) -> None: ...


SIGNATURE = signature(body)


@pytest.mark.parametrize(
    ("text", "rate"),
    [("1/s", Rate(1, 1)), ("100/m", Rate(100, 60)), ("5/h", Rate(5, 3600)), ("1000000/d", Rate(1_000_000, 86_400))],
)
def test_a_rate_is_a_number_in_a_time(text: str, rate: Rate) -> None:
    assert check_rate(text) == rate


@pytest.mark.parametrize("value", ["", "m", "1", "0/s", "-1/s", "1.5/s", "1/w", "1/ s", "10000000/s", 5, None])
def test_anything_else_is_none(value: Any) -> None:
    with pytest.raises(InvalidOption, match="rate must be"):
        check_rate(value)


def test_the_limit_of_a_queue() -> None:
    assert check_limit(5) == Limit(5)
    assert check_limit("5/s") == Limit(None, Rate(5, 1))
    assert check_limit({"concurrency": 2, "rate": "5/s"}) == Limit(2, Rate(5, 1))
    for value in (0, True, -1, 1.5, None, {}, {"limit": 1}, [], 10**5000):
        with pytest.raises(InvalidOption):
            check_limit(value)


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({"concurrency": 0}, "concurrency must be"),
        ({"concurrency": True}, "concurrency must be"),
        ({"rate": "often"}, "rate must be"),
        ({"on_duplicate": "merge"}, "on_duplicate must be one of 'parallel'"),
        ({"on_duplicate": "serial", "concurrency": 3}, "one at a time by itself"),
        ({"key": "x"}, "give one of them, or no key"),
        ({"unique_for": 60}, "goes with on_duplicate='discard'"),
        ({"unique_for": 0, "on_duplicate": "discard"}, "unique_for must be more than 0"),
        ({"unique_for": float("nan"), "on_duplicate": "discard"}, "unique_for must be"),
        ({"concurrency": 1, "key": "{order}"}, "names 'order', which is no parameter"),
        ({"concurrency": 1, "key": "{}"}, "names ''"),
        ({"concurrency": 1, "key": "{0}"}, "names '0'"),
        ({"concurrency": 1, "key": "{order_id"}, "is no format"),
        ({"concurrency": 1, "key": ""}, "key must be a text"),
        ({"concurrency": 1, "key": 5}, "key must be a text"),
    ],
)
def test_nonsense_is_refused_when_the_task_is_defined(options: dict[str, Any], reason: str) -> None:
    with pytest.raises(InvalidTask, match=reason):
        Task(plain, **options)


def keys(*args: Any, given: str | None = None, **kwargs: Any) -> Any:
    limits = check_limits(SIGNATURE, **OPTIONS)
    return limits.keys_of("shop.body", SIGNATURE, args, kwargs, given)


OPTIONS: dict[str, Any] = {}


@pytest.fixture(autouse=True)
def options() -> Any:
    OPTIONS.clear()
    return OPTIONS.update


def test_without_any_a_run_has_no_keys() -> None:
    assert set(keys(1)) == {None}


def test_a_key_is_made_of_the_arguments_and_their_defaults(options: Any) -> None:
    options(concurrency=3, key="{order_id}-{city}-{items[a]}-{extra}")
    assert keys(7, {"a": 1}, extra="e").concurrency_key == "key:7-x-1-e"
    for bad, why in (((7, {"a": 1}), "'extra'"), ((7,), "not subscriptable")):
        with pytest.raises(InvalidArguments, match=f"cannot be made of these arguments: .*{why}"):
            keys(*bad, **({} if len(bad) > 1 else {"extra": 1}))


def test_a_function_makes_a_key_of_the_arguments(options: Any) -> None:
    options(concurrency=3, key=lambda order_id, **more: f"o{order_id % 2}")
    assert keys(7, city="y").concurrency_key == "key:o1"
    options(key=lambda order_id: None)
    with pytest.raises(InvalidArguments, match="its key function returned None"):
        keys(7)


@pytest.mark.parametrize(
    ("word", "unique", "concurrency"),
    [
        ("parallel", None, None),
        ("discard", "discard:key:k", None),
        ("serial", None, "serial:key:k"),
        ("queue_one", "queue_one:key:k", "serial:key:k"),
        ("replace", "replace:key:k", None),
    ],
)
def test_each_word_has_its_keys(options: Any, word: str, unique: str | None, concurrency: str | None) -> None:
    options(on_duplicate=word)
    found = keys(1, given="k") if word != "parallel" else keys(1)
    assert (found.unique_key, found.concurrency_key) == (unique, concurrency)
    assert found.concurrency_limit == (1 if concurrency else None)


def test_a_limit_goes_with_discarding(options: Any) -> None:
    options(on_duplicate="discard", concurrency=3, rate="5/s")
    found = keys(1)
    assert found.unique_key.startswith("discard:call:")
    assert (found.concurrency_key, found.concurrency_limit) == ("task:shop.body", 3)
    assert (found.rate_amount, found.rate_seconds) == (5, 1)
