"""T4: repeated awaits do not change a failure."""

import asyncio
import traceback

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.nodes import drop, fail

from anabranch.commander import Commander
from anabranch.handlers import handler

pytestmark = pytest.mark.contract("T4")

MANY = 300


@handler
async def broken(node):
    def deep():
        raise ValueError("deep")

    deep()


def lines(error):
    return [frame.name for frame in traceback.extract_tb(error.__traceback__)]


async def awaited(node):
    try:
        await node
    except Exception as error:
        return error
    raise AssertionError("it did not fail")


async def test_a_failure_awaited_again_and_again_keeps_its_first_traceback():
    """The traceback has the lines of the body and of the last await, not of earlier awaits."""
    async with asyncio.timeout(20), Commander() as commander:
        node = commander.call_handler(broken())
        first = lines(await awaited(node))
        assert first[-2:] == ["broken", "deep"]
        for _ in range(MANY):
            error = await awaited(node)
        assert lines(error) == first


async def test_many_who_await_a_failure_at_once_see_one_traceback_each():
    """Nodes, tasks and `gather` are awaiters. A node that fails with it adds its own lines."""

    @handler
    async def outer(node, of):
        await of

    async with asyncio.timeout(20), Commander() as commander:
        node = broken()
        nodes = [commander.call_handler(outer(node)) for _ in range(MANY)]
        commander.call_handler(node)
        await asyncio.gather(*(awaited(each) for each in nodes), *(awaited(node) for _ in "abc"))
        assert len(lines(await awaited(node))) < 10
        for each in nodes:
            names = lines(await awaited(each))
            assert names[-2:] == ["broken", "deep"]
            assert names.count("outer") == 1
            assert len(names) < 20


async def test_a_failure_that_comes_up_a_chain_shows_each_level_once():
    """Repeated awaits of the levels in any order add no lines."""

    @handler
    async def level(node, depth, nodes):
        nodes.append(node)
        await (level(depth - 1, nodes) if depth else broken())

    async with asyncio.timeout(20), Commander() as commander:
        nodes = []
        await awaited(commander.call_handler(level(5, nodes)))
        for _ in range(20):
            for depth, node in enumerate(nodes):
                names = lines(await awaited(node))
                assert names.count("level") == 6 - depth
                assert names[-1] == "deep"


async def test_a_group_and_a_failure_with_a_cause_do_not_grow_either():
    """Members and causes are not changed. Unraised failures get no lines."""
    async with asyncio.timeout(20), Commander() as commander:

        @handler
        async def wraps(node):
            try:
                await broken()
            except ValueError as error:
                raise KeyError("outer") from error

        @handler
        async def collects(node):
            node.call_handler(broken())
            node.call_handler(broken())

        groups = commander.call_handler(collects(), policy="collect")
        wrapped = commander.call_handler(wraps())
        for node in (groups, wrapped):
            first = traceback.format_exception(await awaited(node))
            for _ in range(MANY):
                error = await awaited(node)
            assert traceback.format_exception(error) == first


class Stubborn(Exception):
    """An exception that refuses access to its traceback."""

    def __getattribute__(self, name):
        if name in ("__traceback__", "with_traceback"):
            raise RuntimeError(name)
        return super().__getattribute__(name)


class Slotted(Exception):
    __slots__ = ("with_traceback",)


@pytest.mark.parametrize("kind", [Stubborn, Slotted, asyncio.TimeoutError, StopAsyncIteration])
async def test_an_odd_exception_is_raised_as_it_is(kind):
    """Awaiting raises the same object, whatever its class does with tracebacks."""
    error = kind()
    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(fail(error))
        for _ in range(3):
            with pytest.raises(kind) as caught:
                await node
            assert caught.value is error


@given(st.lists(st.sampled_from(["await", "drop", "gather", "shield", "wait_for"]), max_size=30))
def test_no_way_of_awaiting_lets_a_traceback_grow(ways):
    """After any sequence of awaits, the next one sees the traceback of the first."""

    async def main():
        async with Commander() as commander:
            node = commander.call_handler(broken())
            first = lines(await awaited(node))
            for way in ways:
                if way == "drop":
                    await commander.run(drop(node))
                elif way == "gather":
                    await asyncio.gather(node, give_up(node), return_exceptions=True)
                else:
                    wrap = {"shield": asyncio.shield, "wait_for": lambda n: asyncio.wait_for(n, 5)}
                    await awaited(wrap.get(way, lambda n: n)(node))
            assert lines(await awaited(node)) == first

    async def give_up(node):
        await give_up_again(node)

    async def give_up_again(node):
        try:
            await node
        finally:
            await asyncio.sleep(0)

    asyncio.run(main())
