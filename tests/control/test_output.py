"""What the command shows, and when it says that something is wrong; without dispatchers."""

import io
import json
import sys
from typing import Any

import pytest
from django.core.management import CommandError, call_command

from django_dispatch import ControlError, control, output
from django_dispatch.control.client import Missing, Replies
from django_dispatch.dispatcher.stats import Stats
from django_dispatch.management.commands import dispatcherctl

ANSWERS = [
    {"worker-1": {"pid": 10, "runs": [1, 2]}, "worker-22": {"pid": 7, "kind": "sync"}, "node_id": "a", "lease_id": "x"},
    {"late": [], "is_healthy": True, "loops": {"poll": {"age": 1.5}}, "stack": "one\ntwo", "node_id": "b"},
    {"node_id": "c"},
]
TABLE = """\
a
             pid  runs  kind
  worker-1   10   1, 2  -
  worker-22  7    -     sync

b
  late        -
  is_healthy  yes
  loops
          age
    poll  1.5
  stack
    one
    two

c
  (nothing)"""


def test_people_get_aligned_tables() -> None:
    assert output.as_table(ANSWERS) == TABLE


def test_a_long_value_is_shortened_in_a_table_only() -> None:
    answers = [{"one": {"task": "t" * 500}, "two": {"task": "u"}, "node_id": "a"}]
    assert max(map(len, output.as_table(answers).splitlines())) < 100
    refusal = "a sentence of " * 10
    assert output.as_table([{"error": refusal, "node_id": "a"}]) == f"a\n  error  {refusal}"
    assert "t" * 500 in output.as_json(answers)


def test_what_holds_nothing_is_no_row() -> None:
    answers = [{"status": {"received": 0}, "partials": {}, "node_id": "a"}]
    assert output.as_table(answers) == "a\n  status\n    received  0\n  partials  -"


def test_programs_get_json_or_yaml() -> None:
    yaml = pytest.importorskip("yaml")
    awkward = [{"text": 'é😀"\\\n', "none": None, "nested": {"a": [1, {"b": 2.5}]}}]
    assert json.loads(output.as_json(awkward)) == awkward
    assert yaml.safe_load(output.as_yaml(awkward)) == awkward


def test_without_pyyaml_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "yaml", None)
    with pytest.raises(CommandError, match=r'pip install "django-dispatch\[yaml\]"'):
        output.as_yaml([])


HEALTHY = {"node_id": "a", "is_healthy": True, "late": []}


@pytest.mark.parametrize(
    ("replies", "said"),
    [
        (Replies(1, [HEALTHY]), None),
        (Replies(0), "No dispatcher has a live lease."),
        (Replies(2, [HEALTHY], [Missing("b", "host", 5)]), "No reply from b (pid 5 on host). 1 of 2 replies came"),
        (Replies(1, [{"node_id": "a", "error": "Not so."}]), "a: Not so."),
        (Replies(1, [HEALTHY | {"is_healthy": False, "late": ["lease"]}]), "a is not well; late: lease."),
    ],
)
def test_the_exit_code_says_whether_all_is_well(
    replies: Replies, said: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dispatcherctl, "ask", lambda *_, **__: replies)
    if said is None:
        call_command("dispatcherctl", "alive", stdout=io.StringIO(), skip_checks=True)
        return
    with pytest.raises(CommandError) as error:
        call_command("dispatcherctl", "alive", stdout=io.StringIO(), skip_checks=True)
    assert str(error.value).startswith(said)
    assert error.value.returncode == 1


@pytest.mark.parametrize(
    "words",
    [
        ["run", "t", "--args", "[1"],
        ["scale"],
        ["stacks"],
        ["set-log-level", "LOUD"],
        ["cancel", "--task=shop.add", "--queue="],
        [],
    ],
)
def test_what_makes_no_sense_is_not_asked(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcherctl, "ask", lambda *_, **__: pytest.fail("it was asked"))
    with pytest.raises(CommandError):
        call_command("dispatcherctl", *words, skip_checks=True)


def test_a_question_that_cannot_be_sent_is_an_error_at_once(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DISPATCH = {"LISTEN_DSN": "host=127.0.0.1 port=1 connect_timeout=5"}
    with pytest.raises(ControlError, match="'alive' could not be sent"):
        control.ask("alive", timeout=60)
    with pytest.raises(ControlError, match="'alive' could not be sent"):
        control.send("alive")
    with pytest.raises(CommandError, match="'alive' could not be sent"):
        call_command("dispatcherctl", "alive", skip_checks=True)


def test_loops_are_late_that_have_been_silent_for_long(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.time", lambda: now)
    stats = Stats()
    stats.expect("poll", 1.0)
    stats.expect("prune", 60.0)
    now = 1014.0
    assert stats.late() == []
    now = 1016.0
    assert stats.late() == ["poll"]
    stats.succeed("poll")
    now = 1031.0
    assert stats.late() == []
    now = 1181.0
    assert stats.late() == ["poll", "prune"]


def test_a_loop_is_late_by_the_pause_that_it_means_to_make(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 1000.0
    monkeypatch.setattr("time.time", lambda: now)
    stats = Stats()
    stats.expect("poll", 10.0)
    stats.succeed("poll", 30.0)
    now = 1060.0
    assert stats.late() == []
    stats.succeed("poll")
    now = 1120.0
    assert stats.late() == ["poll"]
