"""Failures in later rounds of a loop, and memory of earlier rounds."""

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
    """Put the next round beside this one. The last round fails."""

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
    """The first round's result stays the run's result. Earlier rounds are freed."""
    most: list[int] = []
    with caplog.at_level(logging.ERROR):
        assert run(Round(1, weakref.WeakSet(), most)) == 1

    assert "the last round" in caplog.text
    assert max(most) <= 3


def test_a_failure_of_a_later_round_leaves_a_run_that_fails_fast() -> None:
    """The failure reaches the program's exit status."""
    with pytest.raises(ValueError, match="the last round"):
        run(Round(1, weakref.WeakSet(), []), policy="fail_fast")
