"""The wire format, which is dispatcherd's: JSON objects, cut into chunks where NOTIFY takes no more. Pure, everywhere.

============  ======================================================================================================
command       ``{"control": "alive", "control_data": {…}, "reply_to": "a_channel"}``; ours may have ``node``, too
reply         what the command answers, with ``node_id`` beside it
task message  ``{"task": "shop.tasks.add", "args": […], "kwargs": {…}, "uuid": "…"}``
chunk         ``{"__dispatcherd_chunk__": "v1", "message_id": "…", "index": 0, "total": 2, "payload": "{\\"control…"}``
============  ======================================================================================================

Nothing here evaluates anything: what is not JSON, or not an object, is refused.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

LARGEST_PAYLOAD = 7999  # bytes; PostgreSQL refuses 8000
CHUNK_MARK = "__dispatcherd_chunk__"
CHUNK_VERSION = "v1"
MOST_CHUNKS = 10_000
LARGEST_PENDING = 64 << 20  # characters held for messages that are not whole
CHUNK_COST = 200  # what a chunk takes besides its text
EXPIRY_SECONDS = 60.0


class BadMessage(Exception):
    """A payload that is none of ours. ``kind`` is one of few; the text says more."""

    def __init__(self, kind: str, text: str) -> None:
        super().__init__(text)
        self.kind = kind


# composing


def compose(document: Mapping[str, Any]) -> list[str]:
    """Return the payloads that bring this document across: one, or a set of chunks. Each is ASCII."""
    text = json.dumps(document, separators=(",", ":"), default=str)
    return [text] if len(text) <= LARGEST_PAYLOAD else _chunks(text)


def compose_command(
    command: str, data: Mapping[str, Any] | None = None, *, reply_to: str | None = None, node: str | None = None
) -> list[str]:
    """Return the payloads of a command: to all dispatchers, or to those named ``node``."""
    document: dict[str, Any] = {"control": command}
    if reply_to is not None:
        document["reply_to"] = reply_to
    if data:
        document["control_data"] = dict(data)
    if node is not None:
        document["node"] = node
    return compose(document)


def _chunks(text: str) -> list[str]:
    message_id = uuid4().hex
    room = LARGEST_PAYLOAD - len(_chunk(message_id, MOST_CHUNKS, MOST_CHUNKS, ""))
    pieces = []
    position = 0
    while position < len(text):
        piece = text[position : position + room]
        while (size := len(json.dumps(piece)) - 2) > room:  # quotes and backslashes count double
            piece = piece[: len(piece) * room // size]
        pieces.append(piece)
        position += len(piece)
    if len(pieces) > MOST_CHUNKS:
        raise BadMessage("too large", f"A message of {len(text):,} characters is too large to be sent.")
    return [_chunk(message_id, index, len(pieces), piece) for index, piece in enumerate(pieces)]


def _chunk(message_id: str, index: int, total: int, payload: str) -> str:
    document = {CHUNK_MARK: CHUNK_VERSION, "message_id": message_id, "index": index, "total": total, "payload": payload}
    return json.dumps(document, separators=(",", ":"))


# parsing


def parse(payload: str) -> dict[str, Any]:
    """Read a payload. Raises BadMessage."""
    try:
        document = json.loads(payload)
    except (ValueError, RecursionError) as error:
        raise BadMessage("not JSON", f"It is no JSON: {error}") from None
    if not isinstance(document, dict):
        raise BadMessage("no object", f"It is JSON, but no object: a {type(document).__name__}.")
    return document


@dataclass(slots=True)
class _Partial:
    """A message of which some chunks have come."""

    total: int
    began_at: float
    heard_at: float
    pieces: dict[int, str] = field(default_factory=dict)
    size: int = 0


class Assembler:
    """Puts chunks together. What stays half-sent is forgotten after a while, and holds a bounded amount of memory.

    ``now`` is in seconds, by any clock that does not go back.
    """

    def __init__(self, *, expiry_seconds: float = EXPIRY_SECONDS, largest_pending: int = LARGEST_PENDING) -> None:
        self._expiry_seconds = expiry_seconds
        self._largest_pending = largest_pending
        self._partials: dict[str, _Partial] = {}
        self._size = 0
        self.received = 0
        self.assembled = 0
        self.refused = 0
        self.dropped = 0

    def add(self, document: dict[str, Any], now: float) -> dict[str, Any] | None:
        """Return the document, if it is no chunk; the whole message, if it is the last one; else None.

        Raises BadMessage.
        """
        if CHUNK_MARK not in document:
            return document
        self.received += 1
        try:
            text = self._take(document, now)
            if text is None:
                return None
            message = parse(text)
        except BadMessage:
            self.refused += 1
            raise
        self.assembled += 1
        return message

    def expire(self, now: float) -> int:
        """Forget what has been half-sent for too long; return how many messages that were."""
        late = [key for key, partial in self._partials.items() if now - partial.heard_at > self._expiry_seconds]
        for key in late:
            self._drop(key)
        return len(late)

    def pending(self, now: float) -> dict[str, dict[str, Any]]:
        """Describe each message that is not whole, by its id."""
        return {
            key: {
                "seconds_since_start": round(now - partial.began_at, 3),
                "expected_total": partial.total,
                "chunks": [
                    {"chunk_id": index, "length": len(piece)} for index, piece in sorted(partial.pieces.items())
                ],
            }
            for key, partial in self._partials.items()
        }

    def _take(self, chunk: dict[str, Any], now: float) -> str | None:
        """Put a chunk to the others; return the text when it is whole."""
        key, index, total, piece = _fields(chunk)
        partial = self._partials.setdefault(key, _Partial(total, now, now))
        if partial.total != total:
            raise BadMessage("bad chunk", f"Chunk {index} of {key!r} says {total} chunks, others {partial.total}.")
        partial.heard_at = now
        if index not in partial.pieces:
            partial.pieces[index] = piece
            partial.size += len(piece) + CHUNK_COST
            self._size += len(piece) + CHUNK_COST
        if len(partial.pieces) == total:
            self._forget(key)
            return "".join(partial.pieces[number] for number in range(total))
        while self._size > self._largest_pending:
            self._drop(next(iter(self._partials)))  # the one that began first
        return None

    def _drop(self, key: str) -> None:
        self._forget(key)
        self.dropped += 1

    def _forget(self, key: str) -> None:
        self._size -= self._partials.pop(key).size


def _fields(chunk: dict[str, Any]) -> tuple[str, int, int, str]:
    """The fields of a chunk envelope, checked."""
    if chunk[CHUNK_MARK] != CHUNK_VERSION:
        raise BadMessage("bad chunk", f"Its chunks are of version {chunk[CHUNK_MARK]!r}, not {CHUNK_VERSION!r}.")
    key, index, total, piece = (chunk.get(name) for name in ("message_id", "index", "total", "payload"))
    if not isinstance(key, str) or not isinstance(piece, str) or len(key) > 200:
        raise BadMessage("bad chunk", "A chunk has a message_id and a payload, both texts.")
    if type(index) is not int or type(total) is not int or not 0 <= index < total <= MOST_CHUNKS:
        raise BadMessage("bad chunk", f"A chunk is one of up to {MOST_CHUNKS}, not {index!r} of {total!r}.")
    return key, index, total, piece
