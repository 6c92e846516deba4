"""Turn the arguments of an enqueue into JSON text, or say which one cannot be stored and why; pure, in the caller."""

import json
import math
from collections.abc import Mapping, Sequence
from datetime import date, time, timedelta
from decimal import Decimal
from enum import Enum
from functools import cached_property
from inspect import Parameter, Signature
from pathlib import PurePath
from typing import Any
from uuid import UUID

from django.db.models import Model, QuerySet
from django.utils.functional import Promise

from .exceptions import InvalidArguments

MAX_DEPTH = 100
# Python refuses to print a whole number of more than 4300 digits; this is a little less.
MAX_INTEGER_BITS = 14_000
MAX_PATH_SHOWN = 8

# What to pass instead, by type; the first match counts, so an enum member comes before the str or int that it also is.
WAYS_OUT: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (Enum, "pass its value"),
    (Model, "pass its primary key, and load it in the task"),
    (QuerySet, "pass a list of primary keys, and load them in the task"),
    (str, "pass a plain str (value + '')"),
    (int, "pass int(value)"),
    (float, "pass float(value)"),
    ((list, tuple), "pass list(value)"),
    ((set, frozenset), "pass a sorted list"),
    (dict, "pass dict(value)"),
    ((bytes, bytearray, memoryview), "pass text, for example base64"),
    ((date, time), "pass value.isoformat()"),
    (timedelta, "pass value.total_seconds()"),
    ((Decimal, UUID, PurePath), "pass str(value)"),
)
OTHERWISE = "pass None, bool, int, float, str, or lists and dicts of these"

# The check before has let through nothing that the encoder does not know but Django's lazy texts: str resolves them.
_json = json.JSONEncoder(ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":"), default=str)


class _Refused(Exception):
    """A value cannot be stored; the text says why, ``path`` leads to it, innermost step first."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.path: list[str | int] = []


class Encoder:
    """Makes JSON texts of the arguments of calls of one task.

    ``signature`` is what callers of the task see, without a context.
    """

    def __init__(self, task: str, signature: Signature) -> None:
        self._task = task
        self._signature = signature

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[str, str]:
        """Return the JSON texts of ``args`` and ``kwargs`` as they were given: no default is applied, nothing is moved.

        Lazy translations are resolved in the caller's language. Raises InvalidArguments, which names the task and the
        argument, if they do not fit the signature or would not come back from the database as they were.
        """
        if not isinstance(args, list | tuple) or not isinstance(kwargs, Mapping):
            raise InvalidArguments(
                f"Task {self._task!r}: args must be a list or tuple and kwargs a dict, even for one argument."
            )
        if kwargs or len(args) not in self._places:
            self._bind(args, kwargs)
        for index, value in enumerate(args):
            try:
                _check(value, 1)
            except _Refused as refused:
                raise self._invalid(refused, *_positional(self._signature, index)) from None
        for name, value in kwargs.items():
            try:
                _check(name, 1)
                _check(value, 1)
            except _Refused as refused:
                raise self._invalid(refused, name) from None
        return _array(args) if args else "[]", _json.encode(dict(kwargs)) if kwargs else "{}"

    @cached_property
    def _places(self) -> range:
        """How many positional arguments fit a plain signature; quicker than bind(), which alone can say no."""
        parameters = self._signature.parameters.values()
        if any(one.kind not in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD) for one in parameters):
            return range(0)
        return range(sum(one.default is Parameter.empty for one in parameters), len(parameters) + 1)

    def _bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidArguments(
                f"Task {self._task!r} cannot be called with these arguments: {error}. Its signature is"
                f" {self._signature}."
            ) from None

    def _invalid(self, refused: _Refused, name: str, *start: int) -> InvalidArguments:
        path = [*start, *reversed(refused.path)]
        place = "".join(f"[{step!r}]" for step in path[:MAX_PATH_SHOWN]) + ("…" if len(path) > MAX_PATH_SHOWN else "")
        where = f"argument {name!r}, at {place}," if place else f"argument {name!r}"
        return InvalidArguments(f"Task {self._task!r}: {where} {refused}.")


def _array(args: Sequence[Any]) -> str:
    """Return a JSON array; without the encoder, which takes longer to begin than a few numbers and texts to write."""
    if all(type(value) is int or type(value) is str for value in args):
        return f"[{','.join([str(value) if type(value) is int else _json.encode(value) for value in args])}]"
    return _json.encode(list(args))


def is_storable(text: str) -> bool:
    """Whether PostgreSQL can hold the text: no NUL, no lone surrogate."""
    if "\0" in text:
        return False
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _check(value: Any, depth: int) -> None:
    """Raise _Refused unless JSON, and jsonb, give back exactly this value."""
    kind = type(value)
    if kind is str:
        _check_text(value)
    elif kind is list:
        _check_items(value, depth)
    elif kind is dict:
        _check_keys(value)
        _check_items(value, depth)
    elif kind is int:
        if value.bit_length() > MAX_INTEGER_BITS:
            raise _Refused("is a whole number of more than 4,000 digits: pass str(value)")
    elif kind is float:
        if not math.isfinite(value):
            raise _Refused(f"is {value}, which JSON does not have: pass None or a text")
    elif isinstance(value, Promise):
        _check_text(str(value))
    elif value is not None and kind is not bool:
        way_out = next((advice for types, advice in WAYS_OUT if isinstance(value, types)), OTHERWISE)
        raise _Refused(f"is of type {kind.__qualname__}, which JSON does not keep: {way_out}")


def _check_items(value: list[Any] | dict[Any, Any], depth: int) -> None:
    if depth > MAX_DEPTH:
        raise _Refused(f"contains itself, or is nested more than {MAX_DEPTH} levels deep: pass something flatter")
    for step, item in value.items() if isinstance(value, dict) else enumerate(value):
        try:
            _check(item, depth + 1)
        except _Refused as refused:
            refused.path.append(step)
            raise


def _check_keys(value: dict[Any, Any]) -> None:
    for key in value:
        if type(key) is not str:
            raise _Refused(f"has the key {key!r} of type {type(key).__qualname__}, but keys in JSON are plain str")
        _check_text(key)


def _check_text(text: str) -> None:
    if not is_storable(text):
        raise _Refused("holds a NUL or a lone surrogate, which PostgreSQL cannot store: remove it")


def _positional(signature: Signature, index: int) -> tuple[str, *tuple[int, ...]]:
    """The name of the parameter that takes this positional argument; in ``*args``, its place there too."""
    for place, parameter in enumerate(signature.parameters.values()):
        if parameter.kind is Parameter.VAR_POSITIONAL:
            return parameter.name, index - place
        if place == index:
            return (parameter.name,)
    raise AssertionError("the arguments fit the signature")
