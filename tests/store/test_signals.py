"""D12: signals that are sent early, have another type, or have several receivers."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from pydantic import BaseModel, SecretStr, field_validator
from support.killed_executions import Execution, Kill, run_execution
from support.memory_journal import RUN_ID, act
from support.seeds import example_count, seeds

from anabranch.commander import ConfigurationError, Node
from anabranch.handlers import handler
from anabranch.store import Durable, Journal, NotStorable
from anabranch.store._codec import Codec
from anabranch.store._view import view

pytestmark = pytest.mark.contract("D12")


class Number(Durable[list[Any]]):
    timeout: float | None = None

    async def task(self) -> list[Any]:
        found = []
        for _ in range(2):
            try:
                found.append(await self.durable.signal("number", int, timeout=self.timeout))
            except TimeoutError:
                found.append("late")
            await act("had", found[-1])
        return found


def sends(*values: object, pause: float = 1.0) -> Any:
    """Return a function that sends these, one after the other."""

    async def beside(journal: Journal) -> None:
        for value in values:
            await asyncio.sleep(pause)
            await journal.signal(RUN_ID, "number", value)

    return beside


def after_every_kill(first: Execution, make: Any) -> None:
    """Resume a run after each row, when all had been sent by then, and compare."""
    for rows in range(len(first.rows) + 1):
        left = Kill(rows, frozenset()).of(first)
        left.now = max(left.now, first.disk.now)
        execution = run_execution(make, left)
        assert execution.outcome == first.outcome
        assert refused(execution) == refused(first)


def refused(execution: Execution) -> dict[int, str]:
    return view(execution.disk.runs[RUN_ID], execution.rows, []).refused


@pytest.mark.parametrize("timeout", [None, 100])
def test_what_does_not_fit_is_refused_and_the_next_is_waited_for(
    timeout: float | None, caplog: pytest.LogCaptureFixture
) -> None:
    """In each execution: with a row, and one warning without the value."""
    first = run_execution(lambda: Number(timeout), beside=sends("sk-123", {"a": 1}, 7, None, 8))
    assert first.result == [7, 8]
    assert first.state == "completed"
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 3
    assert all(RUN_ID in each and "'number'" in each and "int" in each for each in said)
    assert "Input should be a valid integer" in said[0]
    assert "sk-123" not in caplog.text
    assert [*refused(first)] == [1, 2, 4]
    after_every_kill(first, lambda: Number(timeout))


def test_time_goes_on_while_what_comes_does_not_fit() -> None:
    """The wait ends on time."""
    first = run_execution(lambda: Number(10), beside=sends("x", "y", "z", pause=4))
    assert first.result == ["late", "late"]
    assert first.disk.now - first.rows[0].time == pytest.approx(20, abs=0.1)
    after_every_kill(first, lambda: Number(10))


class Both(Durable[list[str]]):
    async def task(self) -> list[str]:
        jobs = [self.call_handler(waits(self, name)) for name in "ab"]
        return [await job for job in jobs]


@handler
async def waits(node: Node[Any], job: Both, name: str) -> str:
    found = await job.durable.signal("number", int)
    return f"{name}: {found} {await act(name, found)}"


@pytest.mark.parametrize("seed", [None, *seeds(example_count(3, 50))])
def test_two_that_wait_at_once_take_each_letter_once(seed: int | None) -> None:
    """In order; each gets the same one in each execution, whatever is refused in between."""
    first = run_execution(Both, beside=sends(1, "x", 2, 3, pause=0), seed=seed)
    assert sorted(each.split()[1] for each in first.result) == ["1", "2"]
    for rows in range(len(first.rows) + 1):
        taken = {row.ident: row.value for row in first.rows[:rows] if row.kind == "letter"}
        execution = run_execution(Both, Kill(rows, frozenset()).of(first), seed=None)
        assert sorted(each.split()[1] for each in execution.result) == ["1", "2"]
        assert (
            taken.items()
            <= {r.ident: r.value for r in execution.rows if r.kind == "letter"}.items()
        )


class Gathers(Durable[list[Any]]):
    what: str
    apart: bool

    async def task(self) -> list[Any]:
        calls = [
            self.call_handler(calls_in_turn(self)) if self.apart else self.call() for _ in "ab"
        ]
        return await asyncio.gather(*calls)

    async def call(self) -> Any:
        if self.what == "signal":
            return await self.durable.signal("number", int)
        if self.what == "sleep":
            return await self.durable.sleep(3)
        await asyncio.sleep(0)
        return self.durable.random() if self.what == "random" else self.durable.now().isoformat()


@handler
async def calls_in_turn(node: Node[Any], job: Gathers) -> Any:
    return await job.call()


@pytest.mark.parametrize("apart", [True, False])
@pytest.mark.parametrize("what", ["signal", "now", "random", "sleep"])
def test_tasks_of_one_body_that_could_be_mixed_up_are_refused(what: str, apart: bool) -> None:
    """Handlers have an identity, tasks do not; sleeps of one length are equal."""
    first = run_execution(lambda: Gathers(what, apart), beside=sends(1, 2))
    if apart or what == "sleep":
        assert first.error is None
        assert len(first.result) == 2
    else:
        assert isinstance(first.error, ConfigurationError)
        assert f"for one {what}" in str(first.error)


def test_a_letter_is_known_by_number_and_its_reason_tells_nothing_of_it() -> None:
    """The text of a program's own validators may contain the value, so only their kind is shown."""
    codec = Codec(Checked, "the signal 'x'")
    assert codec.refusal(b'{"word": "ok"}') is None
    assert codec.refusal(b'{"word": "sk-123"}') == "value_error"
    assert codec.refusal(b'{"wrong": "sk-123"}') == "word: Field required"
    assert codec.refusal(b"[1") == "JSONDecodeError"


class Checked(BaseModel):
    word: str

    @field_validator("word")
    @classmethod
    def check(cls, word: str) -> str:
        if word != "ok":
            raise ValueError(f"{word} is wrong")
        return word


class Wrong(Durable[Any]):
    async def task(self) -> Any:
        return await self.durable.signal("number", SecretStr)


def test_a_type_that_cannot_be_kept_is_refused_before_anything_is_waited_for() -> None:
    """The letter is not received."""
    execution = run_execution(Wrong, beside=sends("x"))
    assert isinstance(execution.error, NotStorable)
    assert not [row for row in execution.rows if row.kind in ("waits", "letter")]
