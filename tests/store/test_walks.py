"""Where a claim begins, when what it walks over on the way is dear: by a clock that the test moves."""

from collections.abc import Sequence

import pytest

from django_dispatch.store.values import ClaimedRun, Exchange, Wanted
from django_dispatch.store.walks import (
    FIRST_PAUSE_SECONDS,
    FRONT,
    LONGEST_PAUSE_SECONDS,
    MOST_LINES,
    PROOFS,
    VAIN_SECONDS,
    Walk,
    Walks,
)

ALL = ("default", -100, 100, FRONT)


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture(autouse=True)
def steady_claims() -> None:
    """They are not."""


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def walks(clock: Clock) -> Walks:
    return Walks(clock)


def wanted(limit: int = 1, excluded_tasks: Sequence[str] = ()) -> Wanted:
    return {"queues": ["default"], "limit": limit, "excluded_tasks": excluded_tasks}


def run(place: int, priority: int = 0, queue: str = "default") -> ClaimedRun:
    return ClaimedRun(place, 1, "shop.add", queue, priority, 1, 0, 0, None, None, "", "[]", "{}", place=place)


def parts(walk: Walk, *queues: str) -> list[tuple[str, int, int, int]] | None:
    """Return what it looks at; None: everything."""
    return None if walk.is_whole else list(zip(*walk.params(queues or ("default",)).values(), strict=True))


def make(
    walks: Walks, clock: Clock, seconds: float, *claimed: ClaimedRun, limit: int | None = None, tail: int | None = None
) -> Exchange:
    """Make a claim that takes so long, of as much as it wants unless there is a ``limit``."""
    limit = len(claimed) if limit is None else limit
    walk = walks.begin(wanted(limit))
    if walk.wants_tail:
        walk.set_tail([] if tail is None else [(tail,)])
    clock.now += seconds
    return walk.end(Exchange(claimed, (), ()), limit=limit, finished=0)


def test_cheap_claims_are_whole(walks: Walks, clock: Clock) -> None:
    for place in range(1, 5):
        assert make(walks, clock, 0.009, run(place)).rest_seconds is None
        assert parts(walks.begin(wanted())) is None


def test_a_dear_one_is_followed_by_claims_that_begin_where_each_ended(walks: Walks, clock: Clock) -> None:
    make(walks, clock, 0.11, run(7))
    assert parts(walks.begin(wanted())) == [
        ("default", 1, 100, FRONT),
        ("default", 0, 0, 7),
        ("default", -100, -1, FRONT),
    ]
    make(walks, clock, 0.001, run(20, priority=100), run(9), run(3, priority=-100), run(8))
    assert parts(walks.begin(wanted()), "mail", "default") == [
        ("mail", -100, 100, FRONT),
        ("default", 100, 100, 20),
        ("default", 1, 99, FRONT),
        ("default", 0, 0, 9),
        ("default", -99, -1, FRONT),
        ("default", -100, -100, 3),
    ]


def test_the_next_whole_one_comes_when_it_is_a_twentieth_of_the_time(walks: Walks, clock: Clock) -> None:
    for _ in range(PROOFS):
        make(walks, clock, 0.02, run(7))
    clock.now += 0.3
    assert make(walks, clock, 0.001, run(8), limit=2).rest_seconds == pytest.approx(0.098)
    clock.now += 0.1
    assert walks.begin(wanted()).is_whole


@pytest.mark.parametrize(("proofs", "pause"), [(1, FIRST_PAUSE_SECONDS), (2, LONGEST_PAUSE_SECONDS)])
def test_it_comes_in_seconds_however_long_it_takes(walks: Walks, clock: Clock, proofs: int, pause: float) -> None:
    """And sooner after the first one, which may have waited for something else."""
    for place in range(proofs):
        clock.now += LONGEST_PAUSE_SECONDS
        make(walks, clock, 60.0, run(place))
    clock.now += pause - 0.001
    assert not walks.begin(wanted()).is_whole
    clock.now += 0.002
    assert walks.begin(wanted()).is_whole


def test_one_that_found_all_it_wanted_leaves_no_rest(walks: Walks, clock: Clock) -> None:
    make(walks, clock, 0.11, run(7))
    assert make(walks, clock, 0.001, run(8)).rest_seconds is None


def test_a_whole_one_that_is_cheap_again_ends_it(walks: Walks, clock: Clock) -> None:
    make(walks, clock, 0.11, run(7))
    clock.now += 2.2
    make(walks, clock, 0.001, run(9))
    assert walks.begin(wanted()).is_whole


def test_what_was_found_before_a_whole_one_says_nothing_after_it(walks: Walks, clock: Clock) -> None:
    """A run may have come in further ahead, and the whole one may have left it for lack of room."""
    make(walks, clock, 0.11, run(7), run(90, priority=-5))
    clock.now += 2.2
    make(walks, clock, 0.11, run(3), tail=5000)
    assert parts(walks.begin(wanted())) == [
        ("default", 1, 100, FRONT),
        ("default", 0, 0, 3),
        ("default", -100, -1, FRONT),
    ]


def test_after_one_that_found_too_little_the_next_begins_behind_all_there_was_before_it(
    walks: Walks, clock: Clock
) -> None:
    make(walks, clock, 0.11, limit=1, tail=5000)
    assert parts(walks.begin(wanted())) == [("default", -100, 100, 5000)]
    make(walks, clock, 0.001, run(5100))
    make(walks, clock, 0.001, run(4000, priority=3))
    assert parts(walks.begin(wanted())) == [
        ("default", 4, 100, 5000),
        ("default", 3, 3, 5000),
        ("default", 1, 2, 5000),
        ("default", 0, 0, 5100),
        ("default", -100, -1, 5000),
    ]


def test_after_cheap_ones_nobody_has_asked_where_the_table_ends(walks: Walks, clock: Clock) -> None:
    make(walks, clock, 0.001, run(7))
    assert not walks.begin(wanted()).wants_tail
    make(walks, clock, 0.11, limit=1)
    assert parts(walks.begin(wanted())) is None
    make(walks, clock, 0.11, limit=1, tail=5000)
    assert parts(walks.begin(wanted())) == [("default", -100, 100, 5000)]


def test_a_few_that_are_slow_prove_nothing(walks: Walks, clock: Clock) -> None:
    for seconds in (0.05, 0.05, 0.009, 0.05, 0.05):
        make(walks, clock, seconds, run(7))
        assert walks.begin(wanted()).is_whole
    make(walks, clock, 0.05, run(8))
    assert not walks.begin(wanted()).is_whole


def test_the_asking_is_not_counted(walks: Walks, clock: Clock) -> None:
    walk = walks.begin(wanted())
    clock.now += 10.0
    walk.set_tail([])
    walk.end(Exchange((), (), ()), limit=1, finished=0)
    assert parts(walks.begin(wanted())) is None


def test_claims_that_leave_out_other_tasks_are_lines_of_their_own(walks: Walks, clock: Clock) -> None:
    make(walks, clock, 0.11, run(7))
    assert walks.begin(wanted(excluded_tasks=["a", "b"])).is_whole
    for name in range(MOST_LINES):
        walks.begin(wanted(excluded_tasks=[str(name)]))
    assert walks.begin(wanted()).is_whole, "the oldest is forgotten"


def test_many_runs_may_take_their_time(walks: Walks, clock: Clock) -> None:
    make(walks, clock, 0.5, *map(run, range(10_000)))
    assert walks.begin(wanted()).is_whole


def test_to_begin_further_on_is_given_up_where_it_is_no_cheaper(walks: Walks, clock: Clock) -> None:
    """It is the disk that is slow, say."""
    make(walks, clock, 0.11, run(7))
    make(walks, clock, 0.06, run(8))
    clock.now += 2.2
    make(walks, clock, 0.11, run(9))
    assert walks.begin(wanted()).is_whole
    clock.now += VAIN_SECONDS
    make(walks, clock, 0.11, run(10))
    assert not walks.begin(wanted()).is_whole


def test_who_claims_nothing_goes_nowhere(walks: Walks, clock: Clock) -> None:
    make(walks, clock, 0.11, run(7))
    nothing: Wanted = {"queues": [], "limit": 5}
    for call in (wanted(limit=0), nothing):
        walk = walks.begin(call)
        assert (walk.is_whole, walk.wants_tail) == (True, False)
        clock.now += 0.1
        walk.end(Exchange((), (), ()), limit=call["limit"], finished=1)
    assert not walks.begin(wanted()).is_whole
