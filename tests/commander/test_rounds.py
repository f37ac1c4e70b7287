"""A loop of rounds: what a later one fails with, and what stays alive."""

from __future__ import annotations

import gc
import logging
import weakref

import pytest

from anabranch.commander import run
from anabranch.jobs import Job

pytestmark = pytest.mark.usefixtures("light_heap")
ROUNDS = 50


class Round(Job[int]):
    """Puts the next round beside itself; the last one fails."""

    number: int
    alive: weakref.WeakSet[Job[int]]
    most: list[int]

    async def task(self) -> int:
        self.alive.add(self)
        gc.collect()
        self.most.append(len(self.alive))
        if self.number == ROUNDS:
            raise ValueError("the last round")
        self.at_end(
            lambda node: node.put_job(
                Round(self.number + 1, self.alive, self.most), parent=node.commander
            )
        )
        return self.number


def test_a_failure_of_a_later_round_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """The first round's result is still the run's; the rounds before are gone."""
    most: list[int] = []
    with caplog.at_level(logging.ERROR):
        assert run(Round(1, weakref.WeakSet(), most)) == 1

    assert "the last round" in caplog.text
    assert max(most) <= 3


def test_a_failure_of_a_later_round_leaves_a_run_that_fails_fast() -> None:
    """So that the program's exit status tells it."""
    with pytest.raises(ValueError, match="the last round"):
        run(Round(1, weakref.WeakSet(), []), policy="fail_fast")
