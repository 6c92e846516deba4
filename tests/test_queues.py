"""Which queues a dispatcher serves, by patterns, and in which order, by weight."""

from uuid import uuid4

import pytest

from django_dispatch.dispatcher.queues import Queues
from django_dispatch.patterns import plain_names, private_queue, serves, weight_of

SERVED = {
    ("mail",): {"mail"},
    ("mail*",): {"mail", "mail.slow", "mail.fast"},
    ("mail*", "-mail.slow"): {"mail", "mail.fast"},
    ("-mail.slow", "mail*"): {"mail", "mail.fast"},
    ("-mail*",): {"reports", "a.b", "axb", ""},
    ("*",): {"mail", "mail.slow", "mail.fast", "reports", "a.b", "axb", ""},
    ("*.slow", "reports"): {"mail.slow", "reports"},
    ("a.b",): {"a.b"},
    ("m*.*t",): {"mail.fast"},
    ("*", "-*.*"): {"mail", "reports", "axb", ""},
}


@pytest.mark.parametrize("patterns", SERVED)
def test_patterns_mean_these_queues(patterns: tuple[str, ...]) -> None:
    names = ["mail", "mail.slow", "mail.fast", "reports", "a.b", "axb", ""]
    assert {name for name in names if serves(patterns, name)} == SERVED[patterns]


def test_no_pattern_means_the_private_queue_of_a_dispatcher() -> None:
    assert not serves(["*", "lease*"], private_queue(uuid4()))


def test_names_are_known_from_the_beginning_if_there_is_no_pattern() -> None:
    assert plain_names(["a", "b", "-c"]) == ["a", "b"]
    assert plain_names(["a", "b*"]) is plain_names(["-a"]) is plain_names(["*"]) is None


def test_a_name_has_its_own_weight_or_that_of_its_pattern_or_one() -> None:
    weights = {"mail*": 3, "mail.slow": 1, "*": 2}
    assert [weight_of(name, weights) for name in ("mail", "mail.slow", "reports")] == [3, 1, 2]
    assert weight_of("reports", {"mail": 3}) == 1


def test_a_dispatcher_learns_of_the_queues_that_its_patterns_mean() -> None:
    queues = Queues(("mail*", "-mail.slow"))
    assert queues.learns
    assert (queues.add(["mail.slow", "reports"]), queues.add(["mail", "mail.slow"])) == (False, True)
    assert queues.names() == ["mail"]
    assert Queues(("a", "-b")).names() == ["a"]


def test_its_private_queue_comes_first_whatever_it_serves() -> None:
    queues = Queues(("a",))
    own, other = private_queue(uuid4()), private_queue(uuid4())
    queues.private = own
    assert queues.names() == [own, "a"]
    assert (queues.add([own]), queues.add([other])) == (True, False)
    queues.note_claimed([own])
    assert Queues(None).add([other]) is False


def shares(queues: Queues, backlog: dict[str, int], claims: int, limit: int) -> dict[str, int]:
    """Claim as the database does, queue after queue in the order given, and return how many runs each got."""
    got = dict.fromkeys(backlog, 0)
    for _ in range(claims):
        room, claimed = limit, []
        for name in queues.names():
            count = min(room, backlog[name])
            backlog[name] -= count
            room -= count
            got[name] += count
            claimed += [name] * count
        queues.note_claimed(claimed)
    return got


@pytest.mark.parametrize("limit", [1, 7, 50])
def test_flooded_queues_get_shares_by_weight(limit: int) -> None:
    queues = Queues(("mail", "reports", "rest"), {"mail": 3, "reports": 2})
    got = shares(queues, dict.fromkeys(("mail", "reports", "rest"), 10**6), claims=6000 // limit, limit=limit)
    assert got["mail"] == pytest.approx(3000, abs=2 * limit)
    assert got["reports"] == pytest.approx(2000, abs=2 * limit)
    assert got["rest"] == pytest.approx(1000, abs=2 * limit)


def test_what_a_queue_does_not_use_is_left_to_the_others() -> None:
    got = shares(Queues(("a", "b"), {"a": 1000}), {"a": 3, "b": 10**6}, claims=10, limit=10)
    assert got == {"a": 3, "b": 97}


def test_a_single_run_beside_a_flood_is_in_the_next_claim() -> None:
    queues = Queues(("flood", "b"), {"flood": 1000})
    backlog = {"flood": 10**6, "b": 0}
    shares(queues, backlog, claims=100, limit=10)
    backlog["b"] = 1
    assert shares(queues, backlog, claims=1, limit=10) == {"flood": 9, "b": 1}


def test_idleness_is_not_saved_up() -> None:
    queues = Queues(("a", "b"))
    backlog = {"a": 10**6, "b": 0}
    shares(queues, backlog, claims=1000, limit=10)
    backlog["b"] = 10**6
    got = shares(queues, backlog, claims=10, limit=10)
    assert got["b"] == pytest.approx(50, abs=10)
