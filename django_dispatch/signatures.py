"""What a function or a class must be to be a task, and how its body is called; when it is defined."""

import inspect
import sys
from typing import Any

from .exceptions import InvalidTask

if sys.version_info >= (3, 14):
    import annotationlib

MAX_PATH_LENGTH = 255


def path_of(function: Any) -> str:
    """Return the dotted path by which other processes find the function or class. Raises InvalidTask."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not callable(function) or inspect.ismethod(function) or not isinstance(module, str) or not isinstance(name, str):
        raise InvalidTask(f"A task must be a function, a coroutine function or a class with run(), not {function!r}.")
    path = f"{module}.{name}"
    if "<lambda>" in name:
        raise InvalidTask(f"A lambda cannot be a task, for it has no name to find it by ({path!r}): use def.")
    if "<locals>" in name:
        raise InvalidTask(f"Task {path!r} is defined inside a function, where no other process finds it: move it out.")
    if module == "__main__":
        raise InvalidTask(f"Task {path!r} is defined in the script that runs: move it to the tasks module of an app.")
    if len(path) > MAX_PATH_LENGTH:
        raise InvalidTask(
            f"The path of a task must be {MAX_PATH_LENGTH} characters at most, not {len(path)}: {path!r}."
        )
    return path


def body_of(path: str, function: Any) -> Any:
    """Return what is called with the arguments: the function, or the ``run`` of the class. Raises InvalidTask."""
    body = getattr(function, "run", None) if isinstance(function, type) else function
    if not callable(body):
        raise InvalidTask(f"Task {path!r} is a class without a method run(): add one, it is the body.")
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise InvalidTask(f"Task {path!r} is a generator: nobody would iterate over it, use return instead of yield.")
    return body


def signature_of(path: str, function: Any, *, bind: bool) -> inspect.Signature:
    """Return the signature that callers see: without ``self`` and without the context. Raises InvalidTask."""
    signature = _inspected(path, body_of(path, function))
    if isinstance(function, type):
        try:
            _inspected(path, function).bind()
        except TypeError as error:
            raise InvalidTask(f"Task {path!r}: each run makes an instance without arguments, but {error}.") from None
        if not isinstance(inspect.getattr_static(function, "run"), staticmethod | classmethod):
            signature = _without_first(path, signature, "self")
    return _without_first(path, signature, "the context that bind=True passes") if bind else signature


def check_is_callable_without_arguments(path: str, signature: inspect.Signature) -> None:
    """Raise InvalidTask if a call must have arguments."""
    try:
        signature.bind()
    except TypeError as error:
        raise InvalidTask(f"Task {path!r} is called without arguments on_start, but {error}.") from None


def _without_first(path: str, signature: inspect.Signature, what: str) -> inspect.Signature:
    parameters = list(signature.parameters.values())
    kind = parameters[0].kind if parameters else inspect.Parameter.KEYWORD_ONLY
    if kind in (inspect.Parameter.KEYWORD_ONLY, inspect.Parameter.VAR_KEYWORD):
        raise InvalidTask(f"Task {path!r} needs a first positional parameter for {what}; its signature is {signature}.")
    return signature if kind is inspect.Parameter.VAR_POSITIONAL else signature.replace(parameters=parameters[1:])


def _inspected(path: str, function: Any) -> inspect.Signature:
    try:
        if sys.version_info >= (3, 14):
            # Annotations that only type checkers can import must not matter here.
            return inspect.signature(function, annotation_format=annotationlib.Format.FORWARDREF)
        return inspect.signature(function)
    except ValueError:
        raise InvalidTask(f"Task {path!r} has no signature to check calls against: wrap it in a function.") from None
