"""A run's outcome is always recorded, whatever its body did; and nobody else notices."""

from collections.abc import Iterator

import pytest
from pytest_django.plugin import DjangoDbBlocker

from django_dispatch.exceptions import InvalidArguments
from django_dispatch.models import Run
from tests.kit import oddities, tasks
from tests.kit.fixtures import Kit, open_kit
from tests.kit.runs import wait_until_final

ODD = oddities.__name__
RETURNED = {
    "return_nul": "a\\u0000b",
    "return_surrogate": "\\ud800",
    "return_nul_key": {"k\\u0000ey": 1},
    "return_escaped_nul": "\\u0000",
    "print_nul": None,
    "exit_thread": "the body went on",
    "fork_and_return": "the parent",
}
UNSTORABLE = {
    "return_object": "The body returned a value of type object, not JSON",
    "return_nan": "The body returned a value of type float, not JSON",
    "return_too_deep": "The body returned a value of type list, not JSON",
    "return_circular": "The body returned a value of type list, not JSON: Circular reference detected",
    "return_too_long": "The body returned 100,000,002 characters of JSON; the limit is 16,000,000.",
    "return_unnamable": f"The body returned a value of type <class '{ODD}.OfNoNameToo'>, not JSON",
    "return_huge_number": "The database cannot store what the body returned",
}
RAISED = {
    "raise_nul": ("ValueError", "x\\u0000y"),
    "raise_needs_two": (f"{ODD}.NeedsTwo", "one"),
    "raise_holds_a_socket": (f"{ODD}.HoldsASocket", "holds a socket and a lambda"),
    "raise_unprintable": (f"{ODD}.Unprintable", "(its text cannot be printed: RuntimeError)"),
    "raise_unprintable_base": (f"{ODD}.UnprintableBase", "(its text cannot be printed: SystemExit)"),
    "raise_local": (f"{ODD}.AwfulThings.raise_local.<locals>.Local", "from within"),
    "raise_group": ("ExceptionGroup", "outer (2 sub-exceptions)"),
    "raise_chain": ("ValueError", "number 999"),
    "raise_lying_class": (f"{ODD}.LyingClass", "no int"),
    "raise_unnamable": (f"<class '{ODD}.OfNoName'>", "but a text"),
    "raise_odd_text": (f"{ODD}.SaysOddly", "said oddly"),
    "raise_recursion_error": ("RecursionError", "maximum recursion depth exceeded"),
    "system_exit_0": ("SystemExit", "0"),
    "system_exit_text": ("SystemExit", "so long"),
    "keyboard_interrupt": ("KeyboardInterrupt", ""),
    "cancelled_error": ("asyncio.exceptions.CancelledError", "by myself"),
    "generator_exit": ("GeneratorExit", ""),
    "own_base": (f"{ODD}.OwnBase", "mine"),
}
LONG = "raise_five_megabytes"
NAMES = [*RETURNED, *UNSTORABLE, *RAISED, LONG]
BODIES = pytest.mark.parametrize("body", ["awful", "aawful"], ids=["sync", "async"])

Runs = dict[tuple[str, str], Run]


@pytest.fixture(scope="module")
def shared_kit(
    tmp_path_factory: pytest.TempPathFactory, database_url: str, django_db_blocker: DjangoDbBlocker
) -> Iterator[Kit]:
    with open_kit(tmp_path_factory.mktemp("awful"), database_url, django_db_blocker) as kit:
        yield kit


@pytest.fixture(scope="module")
def runs(shared_kit: Kit) -> Runs:
    """Every awful thing, done once by a sync and once by an async body of one dispatcher."""
    dispatcher = shared_kit.dispatchers(async_concurrency=2)
    keys = [(body, name) for body in ("awful", "aawful") for name in NAMES]
    ended = wait_until_final(*(getattr(tasks, body).delay(name) for body, name in keys), seconds=60)
    last = wait_until_final(tasks.note.delay("fine"), tasks.anote.delay("fine"))
    assert [(run.result, run.errors) for run in last] == [("fine", [])] * 2, "the same dispatcher goes on"
    dispatcher.terminate()
    assert dispatcher.exit_code() == 0
    return dict(zip(keys, ended, strict=True))


@BODIES
def test_each_reaches_its_verdict_in_one_attempt(runs: Runs, body: str, shared_kit: Kit) -> None:
    mine = [run for (which, _), run in runs.items() if which == body]
    assert [run.attempt for run in mine] == [1] * len(NAMES)
    assert [shared_kit.ledger.starts(run) for run in mine] == [1] * len(NAMES)
    assert sum(run.interruptions for run in mine) == 0


@BODIES
@pytest.mark.parametrize("name", RETURNED)
def test_an_odd_result_is_stored_with_its_text_escaped(runs: Runs, body: str, name: str) -> None:
    run = runs[body, name]
    assert (run.status, run.result) == ("SUCCESSFUL", RETURNED[name])


@BODIES
@pytest.mark.parametrize("name", UNSTORABLE)
def test_a_result_that_cannot_be_stored_fails_its_run_once(runs: Runs, body: str, name: str) -> None:
    run = runs[body, name]
    assert (run.status, run.result, [error["kind"] for error in run.errors]) == ("FAILED", None, ["result"])
    assert run.errors[0]["message"].startswith(UNSTORABLE[name])


@BODIES
@pytest.mark.parametrize("name", RAISED)
def test_whatever_is_raised_is_a_failure_with_its_class_and_text(runs: Runs, body: str, name: str) -> None:
    """SystemExit, KeyboardInterrupt, CancelledError of the body's own are failures; none is success or a cancel."""
    run = runs[body, name]
    (error,) = run.errors
    assert (run.status, error["kind"]) == ("FAILED", "exception")
    assert (error["exception_class"], error["message"]) == RAISED[name]
    assert "traceback" in error


@BODIES
def test_the_text_of_an_error_has_a_limit(runs: Runs, body: str) -> None:
    (error,) = runs[body, LONG].errors
    assert "characters left out" in error["message"]
    assert len(str(error)) < 100_000


@pytest.mark.parametrize("argument", ["a\x00b", {"a\x00": 1}, "\ud800"], ids=["nul", "nul in a key", "surrogate"])
def test_an_argument_that_cannot_be_stored_is_refused_where_it_is_enqueued(kit: Kit, argument: object) -> None:
    with pytest.raises(InvalidArguments):
        tasks.note.delay(argument)
    assert not Run.objects.exists()


@BODIES
def test_leaving_the_process_is_a_loss_and_no_success(kit: Kit, body: str) -> None:
    """A run whose executor died is lost: told apart from success, repeated, and given up at the cap."""
    dispatcher = kit.dispatchers(async_concurrency=2, settings={"MAX_INTERRUPTIONS": 2})
    run = getattr(tasks, body).delay("exit_process")
    (run,) = wait_until_final(run)
    assert (run.status, run.attempt, run.interruptions) == ("FAILED", 2, 2)
    assert {(e["kind"], e["message"]) for e in run.errors} == {("lost", "Its executor died: exit code 0.")}
    (again,) = wait_until_final((tasks.note if body == "awful" else tasks.anote).delay())
    assert again.status == "SUCCESSFUL"
    dispatcher.terminate()
    assert dispatcher.exit_code() == 0


def test_an_awful_exception_can_be_tried_again(kit: Kit) -> None:
    kit.dispatchers()
    runs = [tasks.awful_twice.delay(name) for name in ("raise_needs_two", "raise_unprintable_base", "raise_nul")]
    for run in wait_until_final(*runs):
        assert (run.status, run.attempt, run.failures, len(run.errors)) == ("FAILED", 2, 2, 2)
        first, second = kit.ledger.rows(run)
        assert (second.started_at - first.started_at).total_seconds() > 0.9, "after a delay"
