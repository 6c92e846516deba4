"""The wire format: chunks both ways, with dispatcherd's own code on the other side; and what is refused."""

import json
from typing import Any

import dispatcherd.chunking
import pytest

from django_dispatch.control import wire

AWKWARD = ['"', "\\", "é", "😀", "\n", "a\x00b", "\ud800", "plain "]


def big(sample: str, size: int = 30_000) -> dict[str, Any]:
    return {"task": "t", "args": [sample * (size // len(sample))]}


@pytest.mark.parametrize("sample", AWKWARD, ids=ascii)
def test_dispatcherd_reads_what_we_cut(sample: str) -> None:
    document = big(sample)
    payloads = wire.compose(document)
    assert len(payloads) > 1
    assert max(len(payload.encode()) for payload in payloads) <= 7999
    accumulator = dispatcherd.chunking.ChunkAccumulator()
    *others, (_, whole) = [accumulator.ingest_dict(json.loads(payload)) for payload in payloads]
    assert others == [(True, None)] * len(others)
    assert whole == document


@pytest.mark.parametrize("sample", AWKWARD, ids=ascii)
def test_we_read_what_dispatcherd_cuts_in_any_order(sample: str) -> None:
    document = big(sample)
    payloads = dispatcherd.chunking.split_message(json.dumps(document), max_bytes=8000)
    assembler = wire.Assembler()
    assert len(payloads) > 1
    *others, whole = [assembler.add(wire.parse(payload), 0.0) for payload in reversed(payloads)]
    assert others == [None] * len(others)
    assert whole == document
    assert assembler.pending(0.0) == {}


def test_what_fits_is_not_cut() -> None:
    largest = {"a": "x" * (7999 - len('{"a":""}'))}
    assert [len(payload) for payload in wire.compose(largest)] == [7999]
    assert len(wire.compose({"a": largest["a"] + "x"})) == 2


def test_a_command_has_only_what_is_said() -> None:
    assert wire.compose_command("alive") == ['{"control":"alive"}']
    (payload,) = wire.compose_command("run", {"task": "t"}, reply_to="here", node="a")
    assert json.loads(payload) == {"control": "run", "reply_to": "here", "control_data": {"task": "t"}, "node": "a"}


@pytest.mark.parametrize(
    ("payload", "kind"),
    [
        ("lambda: 1", "not JSON"),
        ("", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"a": ' + "9" * 5000 + "}", "not JSON"),
        ("[1]", "no object"),
        ('"shop.tasks.add"', "no object"),
    ],
    ids=lambda value: value[:20],
)
def test_what_is_no_object_is_refused(payload: str, kind: str) -> None:
    with pytest.raises(wire.BadMessage) as error:
        wire.parse(payload)
    assert error.value.kind == kind
    assert len(str(error.value)) < 300


def chunk(**changes: Any) -> dict[str, Any]:
    return {wire.CHUNK_MARK: "v1", "message_id": "m", "index": 0, "total": 2, "payload": "x"} | changes


@pytest.mark.parametrize(
    "changes",
    [
        {wire.CHUNK_MARK: "v2"},
        *({"message_id": value} for value in (None, 1, "m" * 1000)),
        *({"index": value} for value in (-1, 2, 1.0, True, "0", None)),
        *({"total": value} for value in (0, 10**9, "2", None, True)),
        *({"payload": value} for value in (None, 1, {"a": 1})),
    ],
    ids=str,
)
def test_a_chunk_that_makes_no_sense_is_refused_and_holds_nothing(changes: dict[str, Any]) -> None:
    assembler = wire.Assembler()
    with pytest.raises(wire.BadMessage, match="hunk"):
        assembler.add(chunk(**changes), 0.0)
    assert (assembler.pending(0.0), assembler.refused) == ({}, 1)


def test_chunks_that_do_not_agree_are_refused_and_twins_count_once() -> None:
    assembler = wire.Assembler()
    assert assembler.add(chunk(payload='{"a"'), 0.0) is None
    assert assembler.add(chunk(payload='{"other"'), 0.0) is None
    with pytest.raises(wire.BadMessage, match="others 2"):
        assembler.add(chunk(index=1, total=3), 0.0)
    assert assembler.add(chunk(index=1, payload=":1}"), 0.0) == {"a": 1}


def test_a_whole_that_is_no_object_is_refused_and_forgotten() -> None:
    assembler = wire.Assembler()
    assembler.add(chunk(payload="[1"), 0.0)
    with pytest.raises(wire.BadMessage, match="no object"):
        assembler.add(chunk(index=1, payload="]"), 0.0)
    assert assembler.pending(0.0) == {}


def test_what_stays_half_sent_expires() -> None:
    assembler = wire.Assembler(expiry_seconds=60)
    assembler.add(chunk(), 100.0)
    assert assembler.pending(101.0)["m"] == {
        "seconds_since_start": 1.0,
        "expected_total": 2,
        "chunks": [{"chunk_id": 0, "length": 1}],
    }
    assert assembler.expire(160.0) == 0
    assert assembler.expire(160.1) == 1
    assert (assembler.pending(161.0), assembler.dropped) == ({}, 1)


def test_half_sent_messages_hold_a_bounded_amount_of_memory() -> None:
    assembler = wire.Assembler(largest_pending=100_000)
    for number in range(1000):
        assembler.add(chunk(message_id=str(number), payload="x" * 7000), float(number))
    kept = assembler.pending(1000.0)
    assert list(kept)[-1] == "999"
    assert len(kept) == 100_000 // 7200
    assert assembler.dropped == 1000 - len(kept)
    for number in range(10_000):  # empty ones count, too
        assembler.add(chunk(message_id=f"e{number}", payload=""), 1000.0)
    assert len(assembler.pending(1000.0)) == 500
