"""When an executor makes room for a fresh one."""

import pytest

from django_dispatch.executors.limits import Lifetime, Limits

NO_LIMITS = {"max_runs": None, "max_age_seconds": None, "max_memory_mb": None}


@pytest.mark.parametrize("limit", [{"max_runs": 1}, {"max_age_seconds": 1e-9}, {"max_memory_mb": 1}])
def test_an_executor_beyond_a_limit_still_runs_one_run(limit: dict[str, float]) -> None:
    lifetime = Lifetime(Limits(**NO_LIMITS | limit))
    assert not lifetime.is_over()
    lifetime.count_run()
    assert lifetime.is_over()


def test_an_executor_without_limits_goes_on() -> None:
    lifetime = Lifetime(Limits(**NO_LIMITS))
    lifetime.count_run()
    assert not lifetime.is_over()
