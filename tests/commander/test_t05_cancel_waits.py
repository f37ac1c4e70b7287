"""T5: awaiters of a cancelled node, and waits and runs that are cancelled."""

import asyncio

import pytest
from support.nodes import SlowCleanup, give, hang
from support.waiting import settle_loop

from anabranch.commander import Commander, NodeCancelled
from anabranch.handlers import handler
from anabranch.jobs import Job

pytestmark = pytest.mark.contract("T5")


async def test_whoever_awaits_a_cancelled_node_gets_node_cancelled():
    """It is an `Exception` with path and reason, during and after the node's end."""
    async with asyncio.timeout(5), Commander() as commander:
        running = asyncio.Event()
        node = commander.call_handler(hang(running))
        waiter = asyncio.ensure_future(node)
        await running.wait()
        node.cancel("no longer wanted")
        for awaitable in (waiter, node):
            with pytest.raises(NodeCancelled) as caught:
                await awaitable
            assert isinstance(caught.value, Exception)
            assert (caught.value.path, caught.value.reason) == (node.path, "no longer wanted")
            assert "no longer wanted" in str(caught.value)


async def test_a_parent_that_lets_node_cancelled_escape_has_failed():
    """Its at_exception runs, and its own parent sees a failure."""

    @handler
    async def parent(node, running):
        child = node.call_handler(hang(running))
        node.call_handler(canceller(child, running))
        await child

    @handler
    async def canceller(node, other, running):
        await running.wait()
        other.cancel("from aside")

    async with asyncio.timeout(5), Commander() as commander:
        node = parent(asyncio.Event())
        with pytest.raises(NodeCancelled, match="from aside"):
            await commander.run(node)
        assert node.state == "failed"


async def test_a_cancelled_child_that_nobody_awaits_does_not_fail_its_parent(caplog):
    """This holds under any policy, and the cancellation is not logged."""

    @handler
    async def parent(node):
        node.call_handler(give()).cancel()
        return "unharmed"

    async with asyncio.timeout(5), Commander() as commander:
        for policy in ("fail_fast", "collect", "isolate"):
            assert await commander.run(parent(), policy=policy) == "unharmed"
    assert caplog.records == []


async def test_cancelling_an_await_never_cancels_the_node():
    """After task.cancel, wait_for, asyncio.timeout or gather the node runs to its end."""
    release = asyncio.Event()

    @handler
    async def work(node):
        await release.wait()
        return "done"

    async def wait_for(node):
        return await node

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(work())
        waiter = asyncio.create_task(wait_for(node))
        await settle_loop()
        waiter.cancel()
        await asyncio.wait([waiter])
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(node, 0)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0):
                await node
        group = asyncio.gather(node)
        await settle_loop()
        group.cancel()
        await asyncio.wait([group])
        assert node.state == "running"
        release.set()
        assert await node == "done"


# --- run


async def test_cancelling_run_cancels_its_job_waits_for_it_and_raises_again():
    """Other nodes are not cancelled."""
    careful = SlowCleanup()

    class Hangs(Job[None]):
        async def task(self):
            await careful.hang()

    async with asyncio.timeout(5), Commander() as commander:
        other, job = commander.call_handler(hang()), Hangs()
        run = asyncio.create_task(commander.run(job))
        await careful.running.wait()
        run.cancel()
        await careful.cleaning.wait()
        await settle_loop()
        assert not run.done()
        run.cancel()
        await settle_loop()
        assert not run.done()
        careful.release.set()
        with pytest.raises(asyncio.CancelledError):
            await run
        assert (job.state, other.state) == ("cancelled", "running")
        other.cancel()


async def test_run_raises_node_cancelled_if_the_job_was_cancelled_otherwise():
    """`run` itself was not cancelled."""
    async with asyncio.timeout(5), Commander() as commander:
        running = asyncio.Event()
        node = hang(running)
        run = asyncio.create_task(commander.run(node))
        await running.wait()
        node.cancel("other cause")
        with pytest.raises(NodeCancelled, match="other cause"):
            await run
