"""Outcomes whose runs another transaction holds: sent again, and said of them when it is more than a moment."""

import asyncio
from collections.abc import Sequence
from unittest.mock import Mock

import pytest

from django_dispatch.dispatcher.busy import Busy, Ended
from django_dispatch.messages import Outcome, Verdict
from django_dispatch.store.values import ClaimedRun, Settlement

RUN = ClaimedRun(7, 1, "shop.add", "default", 0, 1, 0, 0, None, None, "", "[]", "{}")


def test_a_run_that_is_held_for_a_moment_is_not_worth_a_word(caplog: pytest.LogCaptureFixture) -> None:
    """Who claims side by side locks, for the length of a claim, what the other has just taken."""

    async def main() -> list[int]:
        again: asyncio.Queue[Sequence[Ended]] = asyncio.Queue()
        busy = Busy(again.put_nowait)
        batch: Sequence[Ended] = [
            Ended(Mock(run=RUN), Outcome(7, 1, Verdict.RETURNED), Settlement(7, 1, "SUCCESSFUL")),
        ]
        warnings = []
        for _ in range(7):
            assert busy.sort_out(batch, [7]) == []
            warnings.append(caplog.text.count("its outcome waits"))
            batch = await again.get()
        assert busy.sort_out(batch, []) == batch
        return warnings

    assert asyncio.run(main()) == [0, 0, 0, 0, 0, 1, 1]
