"""What crosses a process boundary arrives whole, in order and undecoded, however it is cut into pieces."""

import json
import os
import socket
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from django_dispatch.documents import error_document, storable
from django_dispatch.executors.inbox import Inbox
from django_dispatch.messages import (
    Assignment,
    Enqueued,
    FrameReader,
    Message,
    News,
    Outcome,
    Plan,
    Progress,
    Ready,
    Retiring,
    Started,
    Stop,
    StopOrder,
    Verdict,
    pack_tickets,
    take_tickets,
)

LEASE = bytes(range(16))
LARGE = json.dumps("x" * 300_000)
MESSAGES: list[Message] = [
    Ready(),
    Assignment(7, LEASE, 2**62, 4_000_000_000, 3, 2, "shop.tasks.ü", '["a", {"b": "\\n"}]', "{}", "a\nqueue"),
    Assignment(8, LEASE, 1, 1, 1, 0, "shop.tasks.large", f"[{LARGE}]", "{}", "default"),
    Assignment(9, LEASE, 1, 1, 1, 0, "shop.tasks.report", "[]", "{}", "a\nqueue", 1_774_745_999.999999),
    Started(2**62, 4_000_000_000),
    Progress(1, 2, '{"done":1}'),
    Enqueued("shop.add", "a queue\nof two lines", 1 << 40),
    Outcome(1, 2, Verdict.RETURNED, 0.25, ""),
    Outcome(1, 2, Verdict.RAISED, 1e9, '{"message":"ü 🦉"}'),
    Outcome(1, 2, Verdict.RAISED, 0.5, '{"message":"a"}', Plan(is_final=True)),
    Outcome(1, 2, Verdict.SNOOZED, 0.5, "", Plan(False, 1e9, 'a "queue"\n', -5)),
    StopOrder(1, 2, Stop.SHUTDOWN),
    News('{"event":"ready"}'),
    Retiring(),
]


@pytest.mark.parametrize("size", [1, 7, 4096, 1 << 20])
def test_messages_survive_being_cut_anywhere(size: int) -> None:
    stream = b"".join(message.encode() for message in MESSAGES)
    if size == 1:  # each byte of the large one alone would only take long
        stream = b"".join(message.encode() for message in MESSAGES if message is not MESSAGES[2])
    reader = FrameReader()
    found = [message for at in range(0, len(stream), size) for message in reader.feed(stream[at : at + size])]
    assert found == [message for message in MESSAGES if size > 1 or message is not MESSAGES[2]]


@pytest.mark.parametrize("verdict", Verdict)
def test_every_verdict_arrives_as_itself(verdict: Verdict) -> None:
    (found,) = FrameReader().feed(Outcome(1, 1, verdict).encode())
    assert isinstance(found, Outcome)
    assert found.verdict is verdict


# tickets and the inbox


@pytest.fixture
def pairs() -> Iterator[tuple[socket.socket, socket.socket, socket.socket, socket.socket]]:
    """The dispatcher's and the executor's ends of the tickets, then of the stream."""
    tickets, stream = socket.socketpair(), socket.socketpair()
    yield *tickets, *stream
    for end in (*tickets, *stream):
        end.close()


def assignment(ticket: int) -> Assignment:
    return Assignment(ticket, LEASE, 100 + ticket, 1, 1, 0, "shop.tasks.one", "[]", "{}", "default")


def test_a_ticket_goes_to_one_reader_only(pairs: Any) -> None:
    """What was taken back will never be started, and what is started cannot be taken back."""
    ours, theirs, our_stream, their_stream = pairs
    inbox = Inbox(theirs, their_stream)
    our_stream.sendall(b"".join(assignment(number).encode() for number in range(1, 6)))
    ours.sendall(pack_tickets([1, 2, 3, 4]))
    assert [item.ticket for item in inbox.take(2)] == [1, 2]
    assert take_tickets(theirs, 100, socket.MSG_DONTWAIT) == (3, 4), "taken back by the dispatcher"
    with pytest.raises(BlockingIOError):
        inbox.take(1, socket.MSG_DONTWAIT)
    ours.sendall(pack_tickets([5]))
    assert inbox.take(1) == [assignment(5)]


def test_an_order_beside_an_assignment_is_not_lost(pairs: Any) -> None:
    """The stream is read for the assignment of a ticket: an order that comes along with it still counts."""
    ours, theirs, our_stream, their_stream = pairs
    inbox = Inbox(theirs, their_stream)
    order = StopOrder(55, 1, Stop.CANCEL)
    our_stream.sendall(order.encode() + assignment(1).encode())
    ours.sendall(pack_tickets([1]))
    assert inbox.take(1) == [assignment(1)]
    assert inbox.take_orders() == [order]
    assert inbox.take_orders() == []


def test_an_inbox_whose_dispatcher_is_gone_is_empty(pairs: Any) -> None:
    ours, theirs, _, their_stream = pairs
    ours.close()
    assert Inbox(theirs, their_stream).take(1) == []


# texts that PostgreSQL cannot hold


@pytest.mark.parametrize(
    ("value", "stored"),
    [
        ("plain", "plain"),
        ("a\x00b", "a\\u0000b"),
        ("\x00\x00", "\\u0000\\u0000"),
        ("\\\x00", "\\\\u0000"),
        ("\\u0000", "\\u0000"),
        ("\\\\u0000", "\\\\u0000"),
        ("\ud800", "\\ud800"),
        ("ü\udfff🦉", "ü\\udfff🦉"),
        ({"k\x00": ["\x00"]}, {"k\\u0000": ["\\u0000"]}),
        ("\x01\n\t", "\x01\n\t"),
    ],
)
def test_what_postgresql_cannot_hold_is_shown_escaped(kit: Any, value: object, stored: object) -> None:
    """NUL and lone surrogates become visible escapes; a text that merely looks like an escape stays as it is."""
    text = storable(json.dumps(value, ensure_ascii=False))
    assert json.loads(text) == stored
    assert kit.sql.execute("SELECT %s::jsonb", [text]).fetchone() == (stored,)


def test_without_the_escapes_postgresql_would_refuse(kit: Any) -> None:
    with pytest.raises(psycopg.errors.UntranslatableCharacter):
        kit.sql.execute("SELECT %s::jsonb", ['"\\u0000"'])


def test_an_error_document_holds_what_it_is_given() -> None:
    document = json.loads(error_document("exception", "x\x00", attempt=2, executor=f"a:{os.getpid()}"))
    assert document == {"kind": "exception", "message": "x\\u0000", "attempt": 2, "executor": f"a:{os.getpid()}"}
