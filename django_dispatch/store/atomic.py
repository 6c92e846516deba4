"""The transactional finish: a body's own transaction writes its success. In executors, on the body's connection."""

from .vendors import callers


def finish(using: str, token: tuple[int, int], lease: bytes, result: str | None) -> bool:
    """Write a success as part of the transaction that is open on this alias; ``result`` is a JSON text.

    False: the run is not this claim's any more, and the transaction must not be committed.
    """
    return callers(using).finish(using, token, lease, result)
