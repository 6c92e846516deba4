"""Whose a run is, as tasks and callers say it: made as keys are, checked where it is written, known everywhere."""

import json
from inspect import signature
from typing import Any

import pytest

from django_dispatch import InvalidArguments, InvalidOption, InvalidTask, Task
from django_dispatch.limits import as_document, check_limits, from_document
from django_dispatch.models import Run
from tests.kit import limited, tasks


def body(tenant: int, rows: list[int] | None = None) -> None: ...


SIGNATURE = signature(body)


def elsewhere(fair_key: Any, *args: Any, calls: Any = ()) -> str | None:
    """Return the fair key that a process without the code of the task makes of these arguments."""
    limits = check_limits(SIGNATURE, fair_key=fair_key)
    document = json.loads(json.dumps(as_document(limits, SIGNATURE, task="shop.body", calls=calls)))
    there, as_known = from_document(document)
    return there.keys_of("shop.body", as_known, args, {}).fair_key


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("{customer}", "fair_key .* names 'customer', which is no parameter"),
        ("{tenant", "fair_key .* is no format"),
        ("", "fair_key must be a text"),
        (7, "fair_key must be a text"),
    ],
)
def test_nonsense_is_refused_when_the_task_is_defined(value: Any, reason: str) -> None:
    with pytest.raises(InvalidTask, match=reason):
        Task(body, fair_key=value)


class TestEnqueue:
    pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.usefixtures("any_database")]

    def test_it_is_made_of_the_arguments(self) -> None:
        assert limited.of_tenant.delay("7").fair_key == "tenant-7"
        assert [run.fair_key for run in limited.of_tenant.delay_many([("8",), ("9",)])] == ["tenant-8", "tenant-9"]

    def test_a_function_makes_it_beside_a_limit(self) -> None:
        run = limited.of_tenant_at_a_limit.delay("x")
        assert (run.fair_key, run.concurrency_limit, run.status) == ("X", 2, "BLOCKED")

    def test_an_option_takes_its_place_and_needs_none(self) -> None:
        assert limited.of_tenant.apply_async(("7",), fair_key="other").fair_key == "other"
        assert tasks.note.apply_async(fair_key="other").fair_key == "other"
        assert limited.whole.apply_async(fair_key="other").fair_key == "other"
        assert tasks.note.delay().fair_key is None

    def test_what_is_returned_is_what_was_written(self) -> None:
        for run in (
            limited.of_tenant.delay("7"),
            limited.of_tenant.apply_async(("7",), countdown=60),
            *limited.of_tenant.delay_many([("7",), ("8",)]),
            limited.of_tenant_at_a_limit.delay("x"),
            limited.discard.apply_async((1,), fair_key="x"),
            limited.discard.apply_async((1,), fair_key="y"),
        ):
            row = Run.objects.get(pk=run.pk)
            assert (run.fair_key, run.turn) == (row.fair_key, row.turn)

    def test_a_long_one_is_hashed(self) -> None:
        one, two = (limited.of_tenant.delay("x" * 300 + end).fair_key for end in "ab")
        assert one != two
        assert one is not None
        assert len(one) < 255

    @pytest.mark.parametrize("bad", ["", "a\0", "\ud800", 7])
    def test_one_that_cannot_be_stored_is_refused(self, bad: Any) -> None:
        with pytest.raises(InvalidOption, match="fair_key must be"):
            limited.of_tenant.apply_async(("7",), fair_key=bad)
        assert not Run.objects.exists()

    def test_a_key_still_needs_something_that_it_is_of(self) -> None:
        with pytest.raises(InvalidOption, match="a key would mean nothing"):
            limited.of_tenant.apply_async(("7",), key="k")


class TestWhereTheCodeIsNot:
    """A dispatcher imports no task; it enqueues occurrences and messages."""

    def test_a_text_is_filled_in(self) -> None:
        assert elsewhere("tenant-{tenant}-{rows}", 7) == "tenant-7-None"

    def test_a_function_is_known_for_the_calls_of_the_task_itself(self) -> None:
        assert elsewhere(lambda tenant: f"t{tenant}", 7, calls=[([7], {})]) == "t7"

    def test_other_calls_are_refused(self) -> None:
        with pytest.raises(InvalidArguments, match="its fair_key is a function, so that only its own code"):
            elsewhere(lambda tenant: f"t{tenant}", 8, calls=[([7], {})])

    def test_what_does_not_fit_is_refused(self) -> None:
        with pytest.raises(InvalidArguments, match="missing a required argument: 'tenant'"):
            elsewhere("tenant-{tenant}")
