"""The audit of the soak finds each kind of violation, and nothing in a history where all is well."""

import logging
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from django_dispatch import TaskContext
from testproject.logs import RunFormatter

from .audit import audit
from .evidence import Change, Effect, Enqueue, Evidence, Frozen, Start
from .ledger import FOLDERS, Entry, born, is_dead, make, path_of, read, starts_of, unended
from .plan import DECK, FLEET, plan
from .timeline import events_of

ID = 7
RUNNING = {"epoch": 1, "attempt": 1, "lease": "A", "lease_left": 3.0}
LOST_ONCE = {"epoch": 1, "attempt": 1, "interruptions": 1, "errors": [(1, "lost")]}
AGAIN = {"epoch": 2, "attempt": 2, "interruptions": 1, "errors": [(1, "lost")]}


def change(at: float, old: str | None, new: str | None, **facts: Any) -> Change:
    return Change(at, ID, old, new, key="w-1", task="tests.soak.tasks.holds", **facts)


def good() -> Evidence:
    """One run: claimed, lost with its dispatcher, claimed again, successful, with an effect; and one rolled back."""
    return Evidence(
        enqueues=[Enqueue(["w-1"], "committed"), Enqueue(["w-2", "w-3"], "rolled back")],
        starts=[
            Start(ID, 1, 1, 100, at=2.0, seen_at=2.9),
            Start(ID, 2, 2, 200, at=5.1, seen_at=5.9, how="returned", value="a\x00b"),
        ],
        changes=[
            change(1.0, None, "READY"),
            change(1.9, "READY", "RUNNING", **RUNNING),
            change(4.0, "RUNNING", "READY", **LOST_ONCE),
            change(5.0, "READY", "RUNNING", **AGAIN, lease="B", lease_left=3.0),
            change(6.0, "RUNNING", "SUCCESSFUL", **AGAIN, result="a\\u0000b"),
        ],
        effects=[Effect(ID, 2, committed_at=5.8)],
        rows={ID: "SUCCESSFUL"},
        ended_at=100.0,
    )


def with_change(place: int, **facts: Any) -> Callable[[Evidence], Evidence]:
    """Alter one change of the good history."""
    return lambda e: replace(
        e, changes=[replace(c, **facts) if i == place % len(e.changes) else c for i, c in enumerate(e.changes)]
    )


def with_start(place: int, **facts: Any) -> Callable[[Evidence], Evidence]:
    """Alter one start."""
    return lambda e: replace(e, starts=[replace(s, **facts) if i == place else s for i, s in enumerate(e.starts)])


def with_more(*more: Change, row: str | None) -> Callable[[Evidence], Evidence]:
    """Let the history go on."""
    return lambda e: replace(e, changes=[*e.changes, *more], rows={ID: row} if row else {})


def both(*alter: Callable[[Evidence], Evidence]) -> Callable[[Evidence], Evidence]:
    def all_of(evidence: Evidence) -> Evidence:
        for one in alter:
            evidence = one(evidence)
        return evidence

    return all_of


def failed(**facts: Any) -> Callable[[Evidence], Evidence]:
    """Let the second attempt fail."""
    return both(
        with_start(1, how="raised", value=None),
        with_change(
            -1,
            **{"status": "FAILED", "result": None, "failures": 1, "errors": [(1, "lost"), (2, "exception")]} | facts,
        ),
        lambda e: replace(e, rows={ID: "FAILED"}),
    )


VIOLATIONS: dict[str, tuple[Callable[[Evidence], Evidence], str]] = {
    "an enqueue is dropped": (lambda e: replace(e, enqueues=[*e.enqueues, Enqueue(["w-9"], "committed")]), "0"),
    "an enqueue is doubled": (lambda e: replace(e, changes=[*e.changes, replace(e.changes[0], run_id=8)]), "'w-1': 2"),
    "an enqueue that was rolled back is there": (
        lambda e: replace(e, enqueues=[Enqueue(["w-1"], "rolled back")]),
        "rolled back has as many",
    ),
    "half of a transaction is there": (
        lambda e: replace(e, enqueues=[Enqueue(["w-1", "w-2"], "in doubt")]),
        "in doubt has as many",
    ),
    "a run comes from nowhere": (lambda e: replace(e, enqueues=[]), "nobody enqueued 'w-1'"),
    "nothing happened": (lambda e: Evidence(), "no body began"),
    "a lease is left": (lambda e: replace(e, left_behind=["lease a"]), "nothing is left: lease a"),
    "a final status changes": (
        with_more(change(7.0, "SUCCESSFUL", "FAILED", **AGAIN), row="FAILED"),
        "SUCCESSFUL became FAILED",
    ),
    "a change is missing": (
        lambda e: replace(e, changes=[*e.changes[:2], *e.changes[3:]]),
        "READY became RUNNING after it was RUNNING",
    ),
    "an epoch is used twice": (with_change(3, epoch=1), "its counters went from"),
    "an attempt is not counted": (with_change(3, attempt=1), "its counters went from"),
    "a loss is counted twice": (with_change(2, interruptions=2), "its counters went from"),
    "a release counts": (with_change(2, attempt=0), "its counters went from"),
    "it runs without a lease": (with_change(1, lease=None), "it was RUNNING with lease None"),
    "nobody cancelled it": (
        both(with_change(-1, status="CANCELLED", result=None), lambda e: replace(e, rows={ID: "CANCELLED"})),
        "nobody cancelled it",
    ),
    "nobody deleted it": (
        with_more(change(9.0, "SUCCESSFUL", None, **AGAIN, actor="x"), row=None),
        "'x' deleted it",
    ),
    "nobody wanted it run again": (with_change(0, rerun_of=3), "nobody wanted 3"),
    "a claim under a lease that had expired": (with_change(1, lease_left=-2.0), "that had -2.0 s left"),
    "a claim under no lease at all": (with_change(1, lease_left=None), "that had None s left"),
    "a body that nobody claimed": (with_start(0, epoch=4), "in which nobody claimed it"),
    "a body before its claim": (with_start(0, at=1.8), "began at 1.8"),
    "a body after its claim was given to another": (with_start(0, seen_at=4.1), "lived 0.100 s longer"),
    "a body that is alive when its run is final": (with_start(1, seen_at=6.2), "lived 0.200 s longer"),
    "two bodies by their own account": (with_start(1, overlaps=[1]), "epoch 2 began while the body of epoch 1"),
    "two bodies by their times": (with_start(0, seen_at=5.2), "epoch 2 began while the body of epoch 1"),
    "a row of the ledger is doubled": (
        lambda e: replace(e, starts=[*e.starts, replace(e.starts[1], at=5.95, seen_at=5.96)]),
        "began more than once",
    ),
    "an interruption without an entry": (with_change(-1, errors=[]), "its errors are {}"),
    "a failure without an entry": (failed(errors=[(1, "lost")]), "its errors are {'lost': 1}"),
    "an attempt with two entries": (
        with_change(-1, errors=[(1, "lost"), (1, "shutdown")]),
        "there are errors of attempts [1, 1]",
    ),
    "more bodies than attempts": (
        lambda e: replace(e, starts=[*e.starts, replace(e.starts[1], epoch=3, at=5.95, seen_at=5.96)]),
        "3 bodies began; 2 attempts are counted",
    ),
    "at most once, twice": (with_change(-1, on_lost="fail"), "an at-most-once task began 2 times"),
    "a success that nobody saw": (with_start(1, how=""), "whose body was killed"),
    "a success of a body that raised": (with_start(1, how="raised"), "whose body raised"),
    "a success without a body": (lambda e: replace(e, starts=e.starts[:1]), "whose body never began"),
    "another result": (with_change(-1, result="b"), "its result is 'b'"),
    "what it committed is gone": (lambda e: replace(e, effects=[]), "had committed is not there"),
    "it fails too early": (failed(max_attempts=2), "FAILED too early"),
    "a false failure": (both(failed(), with_start(1, how="returned")), "its body returned"),
    "it runs for ever": (
        both(lambda e: replace(e, changes=e.changes[:4], rows={ID: "RUNNING"})),
        "it is RUNNING for ever",
    ),
    "it is READY for ever": (lambda e: replace(e, changes=e.changes[:3], rows={ID: "READY"}), "READY for ever"),
    "it is gone": (lambda e: replace(e, rows={}), "in the table it is None"),
    "a killed body commits beside its successor": (
        lambda e: replace(e, effects=[*e.effects, Effect(ID, 1, committed_at=6.5)]),
        "committed 2.500 s after its claim ended",
    ),
    "it came before its row": (with_start(1, notes=["came before its row"]), "came before its row"),
}


def test_a_good_history_passes() -> None:
    assert audit(good()) == []
    assert audit(failed()(good())) == []


@pytest.mark.parametrize("name", VIOLATIONS)
def test_each_kind_of_violation_is_found(name: str) -> None:
    alter, words = VIOLATIONS[name]
    found = [str(violation) for violation in audit(alter(good()))]
    assert any(words in violation for violation in found), found


def test_only_what_was_asked_for_is_allowed() -> None:
    deleted = with_more(change(9.0, "SUCCESSFUL", None, **AGAIN, actor="someone"), row=None)(good())
    assert audit(replace(deleted, asked={"cancel": set(), "rerun": set(), "delete": {ID}})) == []
    pruned = with_more(change(9.0, "SUCCESSFUL", None, **AGAIN, actor="django_dispatch store"), row=None)(good())
    assert audit(pruned) == []


def test_an_enqueue_in_doubt_may_be_there_or_not() -> None:
    for keys in (["w-1"], ["w-8", "w-9"]):
        evidence = replace(good(), enqueues=[*good().enqueues, Enqueue(keys, "in doubt")])
        assert audit(evidence) == []


def test_what_is_due_later_may_wait() -> None:
    waiting = Change(1.0, 9, None, "SCHEDULED", key="w-9", run_after=86_400.0)
    evidence = replace(
        good(),
        changes=[*good().changes, waiting],
        enqueues=[*good().enqueues, Enqueue(["w-9"], "committed")],
        rows={ID: "SUCCESSFUL", 9: "SCHEDULED"},
    )
    assert audit(evidence) == []
    assert "SCHEDULED for ever" in str(audit(replace(evidence, ended_at=90_000.0))[0])


def test_only_a_family_that_stood_still_as_a_whole_is_excused_and_only_for_moments() -> None:
    late = with_start(0, seen_at=8.2)(good())
    assert audit(late)
    frozen = Frozen(frozenset({100}), began_at=2.5, ended_at=8.0)
    assert audit(replace(late, frozen=[frozen])) == []
    for other in (replace(frozen, pids=frozenset({200})), replace(frozen, ended_at=3.0)):
        assert audit(replace(late, frozen=[other]))


# the ledger


def test_the_ledger_tells_what_bodies_did(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KIT_DIR", str(tmp_path))
    make(tmp_path / "ledger")
    first, second = (_entry(epoch) for epoch in (1, 2))
    first.begin()
    first.beat()
    second.begin()  # the first one's process, this one, is alive, and it has not ended
    second.note("came before its row")
    second.value = "v"
    second.end("returned")
    one, two = read(tmp_path / "ledger")
    assert (one.epoch, one.how, one.overlaps, one.seen_at > one.at) == (1, "", (), True)
    assert (two.epoch, two.how, two.value, two.overlaps, two.notes) == (
        2,
        "returned",
        "v",
        (1,),
        ("came before its row",),
    )

    first.end("raised")
    third = _entry(3)
    third.begin()
    third.end("returned")
    assert read(tmp_path / "ledger")[2].overlaps == ()


def test_a_doubled_start_in_the_ledger_is_seen() -> None:
    line = b'{"epoch": 1, "at": 1.0, "event": "start", "attempt": 1, "pid": 5, "born": 9}\n'
    assert len(list(starts_of(7, line * 2))) == 2
    assert unended(line)[0]["pid"] == 5


def test_a_body_that_was_stopped_before_its_first_line_did_not_begin() -> None:
    assert list(starts_of(7, b'{"epoch": 1, "at": 1.0, "event": "end", "how": "raised"}\n')) == []


def test_a_process_is_dead_when_it_is_another_one(tmp_path: Path) -> None:
    pid = os.getpid()
    assert not is_dead(pid, born(pid))
    assert is_dead(pid, born(pid) + 1)
    assert path_of(tmp_path, FOLDERS + 1) == tmp_path / "01" / f"{FOLDERS + 1}.jsonl"


def _entry(epoch: int) -> Entry:
    return Entry(TaskContext(run_id=ID, epoch=epoch, attempt=epoch, worker_id="", report=None, why_stop=None))


# the timeline


def test_the_timeline_has_what_dispatchers_log_of_trouble_and_no_more(tmp_path: Path) -> None:
    lease = "5c659651-5fb5-4f2d-a032-fab0e8416a11"
    texts = [
        (logging.INFO, "Run 1 shop.tasks.add SUCCESSFUL: returned after 0.001 s (attempt 1)."),
        (logging.WARNING, "Run 2 shop.tasks.add SCHEDULED: raised after 0.001 s (attempt 1)."),
        (logging.WARNING, f"Run 3 (shop.tasks.add) is reclaimed from lease {lease}: READY."),
        (logging.WARNING, f"Run 4 (shop.tasks.mul) is reclaimed from lease {lease}: READY."),
        (logging.ERROR, f"Lease {lease} is lost: it expired."),
    ]
    log = tmp_path / "dispatcher-1-a.log"
    records = [logging.LogRecord("django_dispatch.x", level, "", 1, text, None, None) for level, text in texts]
    log.write_text("a banner\n" + "\n".join(map(RunFormatter().format, records)))
    reclaimed, lost = events_of(log)
    assert (reclaimed.text, reclaimed.count) == (f"WARNING reclaimed from lease {lease}: READY", 2)
    assert (lost.text, lost.who) == (f"ERROR Lease {lease} is lost: it expired.", "1-a")


# the plan


def test_a_seed_replays_its_schedule_and_a_longer_one_begins_with_it() -> None:
    assert plan(1, 60) == plan(1, 60) != plan(2, 60)
    assert list(plan(1, 600))[: len(plan(1, 60))] == list(plan(1, 60))


def test_a_minute_has_every_fault() -> None:
    faults = plan(3, 60)
    assert sorted(fault.kind for fault in faults) == sorted(DECK)
    assert {fault.target for fault in faults} <= {*FLEET, "all"}
