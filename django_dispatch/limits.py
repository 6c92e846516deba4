"""Duplicates, limits and fairness as tasks declare them, and the keys of one call by them; pure, in any process."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
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
    """What a run is recorded with because of its limits, and of whom it is; fields of NewRun."""

    unique_key: str | None = None
    unique_seconds: float | None = None
    on_duplicate: str | None = None
    concurrency_key: str | None = None
    concurrency_limit: int | None = None
    rate_amount: int | None = None
    rate_seconds: float | None = None
    fair_key: str | None = None


NO_KEYS = Keys()
_KINDS = {int(parameter.kind): parameter.kind for parameter in ANYTHING.parameters.values()} | {
    int(kind): kind for kind in (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)
}


@dataclass(frozen=True, slots=True)
class KeyRule:
    """How the option ``name`` makes a key of a call's arguments: by a text with their names, a function, or not."""

    name: str
    rule: str | Callable[..., str] | None = None
    is_elsewhere: bool = False
    """It is a function, which only the code of the task can call."""
    known: Mapping[str, str] = field(default_factory=dict)
    """The keys that it comes to, of the calls that are known in advance; by their digests."""

    def key_of(
        self, task: str, signature: Signature, args: Sequence[Any], kwargs: Mapping[str, Any], given: str | None
    ) -> str | None:
        """Return the key of one call, or the one that is given. Raises InvalidArguments if it cannot be made."""
        if given is not None:
            return given
        if self.is_elsewhere:
            key = self.known.get(_digest(_call_of(task, signature, args, kwargs)))
            if key is None:
                raise InvalidArguments(
                    f"Task {task!r}: its {self.name} is a function, so that only its own code can enqueue it."
                )
            return key
        return _key_of(self, task, signature, args, kwargs)


NO_KEY, NO_FAIR_KEY = KeyRule("key"), KeyRule("fair_key")


@dataclass(frozen=True, slots=True)
class Limits:
    """What a task declares: how many of its runs at once, and what becomes of duplicates; by key, if there is one.

    And whose a run is, where each is to have a share.
    """

    limit: Limit = NO_LIMIT
    key: KeyRule = NO_KEY
    fair_key: KeyRule = NO_FAIR_KEY
    on_duplicate: OnDuplicate = "parallel"
    unique_seconds: float | None = None

    @property
    def is_any(self) -> bool:
        """Whether anything is declared at all."""
        return self != NOTHING

    @property
    def has_use_for_key(self) -> bool:
        """Whether there is anything that holds of a key."""
        return self.limit != NO_LIMIT or self.on_duplicate != "parallel"

    def keys_of(
        self,
        task: str,
        signature: Signature,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        given: str | None = None,
        *,
        given_fair: str | None = None,
    ) -> Keys:
        """Return the keys of one call, whose arguments fit the signature; those given take the place of the task's.

        Raises InvalidArguments if a key cannot be made of the arguments.
        """
        if not self.is_any and given_fair is None:
            return NO_KEYS
        fair_key = self.fair_key.key_of(task, signature, args, kwargs, given_fair)
        if fair_key is not None and len(fair_key) > MAX_KEY_LENGTH:
            fair_key = f"sha256:{_digest(fair_key)}"
        if not self.has_use_for_key:
            return NO_KEYS._replace(fair_key=fair_key)
        key = self.key.key_of(task, signature, args, kwargs, given)
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
            fair_key=fair_key,
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
    fair_key: object = None,
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
    return Limits(
        limit, _check_rule(NO_KEY, signature, key), _check_rule(NO_FAIR_KEY, signature, fair_key), word, unique_seconds
    )


def as_document(
    limits: Limits, signature: Signature, *, task: str = "", calls: Iterable[Call] = ()
) -> dict[str, Any] | None:
    """Return what is needed to apply the limits without the code of the task, as JSON; None if there are none.

    ``calls`` are those for which the keys are to be known where the task's code is not.
    """
    if not limits.is_any:
        return None
    rate = limits.limit.rate
    return {
        "concurrency": limits.limit.concurrency,
        "rate": None if rate is None else list(rate),
        "key": _rule_document(limits.key, signature, task, calls),
        "fair_key": _rule_document(limits.fair_key, signature, task, calls),
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
        KeyRule("key", *document["key"]),
        KeyRule("fair_key", *document["fair_key"]),
        document["on_duplicate"],
        document["unique_seconds"],
    )
    parameters = [
        Parameter(name, _KINDS[kind], default=default if has_default else Parameter.empty)
        for name, kind, has_default, default in document["parameters"]
    ]
    return limits, Signature(parameters)


def _rule_document(rule: KeyRule, signature: Signature, task: str, calls: Iterable[Call]) -> list[Any]:
    """What KeyRule is made of, but for its name. A call for which a function raises has no key elsewhere."""
    known = dict[str, str]()
    for args, kwargs in calls if callable(rule.rule) else ():
        with suppress(Exception):
            key = _key_of(rule, task, signature, args, kwargs)
            known |= {} if key is None else {_digest(_call_of(task, signature, args, kwargs)): key}
    return [None if callable(rule.rule) else rule.rule, callable(rule.rule), known]


def _check_rule(none: KeyRule, signature: Signature, key: object) -> KeyRule:
    if key is None:
        return none
    if callable(key):
        return replace(none, rule=key)
    template = check_key(key, name=none.name, longest=1000)
    parameters = signature.parameters.values()
    try:
        fields = [name for _, name, _, _ in Formatter().parse(template) if name is not None]
    except ValueError as error:
        raise InvalidOption(f"{none.name} {template!r} is no format: {error}.") from None
    for name in (re.split(r"[.\[]", one, maxsplit=1)[0] for one in fields):
        if name not in signature.parameters and not (
            name.isidentifier() and any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters)
        ):
            raise InvalidOption(f"{none.name} {template!r} names {name!r}, which is no parameter of {signature}.")
    return replace(none, rule=template)


def _key_of(
    rule: KeyRule,
    task: str,
    signature: Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> str | None:
    key = rule.rule
    if key is None:
        return None
    if callable(key):
        text = key(*args, **kwargs)
        why = f"its {rule.name} function returned {shown(text)}"
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
            why = f"cannot be made of these arguments: {type(error).__name__}: {error}"
            raise InvalidArguments(f"Task {task!r}: its {rule.name} {key!r} {why}.") from None
        why = f"its {rule.name} {key!r} comes to {shown(text)}"
    try:
        return check_key(text, name=rule.name)
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
