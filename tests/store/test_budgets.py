"""D4: the usage of earlier executions is counted once, completely, and before any request."""

from __future__ import annotations

import asyncio
import random
from contextlib import aclosing, suppress
from typing import Any

import pytest
from support.killed_executions import Execution, Kill, effects_in_doubt, run_execution
from support.memory_journal import RUN_ID, Disk, act, journal_of, use_disk_clock
from support.seeds import example_count, seeds

from anabranch.backends import Limits
from anabranch.commander import (
    BackendUnavailable,
    Commander,
    Node,
    NodeCancelled,
    Retry,
    charge,
    quorum,
)
from anabranch.handlers import handler
from anabranch.messages import Message, Request, Usage
from anabranch.store import Durable, Live
from anabranch.store import live as later
from anabranch.store._reply import usage_in_row
from anabranch.testing import ScriptedBackend, run_seeded

pytestmark = pytest.mark.contract("D4")

Plan = list[Any]  # the plan of a node, and the backend


def request(text: str) -> Request:
    return Request([Message(role="user", content=text)])


def say(asked: Request) -> Any:
    """Answer with the text length and the tokens that the request names, or fail in the middle."""
    how, tokens = asked.messages[-1].content.split()
    if how == "breaks":
        return ["x" * int(tokens), BackendUnavailable("gone")]
    return Message(role="assistant", content="x" * 20, usage=Usage(input_tokens=int(tokens)))


async def spend(node: Node[Any], backend: ScriptedBackend, plan: Plan) -> None:
    """Follow a plan: request a reply, or put other nodes and see their outcome."""
    what, number, *others = plan
    text = f"{what} {number}"
    match what:
        case "asks":
            await backend.complete(request(text))
        case "breaks":
            with suppress(BackendUnavailable):
                await backend.complete(request(text))
        case "leaves":
            async with aclosing(backend.stream(request(text))) as stream:
                async for _ in stream:
                    break
        case "hangs":
            await backend.complete(request(text))
            await asyncio.sleep(1000)
        case "fails":
            await backend.complete(request(text))
            raise ValueError(number)
        case "one after the other":
            for each in others:
                await spend(node, backend, each)
        case "kept":
            with suppress(ValueError):
                await node.put_job(Kept(others[0], backend))
        case "late":
            with suppress(TimeoutError, ValueError):
                await node.call_handler(plain(backend, others[0]), timeout=50)
        case "tried":
            retry = Retry(attempts=2, backoff=5, jitter=0)
            with suppress(ValueError):
                await node.call_handler(plain(backend, others[0]), retry=retry)
        case "raced":
            nodes = [node.call_handler(plain(backend, each), claim=True) for each in others]
            await asyncio.sleep(20)
            for each in nodes:
                each.cancel("too late")
        case "quorum":
            with suppress(Exception):
                await node.call_handler(all_of(backend, others), policy=quorum(1))
        case _:
            with suppress(ValueError):
                await node.call_handler(all_of(backend, others), policy="fail_fast")


@handler
async def plain(node: Node[Any], backend: ScriptedBackend, plan: Plan) -> None:
    await spend(node, backend, plan)


@handler
async def all_of(node: Node[Any], backend: ScriptedBackend, plans: list[Plan]) -> None:
    for number, each in enumerate(plans):
        if number % 2:
            node.put_job(Kept(each, backend))
        else:
            node.call_handler(plain(backend, each))


class Kept(Durable[None]):
    plan: Plan
    backend: Live[ScriptedBackend] = later()

    async def task(self) -> None:
        await spend(self, self.backend, self.plan)


class Round(Durable[None]):
    """Follows its first plan; the next round follows the others."""

    plans: list[Plan]
    backend: Live[ScriptedBackend] = later()

    def __post_init__(self) -> None:
        self.at_done(next_round)

    async def task(self) -> None:
        with suppress(ValueError):
            await spend(self, self.backend, self.plans[0])


def next_round(job: Node[Any]) -> None:
    if isinstance(job, Round) and job.plans[1:]:
        job.put_job(Round(job.plans[1:], job.backend), parent=job.commander)


def draw_plan(draw: random.Random, numbers: list[int], depth: int = 3) -> Plan:
    """Draw a plan whose replies cost different numbers of tokens."""
    simple = ["asks", "asks", "breaks", "leaves", "hangs", "fails"]
    nested = ["one after the other", "kept", "late", "tried", "raced", "quorum", "fail_fast"]
    what = draw.choice(simple if depth == 0 or draw.random() < 0.2 else nested)
    numbers.append(len(numbers) + 1)
    children = (
        0 if what in simple else 1 if what in ("kept", "late", "tried") else draw.randint(1, 3)
    )
    if what == "hangs" and depth == 3:
        what = "asks"
    return [what, numbers[-1], *[draw_plan(draw, numbers, depth - 1) for _ in range(children)]]


def known(execution: Execution, rows: int | None = None) -> float:
    """Return the usage of all replies in these rows."""
    kept = [row for row in execution.rows[:rows] if row.kind in ("reply", "broken", "spent")]
    return sum(usage.total_tokens for row in kept for _, usage in usage_in_row(row))


@pytest.mark.parametrize("own", [False, True])
@pytest.mark.parametrize("seed", seeds(example_count(12, 300)))
def test_each_life_counts_what_all_before_it_have_spent(seed: int, own: bool) -> None:
    """After each kill, at the first request, whatever ends, fails, is cut off, raced or skipped.

    The commander has the limits, or the run itself.
    """
    draw = random.Random(seed)
    numbers: list[int] = []
    plans = [draw_plan(draw, numbers) for _ in range(draw.randint(1, 3))]
    seen: list[float] = []
    limits = Limits()

    def fresh() -> Limits:
        nonlocal limits
        limits = Limits()
        return limits

    def answer(asked: Request) -> Any:
        seen.append(limits.spent)
        return say(asked)

    def make() -> Round:
        return Round(plans, ScriptedBackend(otherwise=answer))

    first = run_execution(make, limits=fresh, own=own, seed=seed)
    assert first.limits.spent == known(first) > 0
    for rows in range(len(first.rows)):
        seen.clear()
        execution = run_execution(
            make, Kill(rows, frozenset()).of(first), limits=fresh, own=own, seed=seed
        )
        assert min(seen, default=known(first)) >= known(first, rows), (plans, rows)
        assert execution.limits.spent == known(execution), (plans, rows)


class Asks(Durable[float]):
    """Requests replies below its own limits; returns the usage of the whole tree."""

    backend: Live[ScriptedBackend] = later()
    limits: Live[Limits] = later()

    async def task(self) -> float:
        await self.call_handler(plain(self.backend, ["asks", 100]), limits=self.limits)
        used: Any = self.commander.usage(self)["scripted"]
        return used.total_tokens


@pytest.mark.parametrize("how", ["cancel", "exit", "error"])
def test_a_reply_that_is_cut_when_the_run_is_suspended_is_paid_for(how: str) -> None:
    """The reply is requested again; its usage until then counts in all limits and in the usage."""
    disk, spent = Disk(), []

    async def live(seconds: float) -> float | None:
        own, around, inside = Limits(), Limits(), Limits()
        backend = ScriptedBackend(otherwise=say, delay=1, size=2, limits=own)
        gave = None
        with use_disk_clock(disk):
            async with journal_of(disk) as journal:
                with suppress(KeyError, NodeCancelled):
                    async with Commander(limits=around) as commander:
                        run = journal.run(Asks(backend, inside), run_id=RUN_ID)
                        task = asyncio.create_task(run)
                        await asyncio.wait([task], timeout=seconds)
                        if task.done():
                            gave = task.result()
                        elif how == "cancel":
                            task.cancel()
                        elif how == "exit":
                            commander.exit()
                        else:
                            raise KeyError
                await asyncio.wait([task])
                assert task.cancelled() or task.exception() or gave is not None
        assert own.spent == around.spent == inside.spent
        spent.append(around.spent)
        return gave

    for seconds in (5.5, 5.5, 5.5):
        assert run_seeded(lambda seconds=seconds: live(seconds)) is None
    assert 0 < spent[0] < spent[1] < spent[2]
    assert run_seeded(lambda: live(1000)) == spent[-1] == spent[2] + 100


class Elsewhere:
    """A place where bodies charge their usage, as a report from another machine does."""

    host = place = None

    def prepare(self, node: Node[Any]) -> Elsewhere:
        return self

    async def run(self, node: Node[Any]) -> None:
        charge("scripted", Usage(input_tokens=70), event=False)

    def below(self, depth: int) -> list[Any]:
        return []

    def explain(self) -> str:
        return ""


class Sends(Durable[float]):
    async def task(self) -> float:
        await self.put_job(Kept(["asks", 1], ScriptedBackend(otherwise=say)), on=Elsewhere())
        await act("between")
        used: Any = self.commander.usage(self)["scripted"]
        return used.total_tokens


def test_what_was_spent_at_another_place_counts_too() -> None:
    """Its replies are not in the journal; the row of the recorded job has the usage."""
    first = run_execution(Sends, limits=Limits)
    assert first.result == 70
    for rows in range(len(first.rows)):
        left = Kill(rows, frozenset(effects_in_doubt(first, rows))).of(first)
        execution = run_execution(Sends, left, limits=Limits)
        assert execution.result == 70
        kept = any(row.kind == "spent" for row in first.rows[:rows])
        assert execution.limits.spent == (70 if kept else 0)  # not counted by these limits


class Breaks(Durable[None]):
    backend: Live[ScriptedBackend] = later()

    async def task(self) -> None:
        await self.backend.complete(request("breaks 40"))


def test_what_a_failed_reply_took_is_paid_for_also_when_the_run_is_resumed() -> None:
    """A resume forgets the failure, but not its cost."""
    first = run_execution(lambda: Breaks(ScriptedBackend(otherwise=say)), limits=Limits)
    assert isinstance(first.error, BackendUnavailable)

    async def resume() -> None:
        async with journal_of(first.disk) as journal:
            await journal.resume(RUN_ID)

    run_seeded(resume)
    own = Limits()
    backend = ScriptedBackend("well", limits=own)
    execution = run_execution(lambda: Breaks(backend), first.disk, limits=Limits)
    assert execution.error is None
    assert execution.limits.spent == own.spent == known(execution) > first.limits.spent
