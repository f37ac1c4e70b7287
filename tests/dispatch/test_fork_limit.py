"""F5: how far a source may run ahead. No way of waiting causes a deadlock."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import anyio
import pytest
from support.clock import virtual_time
from support.fork import BodyNode, run_body
from support.seeds import example_count, seeds
from support.waiting import run_turns

from anabranch.commander import Commander, Node
from anabranch.dispatch import Reply, fork
from anabranch.handlers import handler
from anabranch.messages import Delta, Message, ToolCallDelta

pytestmark = pytest.mark.contract("F5")

LIMIT = 1_000

Way = Callable[[Node[Any], Reply], Awaitable[object]]


async def long(*, waits: bool) -> AsyncIterator[Delta]:
    """Yield text of thirty times the limit."""
    for _ in range(300):
        if waits:
            await asyncio.sleep(0)
        yield Delta("x" * (LIMIT // 10), "y")
    yield Delta(done=True)


async def whole(reply: Reply) -> Message:
    return await reply.message


async def by_wait_for(_: Node[Any], reply: Reply) -> None:
    await asyncio.wait_for(whole(reply), 60)


async def by_gather_and_shield(_: Node[Any], reply: Reply) -> None:
    await asyncio.gather(asyncio.shield(whole(reply)))


async def by_task_group(_: Node[Any], reply: Reply) -> None:
    async with asyncio.TaskGroup() as group:
        group.create_task(whole(reply))


async def by_anyio(_: Node[Any], reply: Reply) -> None:
    async with anyio.create_task_group() as group:
        group.start_soon(whole, reply)


async def by_as_completed(_: Node[Any], reply: Reply) -> None:
    for each in asyncio.as_completed([whole(reply), anext(reply.reasoning)]):
        await each


async def by_an_async_generator(_: Node[Any], reply: Reply) -> None:
    async def items() -> AsyncIterator[Message]:
        yield await reply.message

    async for _item in items():
        pass


async def by_a_commander_inside(_: Node[Any], reply: Reply) -> None:
    async with Commander() as commander:
        commander.call_handler(asks(reply))


async def by_a_node_in_a_task(node: Node[Any], reply: Reply) -> None:
    await asyncio.wait([asyncio.create_task(joined(node.call_handler(asks(reply))))])


async def unseen(_: Node[Any], reply: Reply) -> None:
    event = asyncio.Event()

    async def sets() -> None:
        await reply.message
        event.set()

    task = asyncio.create_task(sets())
    await event.wait()
    await task


async def joined(node: Node[Any]) -> None:
    await node


@handler
async def asks(_: Node[Any], reply: Reply) -> None:
    await reply.message


@pytest.mark.parametrize("waits", [False, True], ids=["never waits", "waits"])
@pytest.mark.parametrize(
    "way",
    [unseen] + [value for name, value in list(globals().items()) if name.startswith("by_")],
)
@virtual_time
async def test_no_way_of_waiting_for_the_message_gets_stuck(way: Way, waits: bool) -> None:
    """After one piece of text, with far more than the limit still to come."""

    async def body(node: Node[Any]) -> None:
        reply = fork(node, long(waits=waits), limit=LIMIT)
        await anext(reply.text)
        started = asyncio.get_running_loop().time()
        await way(node, reply)
        if way is not unseen:
            assert asyncio.get_running_loop().time() - started < 1

    await run_for_long(body)


async def run_for_long(body: Callable[[Node[Any]], Any]) -> None:
    async with asyncio.timeout(100), Commander(slow_after=None) as commander:
        await commander.run(BodyNode(body))


@virtual_time
async def test_a_reader_that_sleeps_holds_the_source_back_for_as_long() -> None:
    """A sleep ends without the rest of the reply, so the fork does not lift the limit."""
    given = 0

    async def source() -> AsyncIterator[Delta]:
        nonlocal given
        for _ in range(100):
            await asyncio.sleep(0)
            given += 1
            yield Delta("x" * 100)
        yield Delta(done=True)

    async def body(node: Node[Any]) -> None:
        reply = fork(node, source(), limit=LIMIT)
        await anext(reply.text)
        await asyncio.sleep(60)
        assert given <= 13
        assert len((await reply.message).content or "") == 10_000

    await run_for_long(body)


@pytest.mark.parametrize("seed", seeds(example_count(8, 80)))
async def test_a_source_that_never_waits_passes_the_limit_by_a_bounded_amount(seed: int) -> None:
    """For every size of delta, in text and in calls, and however slow the reader is."""
    chance = random.Random(seed)
    size, limit = chance.choice([10, 300, 5_000, 40_000]), chance.choice([1_000, 65_536])
    in_calls = chance.random() < 0.5
    slow = chance.randint(0, 5)
    given = read = 0

    async def source() -> AsyncIterator[Delta]:
        nonlocal given
        for _ in range(20 * limit // size + 20):
            piece = "x" * chance.randint(size // 2, size)
            given += len(piece)
            yield Delta(
                tool_calls=[ToolCallDelta(0, "a", "f", piece)] if in_calls else (),
                text="" if in_calls else piece,
            )
        yield Delta(done=True)

    async def body(node: Node[Any]) -> None:
        nonlocal read
        reply = fork(node, source(), limit=limit)
        branch: Any = reply.tool_call_deltas if in_calls else reply.text
        async for item in branch:
            read += len(item.arguments if in_calls else item)
            await run_turns(slow)
            assert given - read <= 4 * limit + 5 * size

    await run_body(body)
