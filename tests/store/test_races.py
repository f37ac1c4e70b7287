"""D6: the first of several concurrent nodes is the same in each execution."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from support.killed_executions import Execution, Kill, effects_in_doubt, run_execution
from support.memory_journal import act, current_disk
from support.seeds import example_count, seeds
from support.waiting import run_turns as wait_turns

from anabranch import Node, NodeCancelled, Retry, tool
from anabranch.store import Done, Durable, Journal, NotDone, effect_key

pytestmark = pytest.mark.contract("D6")


async def find(n: int, turns: int, fails: bool, *, effect_key: str) -> Done | NotDone:
    done = current_disk().done
    return Done(done[effect_key]) if effect_key in done else NotDone()


async def take(n: int, turns: int, fails: bool, *, again: bool = False) -> str:
    await wait_turns(turns)
    if fails:
        raise ValueError(f"{n} fails")
    return current_disk().do(effect_key(), f"{n}", again=again)


@tool(reconcile=find, reconcile_after=0)
async def bare(n: int, turns: int, fails: bool) -> str:
    return await take(n, turns, fails)


@tool(reconcile=find, reconcile_after=0, timeout=60)
async def limited(n: int, turns: int, fails: bool) -> str:
    return await take(n, turns, fails)


@tool(effect="keyed", retry=Retry(attempts=2, backoff=0))
async def stubborn(n: int, turns: int, fails: bool) -> str:
    return await take(n, turns, fails, again=True)


@tool(approve=True, reconcile=find, reconcile_after=0)
async def asked(n: int, turns: int, fails: bool) -> str:
    return await take(n, turns, fails)


async def step(n: int, turns: int, fails: bool) -> str:
    await wait_turns(turns)
    if fails:
        raise ValueError(f"{n} fails")
    return f"{n}"


TOOLS = {each.name: each for each in (bare, limited, stubborn, asked)}


class Part(Durable[str]):
    n: int
    turns: int
    fails: bool

    async def task(self) -> str:
        return await step(self.n, self.turns, self.fails)


class Race(Durable[list[str]]):
    """Puts all, and acts on each as it ends, the first one first; the last may be cancelled."""

    runners: list[tuple[str, int, bool]]
    cuts: bool

    async def task(self) -> list[str]:
        ends: asyncio.Queue[tuple[int, str]] = asyncio.Queue()
        nodes: dict[int, Node[Any]] = {}
        for n, (kind, turns, fails) in enumerate(self.runners):
            if kind == "step":
                nodes[n] = self.durable.step(step, n, turns, fails)
            elif kind == "job":
                nodes[n] = self.put_job(Part(n, turns, fails), claim=True)
            else:
                nodes[n] = self.durable.call(TOOLS[kind], n, turns, fails)
        tasks = [asyncio.ensure_future(see(n, node, ends)) for n, node in nodes.items()]
        seen: list[str] = []
        for left in reversed(range(len(tasks))):
            n, text = await ends.get()
            del nodes[n]
            seen.append(await act(f"after {left}", text))
            if self.cuts and left == 1:
                [last] = nodes.values()
                last.cancel("the others were first")
        return seen


async def see(n: int, node: Node[Any], ends: asyncio.Queue[tuple[int, str]]) -> None:
    try:
        text = f"{n} gave {await node}"
    except (ValueError, NodeCancelled) as error:
        text = f"{n}: {type(error).__name__}"
    ends.put_nowait((n, text))


async def approve_all(journal: Journal) -> None:
    """Approve, in another order than that of the questions."""
    while True:
        for approval in (await journal.approvals())[::-1]:
            turns = approval.arguments["turns"]
            changed = {**approval.arguments, "turns": turns // 2} if turns % 2 else None
            await approval.approve(changed)
        await asyncio.sleep(0.1)


def draw(seed: int) -> Race:
    chance = random.Random(seed)
    kinds = chance.choice([[*TOOLS], ["bare"], ["bare", "job"], [*TOOLS, "step", "job"]])
    turns = chance.sample(range(1, 60), chance.randint(2, 4))
    runners = [(chance.choice(kinds), each, chance.random() < 0.2) for each in turns]
    return Race(runners, chance.random() < 0.5)


def acts(execution: Execution, rows: int) -> int:
    """Return how often an execution had acted, by that row, because a node was the first."""
    intents = [row for row in execution.rows[:rows] if row.kind == "intent"]
    return len({row.ident for row in intents if b'"after ' in row.value})


@pytest.mark.parametrize("seed", seeds(example_count(12, 1000)))
def test_calls_steps_and_jobs_end_in_the_order_in_which_they_first_ended(seed: int) -> None:
    """Each execution acts because of the same first node."""
    chance = random.Random(seed)
    first = run_execution(lambda: draw(seed), beside=approve_all)
    for kill in range(len(first.rows) + 1):
        before, rows = first, kill
        while rows <= len(before.rows):
            done = frozenset(key for key in effects_in_doubt(before, rows) if chance.random() < 0.5)
            left = Kill(rows, done).of(before)
            execution = run_execution(lambda: draw(seed), left, beside=approve_all)
            assert execution.error is None, f"killed after row {kill}, then {rows}"
            known = acts(before, rows)
            assert execution.result[:known] == before.result[:known], (
                f"killed after row {kill}, {rows}"
            )
            before, rows = execution, rows + chance.randint(1, 12)
