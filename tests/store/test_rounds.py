"""D4: a chain of rounds is resumed at its last unfinished root, with all options of its put."""

from __future__ import annotations

from typing import Any

import pytest
from support.killed_executions import (
    Kill,
    effects_in_doubt,
    kill_at_random,
    kill_everywhere,
    run_execution,
)
from support.memory_journal import act
from support.seeds import example_count, seeds

from anabranch.commander import ConfigurationError, Node, Retry, current_node
from anabranch.commander.durable import scope_here
from anabranch.handlers import handler
from anabranch.jobs import Graph, add_edge
from anabranch.store import Durable, DurableCalls

pytestmark = pytest.mark.contract("D4")

LEFT: list[str] = []


def put_next(job: Round) -> None:
    if job.number:
        job.put_job(
            Round(job.number - 1),
            parent=job.commander,
            timeout=50,
            priority=3,
            policy="collect",
            retry=Retry(attempts=2, on=(KeyError, ValueError), backoff=1),
        ).at_end(put_next)


async def put_later(job: Durable[Any]) -> None:
    await act("between")
    job.put_job(Round(1), parent=job.commander).at_end(put_next)


class Round(Durable[int]):
    number: int

    async def task(self) -> int:
        await act("round", self.number)
        if self.number % 2 and scope_here().attempt == 1 and current_node().policy != "x":  # type: ignore[union-attr]
            raise KeyError(self.number)
        return self.number


class First(Durable[str]):
    how: str

    def __post_init__(self) -> None:
        if self.how == "plain":
            self.at_end(lambda job: job.put_job(Round(4), parent=job.commander).at_end(put_next))
        elif self.how == "async":
            self.at_end(put_async)

    async def task(self) -> str:
        await act("first")
        if self.how == "body":
            self.put_job(Round(2), parent=self.commander).at_end(put_next)
        if self.how == "child":
            await self.call_handler(puts())
        if self.how == "durable child":
            await self.put_job(Puts())
        return await act("last")


async def put_async(job: Durable[Any]) -> None:
    await act("between")
    job.put_job(Round(2), parent=job.commander).at_end(put_next)


@handler
async def puts(node: Any) -> None:
    node.put_job(Round(2), parent=node.commander).at_end(put_next)


class Puts(Durable[None]):
    async def task(self) -> None:
        self.put_job(Round(2), parent=self.commander).at_end(put_next)
        await act("puts")


HOWS = ["plain", "async", "body", "child", "durable child"]


@pytest.mark.parametrize("how", HOWS)
def test_no_round_is_lost_or_done_twice(how: str) -> None:
    """After every kill, in both worlds, each round runs once, with its options and callbacks."""
    first = kill_everywhere(lambda: First(how), seeds=(None, 1))
    rounds = {name.split("#")[0] for name in first.disk.done.values() if name.startswith("round")}
    assert rounds == {f"round({number})" for number in range(5 if how == "plain" else 3)}
    assert first.state == "completed"


@pytest.mark.parametrize("seed", seeds(example_count(40, 500)))
def test_rounds_survive_several_kills(seed: int) -> None:
    """Four kills at random places."""
    kill_at_random(lambda: First(HOWS[seed % len(HOWS)]), seed, kills=4)


def test_earlier_rounds_are_not_walked() -> None:
    """Only unfinished roots are put again: resuming a long chain costs one round."""
    first = run_execution(lambda: First("plain"))
    walked: list[str] = []
    last = max(row.seq for row in first.rows if row.kind == "root")
    again = run_execution(lambda: First("plain"), Kill(last, frozenset()).of(first))
    assert again.outcome == first.outcome
    assert [row.kind for row in again.rows[last:] if row.kind == "root"] == walked


class Refused(Durable[str]):
    how: str

    async def task(self) -> str:
        return "ok"

    def __post_init__(self) -> None:
        self.at_end(self.put)

    def put(self, job: Any) -> None:
        if self.how == "lambda":
            job.put_job(Round(0), parent=job.commander).at_end(lambda _: None)
        elif self.how == "edge":
            job.put_job(add_edge(Round(0), Round(2)), parent=job.commander)
        elif self.how == "plain":
            job.call_handler(puts(), parent=job.commander)
        elif self.how == "predicate":
            retry = Retry(on=lambda _: True)
            job.put_job(Round(0), parent=job.commander, retry=retry)


@pytest.mark.parametrize("how", ["lambda", "edge", "plain", "predicate"])
def test_what_would_be_lost_is_refused(how: str, caplog: pytest.LogCaptureFixture) -> None:
    """A round whose put cannot be repeated fails, and says what to do."""
    execution = run_execution(lambda: Refused(how))
    assert execution.state == "failed"
    if how == "plain":
        assert isinstance(execution.error, ConfigurationError)
        assert "Durable" in str(execution.error)
    else:
        assert "__post_init__" in caplog.text


class AddsInBody(Durable[str]):
    async def task(self) -> str:
        self.at_end(print)
        return "x"


def test_a_body_adds_no_final_callback() -> None:
    """It would be lost if the body is skipped."""
    with pytest.raises(ConfigurationError, match="__post_init__"):
        raise run_execution(AddsInBody).error or AssertionError


@handler
async def puts_and_fails(node: Node[Any], what: str) -> None:
    attempt = scope_here().attempt  # type: ignore[union-attr]
    node.put_job(Round(2 * attempt), parent=node.commander)
    await act("puts", attempt)
    if what != "at once":
        await DurableCalls(node).sleep(5)  # the round continues during that time
    if attempt < 3 or what == "always":
        raise KeyError(attempt)


class Again(Durable[str]):
    how: str

    async def task(self) -> str:
        node = puts_and_fails(self.how)
        retry = Retry(attempts=3, backoff=1) if self.how != "always" else None
        try:
            if self.how == "times out":
                await self.call_handler(puts_and_fails("always"), claim=True, timeout=3)
            elif self.how == "durable":
                await self.put_job(Again("later"), claim=True)
            else:
                await self.call_handler(node, retry=retry, claim=True)
        except (KeyError, TimeoutError) as error:
            return f"failed: {error!r}"
        return await act("last")


@pytest.mark.parametrize("how", ["at once", "later", "always", "times out", "durable"])
def test_a_round_outlives_the_attempt_that_put_it(how: str) -> None:
    """It belongs to the run: it runs once, and the next attempt puts another one."""
    first = kill_everywhere(lambda: Again(how), seeds=(None, 1))
    rounds = [name.split("#")[0] for name in first.disk.done.values() if name.startswith("round")]
    attempts = 1 if how in ("always", "times out") else 3
    assert sorted(rounds) == [f"round({2 * n + 2})" for n in range(attempts)]
    assert first.state == "completed"
    for seed in seeds(example_count(10, 200)):
        kill_at_random(lambda: Again(how), seed, kills=3, first=first)


class Fickle(Durable[str]):
    """Puts a round only in its first execution, like code that has changed."""

    async def task(self) -> str:
        await act("begun")
        if not LEFT:
            self.put_job(Round(0), parent=self.commander)
            LEFT.append("put")
        await act("more")
        return "done"


def test_a_round_whose_putter_does_not_come_again_is_taken_up_in_the_end() -> None:
    """None is lost, and the run ends."""
    LEFT.clear()
    first = run_execution(Fickle)
    begun = next(row.seq for row in first.rows if row.kind == "root")
    for rows in range(begun, len(first.rows) + 1):
        done = frozenset(effects_in_doubt(first, rows))
        execution = run_execution(Fickle, Kill(rows, done).of(first))
        assert execution.state == "completed"
        assert {name.split("#")[0] for name in execution.disk.done.values()} >= {"round(0)"}


class Cycle(Durable[int]):
    async def task(self) -> int:
        return await self.put_job(Graph(add_edge(Round(0), add_edge(Round(2), Round(4)))))


def test_edges_among_durable_jobs_survive() -> None:
    """A graph below a durable job is followed again; its durable nodes do not run again."""
    assert kill_everywhere(Cycle).result == 4
