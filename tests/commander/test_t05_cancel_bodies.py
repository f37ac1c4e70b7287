"""T5: the cancellation that a body sees, and the awaits that it may still make."""

import asyncio

import pytest
from support.nodes import SlowCleanup, cancel_running, give, hang
from support.waiting import settle_loop

from anabranch.commander import Commander, NodeCancelled
from anabranch.handlers import handler
from anabranch.testing import explore

pytestmark = pytest.mark.contract("T5")


async def test_a_body_being_cancelled_sees_cancelled_error_alone():
    """The body may await one cancelled child, several, or one whose clean-up raises."""
    seen = []

    @handler
    async def child(node, running, noisy):
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            if noisy:
                await asyncio.sleep(0)

    async def watched(awaitable):
        try:
            await awaitable
        except BaseException as error:
            seen.append(type(error))
            raise

    @handler
    async def one(node, running):
        await watched(child(running, False))

    @handler
    async def noisy(node, running):
        await watched(child(running, True))

    @handler
    async def several(node, running):
        await watched(asyncio.gather(child(asyncio.Event(), False), child(running, False)))

    async with asyncio.timeout(5), Commander() as commander:
        for kind in (one, noisy, several):
            running = asyncio.Event()
            top = commander.call_handler(kind(running))
            await cancel_running(top, running)
    assert seen == [asyncio.CancelledError] * 3


async def test_a_clean_up_that_awaits_a_cancelled_child_sees_cancelled_error():
    """Other awaiters would receive NodeCancelled."""
    seen = []

    @handler
    async def parent(node, running):
        child = node.call_handler(hang(running))
        try:
            await child
        except asyncio.CancelledError:
            try:
                await child
            except BaseException as error:
                seen.append(type(error))
            raise

    async with asyncio.timeout(5), Commander() as commander:
        running = asyncio.Event()
        top = commander.call_handler(parent(running))
        await running.wait()
        top.cancel()
    assert seen == [asyncio.CancelledError]


@pytest.mark.parametrize("then", ["returns", "raises", "returns a node"])
async def test_the_node_ends_cancelled_whatever_its_body_then_does(then, caplog):
    """The body may swallow the cancellation and return, or raise another error."""

    @handler
    async def stubborn(node, running):
        running.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            if then == "raises":
                raise ValueError from None
            return give(1) if then == "returns a node" else "swallowed"

    async with asyncio.timeout(5), Commander() as commander:
        running = asyncio.Event()
        node = commander.call_handler(stubborn(running))
        await cancel_running(node, running)
        assert (node.state, node.result) == ("cancelled", None)
    assert len(caplog.records) == (then == "raises")


async def test_a_clean_up_may_await_as_long_as_it_needs():
    """One cancel raises one CancelledError. A second does not interrupt the clean-up."""
    careful = SlowCleanup()

    @handler
    async def hangs(node):
        await careful.hang()

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(hangs())
        await careful.running.wait()
        node.cancel()
        await careful.cleaning.wait()
        node.cancel()
        await settle_loop()
        careful.release.set()
    assert careful.cleaned


async def test_a_node_may_cancel_itself():
    """The next await of its body raises. A body without further awaits ends cancelled too."""

    @handler
    async def at_once(node):
        node.cancel("myself")
        return 1

    @handler
    async def at_await(node):
        node.cancel("myself")
        await asyncio.sleep(0)
        raise AssertionError

    async with asyncio.timeout(5), Commander() as commander:
        for kind in (at_once, at_await):
            with pytest.raises(NodeCancelled, match="myself"):
                await commander.run(kind())


async def test_a_body_that_raises_cancelled_error_by_itself_is_cancelled():
    """A cancel of the body's task by unrelated code has the same effect."""
    tasks = []

    @handler
    async def raises(node):
        raise asyncio.CancelledError

    @handler
    async def told(node):
        tasks.append(asyncio.current_task())
        tasks[0].cancel()
        await asyncio.sleep(0)

    async with asyncio.timeout(5), Commander() as commander:
        for kind in (raises, told):
            node = kind()
            with pytest.raises(NodeCancelled):
                await commander.run(node)
            assert node.state == "cancelled"


def test_what_reads_after_the_children_reads_at_the_end():
    """The body may stop awaiting before the child has cleaned up. `at_done` runs after it."""

    async def main():
        left, found = [], []

        @handler
        async def child(node):
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(1)
                left.append("clean")

        @handler
        async def parent(node):
            try:
                await child()
            finally:
                found.append(list(left))

        async with Commander() as commander:
            node = commander.call_handler(parent())
            node.at_done(lambda _: found.append(list(left)))
            await asyncio.sleep(1)
            node.cancel()
        return found

    assert explore(main, range(50)) == [[[], ["clean"]]] * 50
