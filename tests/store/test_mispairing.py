"""D5: nodes find their own results, also with equal inputs and in any order of both executions.

All answers differ and identify themselves. After a kill at any row each branch gets its recorded
answers again, and requests the others.
"""

from __future__ import annotations

import itertools
import random
import re
from typing import Any

import pytest
from support.killed_executions import disk_after, execute_in_loop
from support.seeds import SEED, example_count

from anabranch import Node, handler
from anabranch.messages import Message, Request
from anabranch.store import Durable, DurableCalls, Live
from anabranch.store import live as later
from anabranch.testing import ScriptedBackend, explore, pause

pytestmark = pytest.mark.contract("D5")


class World:
    """Gives each caller another number."""

    def __init__(self) -> None:
        self._numbers = itertools.count(100)
        self.backend = ScriptedBackend(otherwise=lambda _: f"answer {next(self._numbers)}")

    async def load(self, what: str) -> int:
        await pause()
        return next(self._numbers)


@handler
async def steps(node: Node[Any], world: World) -> list[int]:
    """Call the same step twice, one after the other."""
    return [await DurableCalls(node).step(world.load, "same") for _ in range(2)]


@handler
async def steps_at_once(node: Node[Any], world: World) -> list[int]:
    put = []
    for _ in range(2):
        put.append(DurableCalls(node).step(world.load, "same"))
        await pause()
    return [await each for each in put]


@handler
async def prompts(node: Node[Any], world: World) -> list[int]:
    """Make the same request twice."""
    found = []
    for _ in range(2):
        await pause()
        asked = Request([Message(role="user", content="Go on.")])
        reply = await world.backend.complete(asked)
        found.append(int(str(reply.content).split()[1]))
    return found


@handler
async def nested(node: Node[Any], world: World) -> list[int]:
    """Put handlers that differ only in their calls."""
    below = [node.call_handler(each(world)) for each in (steps, prompts, steps)]
    return [number for each in below for number in await each]


class Kept(Durable[list[int]]):
    """The same in a durable job, with equal inputs."""

    world: Live[World] = later()

    async def task(self) -> list[int]:
        return [await self.durable.step(self.world.load, "same") for _ in range(2)]


@handler
async def kept(node: Node[Any], world: World) -> list[int]:
    below = [node.put_job(Kept()) for _ in range(2)]
    await pause()
    return [number for each in below for number in await each]


@handler
async def keyed(node: Node[Any], world: World) -> list[int]:
    """Put equal jobs in an order that differs between executions: their keys identify them."""
    put = {}
    for key in random.sample("abc", 3):
        put[key] = DurableCalls(node).step(world.load, "same", key=key)
        await pause()
    return [await put[key] for key in "abc"]


BRANCHES: dict[str, Any] = {
    "steps": steps,
    "steps at once": steps_at_once,
    "prompts": prompts,
    "nested": nested,
    "durable": kept,
    "keys": keyed,
}


class Branches(Durable[list[list[int]]]):
    what: str
    world: Live[World] = later()

    async def task(self) -> list[list[int]]:
        put = [self.call_handler(BRANCHES[self.what](self.world)) for _ in range(2)]
        return [await each for each in put]


@pytest.mark.parametrize("what", BRANCHES)
def test_each_branch_gets_back_what_it_had_got(what: str) -> None:
    """Two plain concurrent branches that do the same, in each order."""
    met = set()

    async def main() -> None:
        world = World()
        first = await execute_in_loop(Branches(what, world), bring={"world": world})
        rows = random.randint(0, len(first.rows))
        known = set()
        for row in first.rows[:rows]:
            if row.kind in ("result", "reply"):
                known |= {int(each) for each in re.findall(rb"\b1\d\d\b", row.value)}
        again = await execute_in_loop(
            Branches(what, world), disk_after(first, rows), bring={"world": world}
        )
        for before, now in zip(first.result, again.result, strict=True):
            for had, has in zip(before, now, strict=True):
                assert (had == has) == (had in known), f"{before}, then {now}; known {known}"
        met.add(str(first.result))
        assert len({each for branch in again.result for each in branch}) == sum(
            map(len, again.result)
        )

    explore(main, seeds=range(SEED, SEED + example_count(80, 3000)))
    assert len(met) > 1  # the orders differed
