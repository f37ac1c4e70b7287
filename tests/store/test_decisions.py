"""D6, D11: random trees that fail, cancel and choose end alike in each execution of their run."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from support.killed_executions import kill_at_random, kill_everywhere
from support.memory_journal import act
from support.seeds import example_count, seeds

from anabranch.commander import AnabranchError, Node, NodeCancelled, QuorumNotMet, settle
from anabranch.commander import quorum as quorum_of
from anabranch.handlers import handler
from anabranch.store import Durable, DurableCalls

pytestmark = pytest.mark.contract("D6")

# A program has the steps of a node, one after the other, as JSON, so it can be an input of its run.
Step = list[Any]


class Branch(Durable[list[str]]):
    steps: list[Any]

    async def task(self) -> list[str]:
        return await follow(self, self.steps)


class Program(Durable[list[str]]):
    steps: list[Any]

    async def task(self) -> list[str]:
        try:
            return await self.put_job(Branch(self.steps), claim=True)
        except (ValueError, AnabranchError, ExceptionGroup) as error:
            return [shown(error)]


@handler
async def branch(node: Node[Any], steps: list[Step]) -> list[str]:
    return await follow(node, steps)


async def follow(node: Node[Any], steps: list[Step]) -> list[str]:
    """Follow the steps; return the outcomes that were seen."""
    nodes: dict[int, Node[Any]] = {}
    seen: list[str] = []

    async def see(number: int) -> str:
        return f"{number} gave {await nodes[number]}"

    async def gather(numbers: list[int], of: Any = see) -> str:
        try:
            return str(await asyncio.gather(*map(of, numbers)))
        finally:
            for number in numbers:
                nodes[number].cancel("gathered")

    async def gather_nodes(numbers: list[int]) -> str:
        return await gather(numbers, nodes.__getitem__)

    async def first(numbers: list[int]) -> str:
        tasks = [asyncio.ensure_future(see(number)) for number in numbers]
        for task in tasks:  # no waiter may be left to see their failures
            task.add_done_callback(lambda task: task.cancelled() or task.exception())
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for number in numbers:
            nodes[number].cancel("not the first")
        await asyncio.wait(tasks)
        return str(sorted(shown(task.exception()) or task.result() for task in done))

    async def all_of(numbers: list[int]) -> str:
        return str([
            shown(each) if isinstance(each, Exception) else each
            for each in await settle(*(nodes[number] for number in numbers))
        ])  # fmt: skip

    for what, *rest in steps:
        match what, *rest:
            case "nap", seconds:
                await DurableCalls(node).sleep(seconds)  # plain nodes do not have `durable`
            case "act", name:
                await act(name)
            case "fail", text:
                raise ValueError(text)
            case "put", number, below, options:
                nodes[number] = put(node, below, **options)
            case "cancel", number:
                nodes[number].cancel("not needed")
            case _, numbers, caught:
                how: Any = {"await": lambda n: see(n[0]), "gather": gather, "first": first}
                how["gather nodes"] = gather_nodes
                try:
                    seen.append(await how.get(what, all_of)(numbers))
                except (ValueError, NodeCancelled, ExceptionGroup) as error:
                    if not caught:
                        raise
                    seen.append(shown(error))
                    await act(f"caught {caught}", seen[-1])
    return seen


def put(
    node: Node[Any], steps: list[Step], *, durable: bool, policy: Any, claim: bool
) -> Node[Any]:
    policy = quorum_of(policy) if isinstance(policy, int) else policy
    if durable:
        return node.put_job(Branch(steps), policy=policy, claim=claim)
    return node.call_handler(branch(steps), policy=policy, claim=claim)


def shown(error: BaseException | None) -> str:
    """Return the text of an error without the numbers of nodes."""
    if isinstance(error, ExceptionGroup):
        return str(sorted(shown(each) for each in error.exceptions))
    if isinstance(error, QuorumNotMet):
        return f"QuorumNotMet {error.needed} {error.completed}"
    return "" if error is None else f"{type(error).__name__} {getattr(error, 'reason', error)}"


def draw(chance: random.Random, depth: int, counter: list[int]) -> list[Step]:
    """Draw a program; no two events are simultaneous, and no two nodes have one name."""

    def unique() -> int:
        counter[0] += 1
        return counter[0]

    def nap() -> Step:
        return ["nap", round(chance.uniform(0.1, 20), 1) + unique() / 1000]

    steps: list[Step] = [nap()]
    if depth:
        numbers = list(range(chance.randint(1, 3)))
        how = chance.choice(["await", "gather", "gather nodes", "first", "settle"])
        for number in numbers:
            options = {
                "durable": chance.random() < 0.5,
                "policy": chance.choice(["fail_fast", "fail_fast", "collect", "isolate", 1, 2]),
                "claim": True,
            }
            steps.append(["put", number, draw(chance, depth - 1, counter), options])
        if depth == 2 and chance.random() < 0.3:  # neither awaited nor in a quorum
            options = {**options, "durable": chance.random() < 0.5, "claim": False}
            steps.append(["put", len(numbers), draw(chance, depth - 1, counter), options])
        # A wait for the first must begin before two nodes have ended: a plain node that has ended
        # runs again, and would be cancelled then.
        durable = [step[1] for step in steps if step[0] == "put" and step[3]["durable"]]
        if how in ("await", "settle") and durable and chance.random() < 0.5:
            steps += [nap(), ["cancel", chance.choice(durable)]]
        for group in [[each] for each in numbers] if how == "await" else [numbers]:
            steps.append([how, group, chance.random() < 0.6 and unique()])
    if chance.random() < 0.6:
        steps.append(["act", f"act {unique()}"])
    if chance.random() < 0.3:
        steps += [nap(), ["fail", f"fault {unique()}"]]
    return steps


def program(seed: int) -> Program:
    return Program(draw(random.Random(seed), 2, [0]))


@pytest.mark.parametrize("seed", seeds(example_count(12, 1500)))
def test_every_life_ends_as_the_first(seed: int) -> None:
    """Nodes may fail, be caught, cancelled, or decided: after each kill the run ends the same."""
    kill_everywhere(lambda: program(seed), seeds=(None, seed))


@pytest.mark.parametrize("seed", seeds(example_count(12, 1500)))
def test_several_kills_change_nothing(seed: int) -> None:
    """Several kills, one after the other, change nothing either."""
    kill_at_random(lambda: program(seed + 1000), seed, kills=4)
