"""What a body leaves behind in its process is no business of the next one's."""

from collections.abc import Iterator
from typing import Any

import pytest
from pytest_django.plugin import DjangoDbBlocker

from django_dispatch.models import Run
from tests.kit import misdeeds, tasks
from tests.kit.fixtures import open_kit
from tests.kit.runs import wait_until_final

Looks = dict[str, tuple[Run, Run]]


def names(kind: type) -> list[str]:
    return [name for name in vars(kind) if not name.startswith("_")]


PUT_BACK = names(misdeeds.Leaves)
REPLACED = names(misdeeds.LeavesNoGoodProcess)


@pytest.fixture(scope="module")
def looks(
    tmp_path_factory: pytest.TempPathFactory, database_url: str, django_db_blocker: DjangoDbBlocker
) -> Iterator[Looks]:
    """Each misdeed, and what the next body in the same executor finds: there is one, which takes them in order."""
    with open_kit(tmp_path_factory.mktemp("left"), database_url, django_db_blocker) as kit:
        a = kit.dispatchers(env={"KIT_OTHER_ALIAS": "{}"}, database={"CONN_MAX_AGE": 0})
        runs = [tasks.look.delay()]
        kinds = dict.fromkeys(PUT_BACK, "Leaves") | dict.fromkeys(REPLACED, "LeavesNoGoodProcess")
        for name, kind in kinds.items():
            runs += [tasks.misbehave_quickly.delay(kind, name), tasks.look.delay()]
        runs += [tasks.misbehave_quickly.delay("LeavesForGood", "clocks_and_modules"), tasks.quick.delay()]
        baseline, *others = wait_until_final(*runs, seconds=60)
        pid = a.pid
        a.terminate()
        assert a.exit_code() == 0, "not even threads keep it from ending"
        assert a.pid == pid
        yield {
            "nothing": (baseline, baseline),
            "worse": (others[-2], others[-1]),
            **dict(zip(kinds, zip(others[::2], others[1::2], strict=True), strict=False)),
        }


@pytest.mark.parametrize("name", [*PUT_BACK, *REPLACED])
def test_the_next_body_finds_all_as_it_was(looks: Looks, name: str) -> None:
    misdeed, look = looks[name]
    assert (misdeed.status, misdeed.attempt, misdeed.errors) == ("SUCCESSFUL", 1, [])
    assert (look.status, look.attempt, look.errors) == ("SUCCESSFUL", 1, [])
    assert found(look) == found(looks["nothing"][1])


def found(look: Run) -> dict[str, Any]:
    return dict(look.result[1])


def test_what_can_be_put_back_costs_no_executor(looks: Looks) -> None:
    pids = [looks[name][1].result[0] for name in PUT_BACK if name != "broken_wrapper"]
    assert len(set(pids)) == 2, "one more for the connection that could not be closed"
    assert len({looks[name][1].result[0] for name in REPLACED}) == len(REPLACED)


def test_an_executor_works_on_whatever_a_body_has_put_in_the_place_of_clocks_and_modules(looks: Looks) -> None:
    """Monkey-patches, deleted modules and filters stay; what records the outcome of a run does not depend on them."""
    assert [(run.status, run.attempt) for run in looks["worse"]] == [("SUCCESSFUL", 1)] * 2
