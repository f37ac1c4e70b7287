"""T1: the block of a commander is part of its tree."""

import asyncio
import gc
from weakref import WeakSet

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.nodes import Idle, Root, fail, give, hang, name_parent, wait_for
from support.waiting import settle_loop

from anabranch.commander import Commander, NodeCancelled, NodeClosed, parent_here
from anabranch.handlers import handler
from anabranch.jobs import Job
from anabranch.testing import SeededLoop

pytestmark = pytest.mark.contract("T1")


class NameParent(Job[str]):
    async def task(self):
        return self.parent.name_of_tree


# --- awaits in the block


async def test_what_is_awaited_in_the_block_is_a_child_of_the_commander():
    """Handlers and jobs count, in direct awaits, `gather` and tasks that the block starts."""
    async with asyncio.timeout(5), Root():
        seen = [await name_parent(), await NameParent()]
        seen += await asyncio.gather(name_parent(), NameParent())
        async with asyncio.TaskGroup() as group:
            task = group.create_task(_await(name_parent()))
        seen.append(task.result())
    assert len(seen) == 5
    assert {*seen} == {"root"}


async def _await(node):
    return await node


async def test_the_block_sees_and_explains_what_it_awaits():
    """The awaited node is in the commander's tree while it runs."""
    async with asyncio.timeout(5), Commander() as commander:
        release = asyncio.Event()
        waiting = asyncio.create_task(_await(wait_for(release)))
        await settle_loop()
        assert [child.path for child in commander.children] == ["Commander/wait_for#1"]
        assert "wait_for#1 is running" in commander.explain()
        release.set()
        await waiting


async def test_what_is_awaited_in_the_block_raises_there_and_nowhere_else():
    """The awaiter in the block receives the failure."""
    async with asyncio.timeout(5), Commander(policy="fail_fast"):
        with pytest.raises(ValueError, match="mine"):
            await fail(ValueError("mine"))


async def test_cancelling_the_commander_reaches_what_the_block_awaits():
    """The block sees `CancelledError`, as a body would. Code outside sees `NodeCancelled`."""
    node, running = None, asyncio.Event()
    async with asyncio.timeout(5):
        with pytest.raises(NodeCancelled):
            async with Commander() as commander:
                node = hang(running).at_start(lambda _: None)
                asyncio.get_running_loop().call_soon(commander.cancel, "enough")
                with pytest.raises(asyncio.CancelledError):
                    await node
                raise asyncio.CancelledError
    assert node.state == "cancelled"


async def test_awaiting_the_commander_in_its_own_block_is_an_error():
    """The block and the commander would wait for each other."""
    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(RuntimeError, match="itself"):
            await commander


async def test_awaiting_a_node_from_a_block_in_its_body_is_an_error():
    """The node and the block wait for each other, also if a node of the inner tree awaits."""

    @handler
    async def awaits(node, other):
        await other

    @handler
    async def body(node):
        async with Commander():
            with pytest.raises(RuntimeError, match="could ever end"):
                await node
            with pytest.raises(RuntimeError, match="could ever end"):
                await awaits(node)

    async with asyncio.timeout(5), Commander() as commander:
        await commander.run(body())


async def test_after_exit_the_block_starts_nothing():
    """The await is refused, as at the top of any tree that ends."""
    async with asyncio.timeout(5), Commander() as commander:
        commander.exit()
        with pytest.raises(NodeClosed):
            await give()


# --- inner blocks


async def test_a_block_in_a_job_gives_the_jobs_slot_to_others():
    """A wait in the block lends the slot, as a wait in the body does."""

    class Inner(Job[int]):
        async def task(self):
            async with Commander():
                return await wait_and_give(release, 1)

    class Other(Job[int]):
        async def task(self):
            release.set()
            return 2

    @handler
    async def wait_and_give(node, event, value):
        await event.wait()
        return value

    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        release = asyncio.Event()
        first, second = commander.put_job(Inner()), commander.put_job(Other())
        assert [await first, await second] == [1, 2]


async def test_a_block_in_a_job_may_put_the_next_round_of_a_tree_that_is_left():
    """The put succeeds as in a body. The round is cancelled, and the job does not fail."""

    class Round(Job[None]):
        async def task(self):
            async with Commander():
                left.set()
                await settle_loop()
                next_round = self.put_job(Idle(), parent=self.commander)
                with pytest.raises(NodeCancelled):
                    await next_round

    left = asyncio.Event()
    async with asyncio.timeout(5), Commander() as commander:
        job = commander.put_job(Round())
        await left.wait()
        assert await commander.drain()
        assert job.state == "completed"


async def test_drain_in_a_block_in_a_job_does_not_wait_for_the_job():
    """The job would otherwise wait for itself."""

    class Drains(Job[bool]):
        async def task(self):
            async with Commander():
                return await self.commander.drain()

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(Drains())


async def test_a_cancelled_job_sees_cancelled_error_alone_in_its_block():
    """The block does not see the NodeCancelled of the nodes that it awaited."""
    seen = []

    @handler
    async def body(node):
        async with Commander() as inner:
            child = inner.call_handler(hang(running))
            try:
                await child
            finally:
                child.cancel()
                try:
                    await child
                except BaseException as error:
                    seen.append(type(error))

    async with asyncio.timeout(5), Commander() as commander:
        running = asyncio.Event()
        node = commander.call_handler(body())
        await running.wait()
        node.cancel()
    assert seen == [asyncio.CancelledError]


# --- blocks left in any order


@given(
    steps=st.lists(st.tuples(st.sampled_from(["enter", "leave"]), st.integers(0, 2)), max_size=12),
    seed=st.integers(0, 9),
)
def test_the_innermost_block_that_is_open_counts_in_whatever_order_blocks_end(steps, seed):
    """Three tasks enter and leave blocks in separate contexts, in any order."""

    async def actor(orders):
        while (order := await orders.get()) is not None:
            call, answer = order
            answer.set_result(await call())

    async def main():
        queues = [asyncio.Queue() for _ in range(3)]
        tasks = [asyncio.create_task(actor(queue)) for queue in queues]
        entered = [[], [], []]  # for each task, in order
        open_ones = []

        async def ask(who, call):
            answer = asyncio.get_running_loop().create_future()
            queues[who].put_nowait((call, answer))
            return await answer

        async def look():
            return parent_here()

        for step, who in steps:
            if step == "enter":
                commander = Commander(slow_after=None)
                await ask(who, commander.__aenter__)
                entered[who].append(commander)
                open_ones.append(commander)
            elif open_ones:
                commander = open_ones.pop(len(steps) % len(open_ones))
                await ask(who, lambda: commander.__aexit__(None, None, None))  # noqa: B023
            for each, mine in enumerate(entered):
                live = [commander for commander in mine if commander in open_ones]
                assert await ask(each, look) is (live[-1] if live else None)
        for commander in open_ones:
            await commander.__aexit__(None, None, None)
        for queue in queues:
            queue.put_nowait(None)
        await asyncio.gather(*tasks)

    with asyncio.Runner(loop_factory=lambda: SeededLoop(seed)) as runner:
        runner.run(main())


async def test_a_long_row_of_blocks_keeps_none_of_them():
    """Each block is entered in one context and left in another. None stays in memory."""
    kept = WeakSet()
    async with asyncio.timeout(5):
        for _ in range(50):
            commander = Commander(slow_after=None)
            await commander.__aenter__()
            kept.add(commander)
            await asyncio.create_task(commander.__aexit__(None, None, None))
    gc.collect()
    assert len(kept) == 1  # the context variable still refers to the last one
