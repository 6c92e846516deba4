"""Which arguments can be enqueued, and what is said about the others."""

import datetime
import enum
import inspect
import json
import uuid
from decimal import Decimal
from types import MappingProxyType
from typing import Any

import pytest
from django.utils.functional import lazystr
from django.utils.safestring import mark_safe

from django_dispatch.arguments import Encoder
from django_dispatch.exceptions import InvalidArguments
from django_dispatch.models import Run


def body(order: Any, *more: Any, note: Any = "none", **labels: Any) -> None: ...


def narrow(a: int, b: int = 0) -> None: ...


SIGNATURE = inspect.signature(body)


class Text(str):
    __slots__ = ()


class Colour(enum.StrEnum):
    RED = "red"


class Level(enum.IntEnum):
    HIGH = 1


class Point(list[int]):
    pass


def refusal(*args: Any, **kwargs: Any) -> str:
    with pytest.raises(InvalidArguments) as caught:
        Encoder("shop.tasks.pay", SIGNATURE).encode(args, kwargs)
    return str(caught.value)


def nested(levels: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_arguments_stay_where_the_caller_put_them_and_defaults_are_not_applied() -> None:
    assert Encoder("t", SIGNATURE).encode((1, 2), {"size": "xl"}) == ("[1,2]", '{"size":"xl"}')
    assert Encoder("t", SIGNATURE).encode((), {"order": 1}) == ("[]", '{"order":1}')
    assert Encoder("t", SIGNATURE).encode((1, 'a,"b'), {}) == (r'[1,"a,\"b"]', "{}")
    assert Encoder("t", SIGNATURE).encode((1, True), {}) == ("[1,true]", "{}")


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -(2**80), 1.5, -0.0, "", "snö ☃ 💶 \x01", [], {}, [[{"a": [None, {"b": False}]}]], nested(100)],
)
def test_json_values_come_back_as_they_were(value: Any) -> None:
    args, kwargs = Encoder("t", SIGNATURE).encode((value,), {"note": value})
    assert (json.loads(args), json.loads(kwargs)) == ([value], {"note": value})


def test_lazy_texts_are_resolved_at_any_depth() -> None:
    args, _ = Encoder("t", SIGNATURE).encode(({"subject": [lazystr("hello")]},), {})
    assert args == '[{"subject":["hello"]}]'
    assert "NUL" in refusal(lazystr("a\0"))


@pytest.mark.parametrize(
    ("value", "type_name", "way_out"),
    [
        ((1, 2), "tuple", "pass list(value)"),
        (Point(), "Point", "pass list(value)"),
        ({1}, "set", "sorted list"),
        (datetime.date(2030, 1, 2), "date", "isoformat()"),
        (datetime.datetime(2030, 1, 2), "datetime", "isoformat()"),
        (datetime.timedelta(1), "timedelta", "total_seconds()"),
        (Decimal("1.10"), "Decimal", "str(value)"),
        (uuid.UUID(int=1), "UUID", "str(value)"),
        (Colour.RED, "Colour", "pass its value"),
        (Level.HIGH, "Level", "pass its value"),
        (mark_safe("<b>"), "SafeString", "value + ''"),
        (Text("x"), "Text", "value + ''"),
        (b"x", "bytes", "base64"),
        (Run(id=3), "Run", "primary key"),
        (Run.objects.none(), "QuerySet", "primary keys"),
        (object(), "object", "None, bool, int"),
    ],
)
def test_other_types_are_refused_with_a_way_out(value: Any, type_name: str, way_out: str) -> None:
    message = refusal(value)
    assert "'shop.tasks.pay'" in message
    assert "argument 'order'" in message
    assert type_name in message
    assert way_out in message


@pytest.mark.parametrize("value", [mark_safe("<b>"), Text("x")])
def test_the_way_out_for_texts_that_are_more_than_str_leads_out(value: str) -> None:
    assert Encoder("t", SIGNATURE).encode((value + "",), {}) == (json.dumps([value]), "{}")


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "is nan"),
        (float("-inf"), "is -inf"),
        ("a\0b", "NUL"),
        ("\ud800", "surrogate"),
        ({"a\0": 1}, "NUL"),
        ({1: "x"}, "key 1 of type int"),
        ({Text("x"): 1}, "of type Text"),
        (nested(101), "more than 100 levels"),
        ([10**5000], "4,000 digits"),
    ],
)
def test_values_that_json_or_postgresql_would_change_are_refused(value: Any, reason: str) -> None:
    assert reason in refusal(value)


def test_names_of_extra_keyword_arguments_are_checked_too() -> None:
    assert "NUL" in refusal(1, **{"a\0": 1})


@pytest.mark.parametrize(("args", "kwargs"), [("ab", {}), (5, {}), ({1: 2}, {}), ([1], [2]), ([1], "ab")])
def test_arguments_that_are_no_list_and_dict_are_refused(args: Any, kwargs: Any) -> None:
    with pytest.raises(InvalidArguments, match="args must be a list or tuple and kwargs a dict"):
        Encoder("shop.tasks.pay", SIGNATURE).encode(args, kwargs)


def test_any_mapping_can_hold_keyword_arguments() -> None:
    assert Encoder("t", SIGNATURE).encode([1], MappingProxyType({"size": 2})) == ("[1]", '{"size":2}')


def test_a_structure_that_contains_itself_is_refused_in_a_short_sentence() -> None:
    loop: dict[str, Any] = {}
    loop["again"] = loop
    message = refusal(loop)
    assert "contains itself" in message
    assert len(message) < 300


@pytest.mark.parametrize(
    ("args", "kwargs", "place"),
    [
        (({"items": [0, 1, 2, {3}]},), {}, "argument 'order', at ['items'][3], is of type set"),
        ((1, 2, {3}), {}, "argument 'more', at [1], is of type set"),
        ((1,), {"note": [{3}]}, "argument 'note', at [0], is of type set"),
        ((1,), {"size": {3}}, "argument 'size' is of type set"),
        (({"items": {1: 2}},), {}, "argument 'order', at ['items'], has the key 1"),
    ],
)
def test_the_place_of_the_value_is_named(args: tuple[Any, ...], kwargs: dict[str, Any], place: str) -> None:
    assert place in refusal(*args, **kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "named"),
    [((), {}, "'a'"), ((1,), {"c": 1}, "'c'"), ((1,), {"a": 2}, "'a'"), ((1, 2, 3), {}, "too many positional")],
)
def test_arguments_that_do_not_fit_are_refused_by_name(
    args: tuple[Any, ...], kwargs: dict[str, Any], named: str
) -> None:
    with pytest.raises(InvalidArguments) as caught:
        Encoder("shop.tasks.pay", inspect.signature(narrow)).encode(args, kwargs)
    message = str(caught.value)
    assert "'shop.tasks.pay'" in message
    assert named in message
    assert "(a: int, b: int = 0)" in message


def test_model_instances_are_refused_inside_containers_too() -> None:
    assert "at ['who']" in refusal({"who": Run(id=3)})
