"""T7: no trace of an ended node stays in memory."""

import asyncio
import gc
import logging
import tracemalloc
import weakref

import pytest
from support.nodes import fail, give, hang
from support.waiting import settle_loop

from anabranch.commander import Commander, NodeCancelled, Retry, run
from anabranch.handlers import handler
from anabranch.jobs import Job

pytestmark = [pytest.mark.contract("T7"), pytest.mark.usefixtures("light_heap")]


class Round(Job[int]):
    number: int

    async def task(self):
        self.call_handler(give(self.number))
        if self.number % 5 == 0:
            self.call_handler(hang()).cancel()
        if self.number % 7 == 0:
            await asyncio.sleep(0)
        if self.number % 11 == 0:
            raise ValueError(self.number)
        return await give(self.number)


async def one(commander, number):
    try:
        return await commander.run(Round(number), timeout=60)
    except ValueError:
        return None


async def test_after_the_commander_closes_the_loops_tasks_are_what_they_were():
    """Nodes were put, failed, cancelled, retried, timed out, or put by a callback."""
    before = asyncio.all_tasks()
    async with asyncio.timeout(10):
        async with Commander(max_concurrency=3) as commander:
            commander.put_job(Round(1), retry=Retry(attempts=2))
            for number in range(50):
                await one(commander, number)
            with pytest.raises(TimeoutError):
                await commander.run(hang(), timeout=0.001)
            running = asyncio.Event()
            node = commander.call_handler(hang(running).at_terminate(lambda _: asyncio.sleep(0)))
            await running.wait()
            node.cancel()
        assert asyncio.all_tasks() == before


@pytest.mark.parametrize("how", ["error", "cancel", "exit"])
async def test_no_task_is_left_however_the_block_is_left(how):
    """The block ends by an exception, a cancellation or `exit`."""
    before = asyncio.all_tasks()

    async def block():
        async with Commander() as commander:
            for _ in range(5):
                commander.call_handler(hang())
            await settle_loop()
            if how == "error":
                raise ValueError
            if how == "cancel":
                asyncio.current_task().cancel()
                await asyncio.sleep(0)
            commander.exit()

    async with asyncio.timeout(5):
        await asyncio.wait([task := asyncio.create_task(block())])
        assert isinstance(task.exception(), ValueError) if how == "error" else True
        assert asyncio.all_tasks() == before


async def test_finished_nodes_are_not_kept():
    """Completed, failed, cancelled and awaited nodes, with callbacks or children, are freed."""
    references = []

    @handler
    async def parent(node):
        for child in (give(), give().at_end(lambda _: None)):
            references.append(weakref.ref(child))
            node.call_handler(child)

    async with asyncio.timeout(5), Commander() as commander:
        for node in (parent(), give(1)):
            references.append(weakref.ref(node))
            await commander.run(node)
        node = fail(ValueError())
        references.append(weakref.ref(node))
        with pytest.raises(ValueError):
            await commander.run(node)
        node = commander.call_handler(hang())
        references.append(weakref.ref(node))
        node.cancel()
        with pytest.raises(NodeCancelled):
            await node
        del node
        gc.collect()
        assert len(references) == 6
        assert [reference() for reference in references] == [None] * 6
        assert commander.children == ()


async def test_a_finished_node_goes_at_once_without_the_garbage_collector():
    """The node is in no reference cycle, so memory stays flat between two collections."""
    gc.collect()
    gc.disable()
    try:
        async with asyncio.timeout(5), Commander() as commander:

            class Parent(Job[None]):
                async def task(self):
                    self.call_handler(give())
                    self.call_handler(give()).at_end(lambda _: None)

            references = []
            for node in (give(), give().at_end(lambda _: None), Parent()):
                references.append(weakref.ref(node))
                await commander.run(node)
            del node
            await settle_loop()
            assert [reference() for reference in references] == [None] * 3
    finally:
        gc.enable()


async def test_no_error_that_is_over_keeps_a_finished_node():
    """A cancelled or retried node is freed at once, also without the garbage collector."""

    @handler
    async def fails_once(node):
        if not seen:
            seen.append(1)
            raise ValueError

    seen = []
    gc.collect()
    gc.disable()
    try:
        async with asyncio.timeout(5), Commander() as commander:
            again, cancelled = fails_once(), hang()
            references = [weakref.ref(node) for node in (again, cancelled)]
            await commander.call_handler(again, retry=Retry(backoff=0))
            commander.call_handler(cancelled)
            await settle_loop()
            cancelled.cancel()
            with pytest.raises(NodeCancelled):
                await cancelled
            del again, cancelled
            await settle_loop()
            assert [reference() for reference in references] == [None] * 2
    finally:
        gc.enable()


async def test_a_finished_node_does_not_keep_its_parent_alive_for_its_awaiter():
    """A reference to a node keeps its ancestors alive, never its descendants."""

    @handler
    async def parent(node):
        references.append(weakref.ref(node.call_handler(give())))

    references = []
    async with asyncio.timeout(5), Commander() as commander:
        node = parent()
        await commander.run(node)
        gc.collect()
        assert references[0]() is None


async def test_many_jobs_take_no_more_memory_than_few():
    """Memory after thousands of jobs is that after the first thousand."""

    async def traced(commander, count):
        for number in range(count):
            await one(commander, number)
        gc.collect()
        return tracemalloc.get_traced_memory()[0]

    async with asyncio.timeout(120), Commander() as commander:
        tracemalloc.start()
        try:
            await traced(commander, 1_000)
            few = await traced(commander, 500)
            many = await traced(commander, 3_000)
        finally:
            tracemalloc.stop()
    assert many - few < 20_000


async def test_failures_that_nobody_awaits_are_not_kept(monkeypatch):
    """The failures are logged, then their exceptions and nodes are freed."""

    class Mark(ValueError):
        pass

    references, logged = [], []
    # Replaces pytest's handlers, which keep their records.
    monkeypatch.setattr(logging.getLogger("anabranch"), "handle", lambda _: logged.append(1))
    async with asyncio.timeout(5), Commander() as commander:
        for _ in range(3):
            error = Mark()
            references.append(weakref.ref(error))
            node = commander.call_handler(fail(error))
            references.append(weakref.ref(node))
            await settle_loop()
            del node, error
        assert len(logged) == 3
        gc.collect()
        assert [reference() for reference in references] == [None] * 6


def test_run_leaves_no_loop_and_no_task_behind():
    """A task that a body left running is cancelled before the loop closes."""
    forgotten = []

    class Forgetful(Job[None]):
        async def task(self):
            forgotten.append(asyncio.create_task(asyncio.Event().wait()))
            await settle_loop()

    run(Forgetful())
    assert forgotten[0].cancelled()
    assert forgotten[0].get_loop().is_closed()


async def test_a_node_with_a_timeout_is_free_once_it_has_ended():
    """The node does not stay until its timeout would have been due."""
    # The loop drops a cancelled timer at once unless another is due before it.
    before = asyncio.get_running_loop().call_later(1800, print)
    async with Commander() as commander:
        gc.disable()
        try:
            node = commander.call_handler(hang(), timeout=3600)
            await asyncio.sleep(0)
            node.cancel()
            await commander.drain()
            await asyncio.sleep(0)  # the loop still referred to the awaiter
            there = weakref.ref(node)
            del node
            assert there() is None
        finally:
            gc.enable()
            before.cancel()
