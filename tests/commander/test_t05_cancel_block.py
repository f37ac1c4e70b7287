"""T5: a block that is cancelled or left by an exception."""

import asyncio

import pytest
from support.nodes import SlowCleanup, fail, hang
from support.waiting import settle_loop, turn_until

from anabranch.commander import Commander, NodeCancelled
from anabranch.handlers import handler

pytestmark = pytest.mark.contract("T5")


@pytest.mark.parametrize("error", [ValueError("left"), KeyboardInterrupt(), SystemExit(3)])
async def test_an_exception_that_leaves_the_block_cancels_waits_and_goes_on_unwrapped(error):
    """The block raises the same object after the tree's last clean-up."""
    ended, running = [], asyncio.Event()

    @handler
    async def careful(node):
        try:
            running.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended.append(node.state)

    async with asyncio.timeout(5):
        with pytest.raises(type(error)) as caught:
            async with Commander() as commander:
                node = commander.call_handler(careful())
                await running.wait()
                raise error
    assert caught.value is error
    assert node.state == "cancelled"
    assert ended == ["running"]
    assert type(error).__name__ in node.error.reason


async def test_a_cancelled_block_cancels_waits_and_raises_cancelled_error():
    """This holds in the body and in the join. The task counts as cancelled once."""
    ended = []

    async def block(in_body, running):
        async with Commander() as commander:
            commander.call_handler(hang(running).at_terminate(lambda _: ended.append(in_body)))
            if in_body:
                await asyncio.Event().wait()

    async with asyncio.timeout(5):
        for in_body in (True, False):
            running = asyncio.Event()
            task = asyncio.create_task(block(in_body, running))
            await running.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled()
    assert ended == [True, False]


async def test_further_cancels_do_not_abandon_the_wait():
    """A block that is cancelled repeatedly still waits for its tree."""
    careful = SlowCleanup()

    @handler
    async def hangs(node):
        await careful.hang()

    async def block():
        async with Commander() as commander:
            nodes.append(commander.call_handler(hangs()))
            await asyncio.Event().wait()

    nodes = []
    async with asyncio.timeout(5):
        task = asyncio.create_task(block())
        await careful.running.wait()
        task.cancel()
        await careful.cleaning.wait()
        for _ in range(3):
            task.cancel()
            await settle_loop()
            assert not task.done()
        careful.release.set()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert nodes[0].state == "cancelled"


async def test_a_timeout_around_a_block_raises_timeout_error():
    """`asyncio.timeout` takes back its own cancellation."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), Commander() as commander:
            commander.call_handler(hang())
    assert asyncio.current_task().cancelling() == 0


@pytest.mark.parametrize("awaits", [True, False])
async def test_a_cancelled_commander_ends_its_block_with_node_cancelled(awaits):
    """`commander.cancel` ends the block's body too, whether or not it awaits again."""
    async with asyncio.timeout(5):
        with pytest.raises(NodeCancelled, match="the whole of it"):
            async with Commander() as commander:
                node = commander.call_handler(hang())
                commander.cancel("the whole of it")
                if awaits:
                    await asyncio.Event().wait()
    assert (commander.state, node.state) == ("cancelled", "cancelled")
    assert asyncio.current_task().cancelling() == 0


@pytest.mark.parametrize("ends", ["fail_fast", "cancel", "both"])
@pytest.mark.parametrize("awaits", [True, False])
async def test_a_block_in_a_cancelled_tasks_clean_up_ends_as_any_other(ends, awaits):
    """The block raises its own failure. The task's cancellation continues afterwards."""
    caught = []

    async def clean_up():
        async with Commander(policy="fail_fast") as commander:
            if ends != "cancel":
                commander.call_handler(fail(ValueError("clean-up")))
                await settled_or_cancelled()
            if ends != "fail_fast":
                commander.cancel("the whole of it")
            if awaits:
                await asyncio.Event().wait()

    async def settled_or_cancelled():
        try:
            await settle_loop()
        except asyncio.CancelledError:
            if ends == "fail_fast":
                raise

    async def block():
        try:
            await asyncio.Event().wait()
        finally:
            before = asyncio.current_task().cancelling()
            try:
                await clean_up()
            except BaseException as error:
                caught.append(error)
            assert asyncio.current_task().cancelling() == before == 1

    async with asyncio.timeout(5):
        task = asyncio.create_task(block())
        await settle_loop()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert [type(error) for error in caught] == [
        NodeCancelled if ends == "cancel" else ValueError if ends == "fail_fast" else NodeCancelled
    ]


async def test_a_cancel_that_comes_besides_the_trees_own_is_not_lost():
    """A second cancel of the task takes effect after the tree has ended, also in a clean-up."""

    async def block():
        try:
            await asyncio.Event().wait()
        finally:
            async with Commander(policy="fail_fast") as commander:
                node = commander.call_handler(fail(ValueError(), release))
                commander.call_handler(hang())
                nodes.append(node)
                await asyncio.Event().wait()

    release, nodes = asyncio.Event(), []
    async with asyncio.timeout(5):
        task = asyncio.create_task(block())
        await settle_loop()
        task.cancel()
        await settle_loop()
        release.set()
        await turn_until(lambda: nodes[0].state == "failed")
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
