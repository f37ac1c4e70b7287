"""D4, D18: the outcome that final callbacks give to a root is its outcome in each execution."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from support.killed_executions import kill_everywhere
from support.memory_journal import act

from anabranch.store import Durable, NotStorable

pytestmark = pytest.mark.contract("D4")


@dataclass
class Odd(Exception):
    """An exception that contains something that is not data."""

    what: object


class Ends(Durable[list[Any]]):
    """Completes or fails; an input says what its callback makes of that."""

    fails: bool
    made: str
    waits: bool

    def __post_init__(self) -> None:
        (self.at_exception if self.fails else self.at_end)(self.later if self.waits else self.make)

    async def task(self) -> list[Any]:
        await act("body")
        if self.fails:
            raise ValueError("no")
        return ["yes"]

    async def later(self, job: Ends) -> None:
        await act("callback")
        self.make(job)

    def make(self, job: Ends) -> None:
        match self.made:
            case "value":
                job.recover(["no", "but yes"])
            case "no value":
                job.recover([object()])
            case "failure":
                raise KeyError("after all")
            case _:
                raise Odd(object())


class Puts(Durable[str]):
    """Puts such a root, as a round."""

    fails: bool
    made: str
    waits: bool

    async def task(self) -> str:
        self.put_job(Ends(self.fails, self.made, self.waits), parent=self.commander)
        return await act("put")


MADE = {
    (True, "value"): ("completed", None),
    (True, "no value"): ("failed", NotStorable),
    (False, "failure"): ("failed", KeyError),
    (False, "no failure"): ("failed", NotStorable),
}


@pytest.mark.parametrize("waits", [False, True], ids=["plain", "async"])
@pytest.mark.parametrize(("fails", "made"), MADE)
def test_a_root_ends_as_its_callbacks_say_in_each_life(fails: bool, made: str, waits: bool) -> None:
    """A value that cannot be stored makes the root fail."""
    state, error = MADE[fails, made]
    first = kill_everywhere(lambda: Ends(fails, made, waits), seeds=(None, 1))
    assert (first.state, type(first.error)) == (state, error or type(None))
    assert first.result == (["no", "but yes"] if made == "value" else None)
    first = kill_everywhere(lambda: Puts(fails, made, waits))
    assert first.state == state
    assert first.error is None
