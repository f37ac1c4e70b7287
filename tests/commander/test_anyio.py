"""Task groups and timeouts of anyio and asyncio inside a node."""

import asyncio

import anyio
import anyio.lowlevel
import pytest
from support.nodes import fail, hang
from support.waiting import settle_loop

from anabranch.commander import Commander, NodeCancelled, current_node
from anabranch.handlers import handler
from anabranch.jobs import Job

pytestmark = pytest.mark.contract("T16")


@handler
async def give(node, value=None):
    await asyncio.sleep(0)
    return value


async def test_an_anyio_task_group_works_in_a_body():
    """Tasks of an anyio group belong to the node. Nodes that they await are its children."""
    results = []

    @handler
    async def body(node):
        async def ask(value):
            results.append(await give(value))
            assert current_node() is node

        async with anyio.create_task_group() as group:
            for value in range(3):
                group.start_soon(ask, value)
        return sorted(results)

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(body()) == [0, 1, 2]


async def test_cancelling_the_node_cancels_its_task_groups_tasks():
    """Tasks of anyio and asyncio groups clean up before the cancelled node ends."""
    ended, running = [], asyncio.Event()

    async def wait(name):
        try:
            running.set()
            await anyio.sleep_forever()
        finally:
            ended.append(name)

    @handler
    async def with_anyio(node):
        async with anyio.create_task_group() as group:
            group.start_soon(wait, "anyio")

    @handler
    async def with_asyncio(node):
        async with asyncio.TaskGroup() as group:
            group.create_task(wait("asyncio"))

    async with asyncio.timeout(5), Commander() as commander:
        for kind in (with_anyio, with_asyncio):
            running.clear()
            node = commander.call_handler(kind().at_terminate(lambda _: ended.append("node")))
            await running.wait()
            node.cancel()
            with pytest.raises(NodeCancelled):
                await node
    assert ended == ["anyio", "node", "asyncio", "node"]


async def test_a_shielded_clean_up_is_finished():
    """A shielded anyio scope delays the node's cancellation, as anyio documents."""
    cleaned, running, release = [], asyncio.Event(), anyio.Event()

    @handler
    async def body(node):
        try:
            running.set()
            await anyio.sleep_forever()
        finally:
            with anyio.CancelScope(shield=True):
                await release.wait()
                await anyio.lowlevel.checkpoint()
                cleaned.append(True)

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(body())
        await running.wait()
        node.cancel()
        await settle_loop()
        assert node.state == "running"
        release.set()
    assert cleaned == [True]


async def test_a_failing_task_group_fails_the_node_with_its_group():
    """The node fails with the ExceptionGroup, and its children are cancelled."""

    async def bad():
        raise ValueError

    @handler
    async def with_anyio(node):
        node.call_handler(hang())
        async with anyio.create_task_group() as group:
            group.start_soon(bad)

    @handler
    async def with_asyncio(node):
        node.call_handler(hang())
        async with asyncio.TaskGroup() as group:
            group.create_task(bad())

    async with asyncio.timeout(5), Commander() as commander:
        for kind in (with_anyio, with_asyncio):
            with pytest.raises(ExceptionGroup) as caught:
                await commander.run(kind())
            assert caught.group_contains(ValueError)


async def test_a_timeout_of_anyios_or_asyncios_bounds_the_wait_and_not_the_node():
    """fail_after, move_on_after and asyncio.timeout end the wait. The awaited node runs on."""
    release = asyncio.Event()

    @handler
    async def slow(node):
        await release.wait()
        return "slow"

    @handler
    async def body(node):
        child = node.call_handler(slow())
        with pytest.raises(TimeoutError), anyio.fail_after(0.01):
            await child
        with anyio.move_on_after(0.01) as scope:
            await child
        assert scope.cancelled_caught
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await child
        assert child.state == "running"
        release.set()
        return await child

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(body()) == "slow"


@pytest.mark.parametrize("kind", ["fail_after", "move_on_after", "timeout"])
async def test_a_timeout_around_run_cancels_the_job_and_waits_for_it(kind):
    """After the job has ended, the timeout raises TimeoutError or continues, as documented."""
    cleaned = []

    class Careful(Job[None]):
        async def task(self):
            try:
                await asyncio.Event().wait()
            finally:
                await settle_loop()
                cleaned.append(True)

    async with asyncio.timeout(5), Commander() as commander:
        job = Careful()
        if kind == "fail_after":
            with pytest.raises(TimeoutError), anyio.fail_after(0.01):
                await commander.run(job)
        elif kind == "move_on_after":
            with anyio.move_on_after(0.01) as scope:
                await commander.run(job)
            assert scope.cancelled_caught
        else:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.01):
                    await commander.run(job)
        assert job.state == "cancelled"
        assert asyncio.current_task().cancelling() == 0
        assert cleaned == [True]


async def test_a_scope_around_a_block_cancels_it_and_is_caught_by_itself():
    """The commander's block passes the scope's cancellation on unchanged."""
    ended = []
    with anyio.move_on_after(0.01) as scope:
        async with Commander() as commander:
            commander.call_handler(hang().at_terminate(lambda _: ended.append(True)))
    assert scope.cancelled_caught
    assert ended == [True]
    await anyio.lowlevel.checkpoint()


async def test_waiting_under_a_cancelled_scope_does_not_spin():
    """anyio repeats its cancellation on every turn. The wait for a slow clean-up stays idle."""
    idle = []

    @handler
    async def careful(node):
        try:
            await asyncio.Event().wait()
        finally:
            await settle_loop()
            idle.append(True)

    async with asyncio.timeout(5):
        async with Commander() as commander:
            with anyio.move_on_after(0.01):
                await commander.run(careful())
        with anyio.move_on_after(0.01):
            async with Commander() as commander:
                commander.call_handler(careful())
    assert idle == [True, True]


async def test_a_scope_that_a_body_cancels_itself_does_not_cancel_the_node():
    """The cancellation ends the scope, and the body continues."""

    @handler
    async def body(node):
        with anyio.CancelScope() as scope:
            scope.cancel()
            await anyio.lowlevel.checkpoint()
        return scope.cancelled_caught

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(body()) is True


async def test_a_cancel_from_both_sides_in_one_turn_is_the_nodes():
    """A timeout fires in the same turn as the node's cancel. The node ends cancelled."""
    running = asyncio.Event()

    @handler
    async def body(node, scopes):
        with anyio.CancelScope() as scope:
            scopes.append(scope)
            running.set()
            await anyio.sleep_forever()

    @handler
    async def with_timeout(node, scopes):
        async with asyncio.timeout(3600) as scope:
            scopes.append(scope)
            running.set()
            await asyncio.Event().wait()

    async with asyncio.timeout(5), Commander() as commander:
        for kind in (body, with_timeout):
            scopes = []
            running.clear()
            node = commander.call_handler(kind(scopes))
            await running.wait()
            if kind is body:
                scopes[0].cancel()
            else:
                scopes[0].reschedule(asyncio.get_running_loop().time() - 1)
            node.cancel()
            with pytest.raises(NodeCancelled):
                await node
            assert node.state == "cancelled"


async def test_a_childs_failure_cancels_a_body_in_a_task_group():
    """fail_fast cancels a body inside a task group or scope. The group's tasks end first."""
    ended = []

    async def wait():
        try:
            await anyio.sleep_forever()
        finally:
            ended.append("task")

    @handler
    async def body(node):
        node.call_handler(fail(ValueError("child")))
        async with anyio.create_task_group() as group:
            group.start_soon(wait)
            await anyio.sleep_forever()

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ValueError, match="child"):
            await commander.run(body())
    assert ended == ["task"]


async def test_anyios_thread_functions_work_in_a_body():
    """`anyio.to_thread` and `anyio.from_thread` use the node's loop."""

    def work():
        return anyio.from_thread.run(anyio.sleep, 0) or current_node()

    @handler
    async def body(node):
        return await anyio.to_thread.run_sync(work) is node

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(body()) is True
