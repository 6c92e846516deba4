"""Duplicates and limits as tasks declare them, and the keys that one call has by them; pure, in any process."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from inspect import BoundArguments, Parameter, Signature
from string import Formatter
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from .arguments import is_storable
from .exceptions import InvalidArguments, InvalidOption
from .rates import NO_LIMIT, Limit, Rate, check_concurrency, check_rate, shown

OnDuplicate = Literal["parallel", "discard", "serial", "queue_one", "replace"]
Call: TypeAlias = tuple[Sequence[Any], Mapping[str, Any]]
# They run one at a time and in their order, so their key is a limit's key too.
IN_ORDER = ("serial", "queue_one")
# At most one of a key waits.
UNIQUE = ("discard", "queue_one", "replace")

MAX_KEY_LENGTH = 255
# A dispatcher imports no task, so it cannot know the signature: whatever is JSON may be passed on.
ANYTHING = Signature([Parameter("args", Parameter.VAR_POSITIONAL), Parameter("kwargs", Parameter.VAR_KEYWORD)])


class Keys(NamedTuple):
    """What a run is recorded with because of its limits; fields of NewRun."""

    unique_key: str | None = None
    unique_seconds: float | None = None
    on_duplicate: str | None = None
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    rate_amount: int | None = None
    rate_seconds: float | None = None


NO_KEYS = Keys()
_KINDS = {int(parameter.kind): parameter.kind for parameter in ANYTHING.parameters.values()} | {
    int(kind): kind for kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
}


@dataclass(frozen=True, slots=True)
class Limits:
    """What a task declares: how many of its runs at once, and what becomes of duplicates; by key, if there is one."""

    limit: Limit = NO_LIMIT
    key: str | Callable[..., str] | None = None
    has_key_elsewhere: bool = False
    """Its key is a function, which only the code of the task can call."""
    known_keys: Mapping[str, str] = field(default_factory=dict)
    """The keys that it comes to, of the calls that are known in advance; by their digests."""
    on_duplicate: OnDuplicate = "parallel"
    unique_seconds: float | None = None

    @property
    def is_any(self) -> bool:
        """Whether anything is declared at all."""
        return self != NOTHING

    def keys_of(
        self, task: str, signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any], given: str | None = None
    ) -> Keys:
        """Return the keys of one call, whose arguments fit the signature; ``given`` takes the place of the task's key.

        Raises InvalidArguments if the key cannot be made of the arguments.
        """
        if not self.is_any:
            return NO_KEYS
        if self.has_key_elsewhere and given is None:
            given = self.known_keys.get(_digest(_call_of(task, signature, args, kwargs)))
        if self.has_key_elsewhere and given is None:
            raise InvalidArguments(f"Task {task!r}: its key is a function, so that only its own code can enqueue it.")
        key = given if given is not None else _key_of(self.key, task, signature, args, kwargs)
        call = f"call:{_digest(_call_of(task, signature, args, kwargs))}" if key is None else f"key:{key}"
        limit = Limit(1, self.limit.rate) if self.on_duplicate in IN_ORDER else self.limit
        concurrency_key = None
        if self.on_duplicate in IN_ORDER:
            concurrency_key = _short("serial", call)
        elif limit != NO_LIMIT:
            concurrency_key = _short("task", task) if key is None else _short("key", key)
        return Keys(
            unique_key=_short(self.on_duplicate, call) if self.on_duplicate in UNIQUE else None,
            unique_seconds=self.unique_seconds,
            on_duplicate=None if self.on_duplicate == "parallel" else self.on_duplicate,
            concurrency_key=concurrency_key,
            concurrency_limit=limit.concurrency,
            rate_amount=limit.rate.amount if limit.rate else None,
            rate_seconds=limit.rate.seconds if limit.rate else None,
        )


NOTHING = Limits()


def check_on_duplicate(value: object) -> OnDuplicate:
    """Return what is to become of duplicates. Raises InvalidOption if it is none of the words."""
    for word in get_args(OnDuplicate):
        if value == word:
            return word  # type: ignore[no-any-return]  # get_args() does not say that these are the words
    words = ", ".join(repr(word) for word in get_args(OnDuplicate))
    raise InvalidOption(f"on_duplicate must be one of {words}, not {shown(value)}.")


def check_key(value: object, *, name: str = "key", longest: int = 10_000) -> str:
    """Return a key. Raises InvalidOption if it cannot be one."""
    if not isinstance(value, str) or not 0 < len(value) <= longest or not is_storable(value):
        raise InvalidOption(f"{name} must be a text of 1 to {longest:,} characters, not {shown(value)}.")
    return value


def check_limits(
    signature: Signature,
    *,
    concurrency: object = None,
    rate: object = None,
    key: object = None,
    on_duplicate: object = "parallel",
    unique_seconds: float | None = None,
) -> Limits:
    """Check what a task of this signature declares. Raises InvalidOption."""
    limit = Limit(
        None if concurrency is None else check_concurrency(concurrency), None if rate is None else check_rate(rate)
    )
    word = check_on_duplicate(on_duplicate)
    if word in IN_ORDER and concurrency is not None:
        raise InvalidOption(f"on_duplicate={word!r} runs one at a time by itself: leave concurrency out.")
    if unique_seconds is not None and word != "discard":
        raise InvalidOption("unique_for says how long duplicates are discarded: it goes with on_duplicate='discard'.")
    if key is not None and limit == NO_LIMIT and word == "parallel":
        raise InvalidOption("key says of what concurrency, rate or on_duplicate holds: give one of them, or no key.")
    template = None if key is None else _check_template(signature, key)
    return Limits(limit, template, on_duplicate=word, unique_seconds=unique_seconds)


def as_document(
    limits: Limits, signature: Signature, *, task: str = "", calls: Iterable[Call] = ()
) -> dict[str, Any] | None:
    """Return what is needed to apply the limits without the code of the task, as JSON; None if there are none.

    ``calls`` are those for which the key is to be known where the task's code is not.
    """
    if not limits.is_any:
        return None
    rate = limits.limit.rate
    return {
        "concurrency": limits.limit.concurrency,
        "rate": None if rate is None else list(rate),
        "key": limits.key if isinstance(limits.key, str) else None,
        "has_key_elsewhere": callable(limits.key),
        "known_keys": _known_keys(limits, signature, task, calls),
        "on_duplicate": limits.on_duplicate,
        "unique_seconds": limits.unique_seconds,
        "parameters": [
            [name, int(p.kind), p.default is not Parameter.empty, _json_or_text(p.default)]
            for name, p in signature.parameters.items()
        ],
    }


def from_document(document: Mapping[str, Any] | None) -> tuple[Limits, Signature]:
    """Return the limits of a task, and as much of its signature as they need."""
    if document is None:
        return NOTHING, ANYTHING
    rate = document["rate"]
    limits = Limits(
        Limit(document["concurrency"], None if rate is None else Rate(*rate)),
        document["key"],
        document["has_key_elsewhere"],
        document["known_keys"],
        document["on_duplicate"],
        document["unique_seconds"],
    )
    parameters = [
        Parameter(name, _KINDS[kind], default=default if has_default else Parameter.empty)
        for name, kind, has_default, default in document["parameters"]
    ]
    return limits, Signature(parameters)


def _known_keys(limits: Limits, signature: Signature, task: str, calls: Iterable[Call]) -> dict[str, str]:
    """A call for which the function raises has no key, as it would have none elsewhere."""
    known = dict[str, str]()
    for args, kwargs in calls if callable(limits.key) else ():
        with suppress(Exception):
            key = _key_of(limits.key, task, signature, args, kwargs)
            known |= {} if key is None else {_digest(_call_of(task, signature, args, kwargs)): key}
    return known


def _check_template(signature: Signature, key: object) -> str | Callable[..., str]:
    if callable(key):
        return key
    template = check_key(key, longest=1000)
    parameters = signature.parameters.values()
    try:
        fields = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise InvalidOption(f"key {template!r} is no format: {error}.") from None
    for name in (re.split(r"[.\[]", one, maxsplit=1)[0] for one in fields):
        if name not in signature.parameters and not (
            name.isidentifier() and any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters)
        ):
            raise InvalidOption(f"key {template!r} names {name!r}, which is no parameter of {signature}.")
    return template


def _key_of(
    key: str | Callable[..., str] | None,
    task: str,
    signature: Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> str | None:
    if key is None:
        return None
    if callable(key):
        text = key(*args, **kwargs)
        why = f"its key function returned {shown(text)}"
    else:
        bound = _bound(task, signature, args, kwargs)
        bound.apply_defaults()
        named = dict(bound.arguments)
        for parameter in signature.parameters.values():
            if parameter.kind is Parameter.VAR_KEYWORD:
                named |= named.pop(parameter.name)
        try:
            text = key.format(**named)
        except (LookupError, AttributeError, ValueError, TypeError) as error:
            raise InvalidArguments(
                f"Task {task!r}: its key {key!r} cannot be made of these arguments: {type(error).__name__}: {error}."
            ) from None
        why = f"its key {key!r} comes to {shown(text)}"
    try:
        return check_key(text)
    except InvalidOption as error:
        raise InvalidArguments(f"Task {task!r}: {why}; {error}") from None


def _bound(task: str, signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> BoundArguments:
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise InvalidArguments(f"Task {task!r} cannot be called with these arguments: {error}.") from None


def _call_of(task: str, signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """One text for a call, whichever way its arguments were given."""
    bound = _bound(task, signature, args, kwargs)
    return json.dumps([task, bound.args, bound.kwargs], sort_keys=True, default=str)


def _json_or_text(value: object) -> Any:
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()


def _short(kind: str, text: str) -> str:
    """A key as it is stored: of this kind, and no longer than its column."""
    key = f"{kind}:{text}"
    return key if len(key) <= MAX_KEY_LENGTH else f"{kind}:sha256:{_digest(text)}"
