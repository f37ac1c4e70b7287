"""Usage in nested commanders, threads and processes is recorded once for each tree."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from support.waiting import wait_until

from anabranch import Agent, Commander, Job, Message, Node, handler
from anabranch.commander import charge
from anabranch.messages import Request, Usage
from anabranch.store import Durable, Journal
from anabranch.testing import ScriptedBackend
from anabranch.tracing import Trace, read, record

pytestmark = pytest.mark.contract("S1")

HELLO = Request([Message(role="user", content="Say hello.")])
ONCE = Usage(input_tokens=4, output_tokens=1)


def backend() -> ScriptedBackend:
    return ScriptedBackend(otherwise=Message(role="assistant", content="Hello", usage=ONCE))


def spent(times: int) -> dict[str, Usage]:
    return {"scripted": sum((ONCE for _ in range(times)), Usage())} if times else {}


def require_sums(trace: Trace, commander: Commander, times: int) -> None:
    """Require that the usage of the nodes equals that of the tree."""
    assert trace.usage() == commander.usage() == spent(times)
    assert trace.missed == 0


@handler
async def ask(node: Node[Any]) -> None:
    async for _ in backend().stream(HELLO):
        pass


@handler
async def nest(node: Node[Any], path: Path, depth: int) -> None:
    """Send a request here, and in a nested commander, which is recorded too."""
    await node.call_handler(ask())
    if not depth:
        return
    async with Commander() as inner, record(inner, path / f"{depth}") as recorder:
        await inner.run(nest(path, depth - 1))
        await inner.run(ask())
    require_sums(recorder.trace(), inner, 2 * depth)
    assert recorder.trace().root.usage == {}


@pytest.mark.parametrize("depth", [1, 3])
async def test_usage_of_a_nested_commander_belongs_to_the_node_around_it(
    depth: int, tmp_path: Path
) -> None:
    """Each recording has its own nodes; the node around a nested commander has the rest."""
    async with Commander() as outer, record(outer, tmp_path / "outer") as recorder:
        await outer.run(nest(tmp_path, depth))
    trace = recorder.trace()
    require_sums(trace, outer, 1 + 2 * depth)
    used = {node.name: node.usage for node in trace if node.usage}
    assert used == {"nest": spent(2 * depth), "ask": spent(1)}


class Threads(Job[None]):
    """Spends in threads that work for it, in each possible way."""

    async def task(self) -> None:
        await self.in_thread(charge, "scripted", ONCE)
        await self.in_thread(self.ask_sync)
        await self.in_thread(self.run_there)

    def ask_sync(self) -> None:
        assert [*backend().stream_sync(HELLO)]

    def run_there(self) -> None:
        asyncio.run(self.below())

    async def below(self) -> None:
        async with Commander() as there:
            await asyncio.gather(there.run(ask()), there.run(ask()))


async def test_usage_in_threads_belongs_to_their_node(tmp_path: Path) -> None:
    """Also by a commander on another loop; requests have events with their ends."""
    async with Commander() as outer, record(outer, tmp_path / "run") as recorder:
        await asyncio.gather(*[outer.run(Threads()) for _ in range(5)])
    trace = recorder.trace()
    require_sums(trace, outer, 20)
    for node in trace:
        if node.name == "Threads":
            assert [child.usage for child in node.children] == [spent(1), spent(1), spent(2)]
        for request in node.requests:
            assert request.end is not None
            assert request.finish_reason == "stop"
    assert trace.root.usage == {}


class Asks(Durable[str]):
    async def task(self) -> str:
        writer = Agent(backend(), name="writer")
        said = f"{await writer('Write.')} {await self.put_job(Part())}"
        await wait_until(lambda: goes_on)
        return said


class Part(Durable[str]):
    async def task(self) -> str:
        helper = Agent(backend(), name="helper")
        return str(await helper("Help."))


goes_on = False


@handler
async def drive(node: Node[Any], path: Path) -> str:
    async with (
        Journal(str(path / "runs.db")) as journal,
        Commander() as inner,
        record(inner, path / "inner", append=True),
    ):
        return await journal.run(Asks(), run_id="run")


async def test_replayed_usage_counts_once_in_each_tree(tmp_path: Path) -> None:
    """And in the run's tree at the agents that had spent it."""
    global goes_on
    for goes_on in (False, True):
        async with Commander() as outer, record(outer, tmp_path / f"{goes_on}") as recorder:
            node = outer.call_handler(drive(tmp_path), claim=True)
            if goes_on:
                await node
            else:
                await wait_until(lambda outer=outer: outer.usage() == spent(2))
                await wait_until(lambda: "Part" not in str(outer))
                node.cancel()
        require_sums(recorder.trace(), outer, 2)
    both = read(tmp_path / "inner")
    assert len(both.executions) == 2
    assert both.usage() == both.executions[-1].usage == spent(2)
    assert both.usage_by_agent() == {"writer": spent(1), "helper": spent(1)}
    [part] = [node for node in both if node.name == "Part"]
    assert part.recorded
    assert part.intervals
    assert both.usage(part) == spent(1)
    assert part.usage == {}
