"""T10: nodes inherit the context, and `current_node` follows it."""

import asyncio
import threading
from contextvars import ContextVar

import pytest
from support.waiting import settle_loop, turn_until

from anabranch.commander import Commander, NodeCancelled, Retry, current_node, run
from anabranch.commander._record import record_of
from anabranch.handlers import handler
from anabranch.jobs import Job

pytestmark = pytest.mark.contract("T10")

TRACE = ContextVar("TRACE", default="none")


@handler
async def read(node):
    return TRACE.get()


class Read(Job[str]):
    async def task(self):
        return TRACE.get()


@pytest.mark.parametrize("limit", [None, 1])
async def test_a_node_runs_in_the_context_of_whoever_put_it(limit):
    """The context is copied at the put, also for jobs that start later from the queue."""
    async with asyncio.timeout(5), Commander(max_concurrency=limit) as commander:
        nodes = []
        for name in ("a", "b"):
            TRACE.set(name)
            nodes += [commander.call_handler(read()), commander.put_job(Read())]
        TRACE.set("later")
        assert [await node for node in nodes] == ["a", "a", "b", "b"]


async def test_context_flows_down_the_tree():
    """Nodes put later see the variables that a body has set, at any depth."""

    @handler
    async def middle(node):
        return await read(), await Read()

    class Top(Job[object]):
        async def task(self):
            TRACE.set("top")
            return await middle()

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(Top()) == ("top", "top")


async def test_each_node_has_a_copy():
    """A variable that a node sets reaches neither its parent nor its siblings."""

    @handler
    async def write(node, value):
        before = TRACE.get()
        TRACE.set(value)
        return before

    @handler
    async def parent(node):
        TRACE.set("parent")
        seen = [await write(value) for value in ("x", "y")]
        return [*seen, TRACE.get()]

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(parent()) == ["parent"] * 3


async def test_a_node_put_elsewhere_has_the_putters_context_all_the_same():
    """Its parent is the commander, but its context comes from the node that put it."""

    @handler
    async def putter(node):
        TRACE.set("putter")
        return node.call_handler(read(), parent=node.commander)

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(putter()) == "putter"


async def test_a_thread_safe_put_takes_the_threads_context():
    """The context is copied from the calling thread at the call."""
    futures = []

    async with asyncio.timeout(5), Commander() as commander:

        def in_thread():
            TRACE.set("thread")
            futures.append(commander.put_job_threadsafe(Read()))
            futures.append(commander.call_handler_threadsafe(read()))
            TRACE.set("later")

        thread = threading.Thread(target=in_thread)
        thread.start()
        await asyncio.to_thread(thread.join)
        assert [await asyncio.wrap_future(future) for future in futures] == ["thread"] * 2


def looking():
    """Return a list, and two functions that add the current node to it, at once and later."""
    seen = []

    def look(*_):
        seen.append(current_node())

    async def look_later(*_):
        await asyncio.sleep(0)
        look()

    return seen, look, look_later


async def test_current_node_works_anywhere_below():
    """It works in the body, in its functions, tasks and threads, and in callbacks."""
    seen, look, look_later = looking()

    @handler
    async def body(node):
        look()
        await look_later()
        await asyncio.create_task(look_later())
        async with asyncio.TaskGroup() as group:
            group.create_task(look_later())
        await asyncio.to_thread(look)
        asyncio.get_running_loop().call_soon(look)
        await settle_loop()
        await node.in_thread(lambda: seen.append(current_node().parent))

    async with asyncio.timeout(5), Commander() as commander:
        node = body().at_start(look).at_end(look).at_end(look_later).at_done(look)
        await commander.run(node.at_commander_end(look))
    assert len(seen) == 12
    assert {*seen} == {node}


async def test_current_node_is_the_innermost():
    """A child's body sees the child. Back in the parent, it is the parent again."""

    @handler
    async def child(node):
        assert current_node() is node

    @handler
    async def parent(node):
        await child()
        assert current_node() is node
        node.call_handler(child())
        assert current_node() is node

    async with asyncio.timeout(5), Commander() as commander:
        await commander.run(parent())


async def test_outside_a_tree_there_is_no_current_node():
    """Before and after a commander's block it is a `LookupError`."""
    with pytest.raises(LookupError, match="current node"):
        current_node()
    async with asyncio.timeout(5), Commander() as commander:
        await commander.run(read())
    with pytest.raises(LookupError):
        current_node()


async def test_in_its_block_the_commander_is_the_current_node():
    """Functions, tasks and threads started there see it, and the commander's callbacks do too."""
    seen, look, look_later = looking()

    async with asyncio.timeout(5), Commander() as commander:
        commander.at_end(look).at_done(look_later)
        look()
        await look_later()
        await asyncio.gather(look_later(), look_later())
        await asyncio.to_thread(look)
        asyncio.get_running_loop().call_soon(look)
        await settle_loop()
        await commander.run(read())
        look()
    assert len(seen) == 9
    assert {*seen} == {commander}


async def test_an_inner_block_gives_the_current_node_back():
    """Blocks may be nested, also in bodies."""

    @handler
    async def body(node):
        async with Commander() as inner:
            assert current_node() is inner
        assert current_node() is node

    async with asyncio.timeout(5), Commander() as commander:
        await commander.run(body())
        async with Commander() as other:
            assert current_node() is other
        assert current_node() is commander


def test_blocking_run_passes_the_callers_context_on():
    """The job sees a value set before `run`."""
    token = TRACE.set("caller")
    try:
        assert run(Read()) == "caller"
    finally:
        TRACE.reset(token)


async def test_a_retried_job_that_is_called_back_begins_in_a_fresh_context():
    """A job of higher priority postpones the retry in its first turn. Old values are not seen."""
    seen = []

    class Tries(Job[None]):
        async def task(self):
            seen.append(TRACE.get())
            TRACE.set("an earlier attempt")
            if len(seen) == 1:
                raise ValueError

    async with asyncio.timeout(5), Commander() as commander:
        TRACE.set("putter")
        job = commander.put_job(Tries(), retry=Retry())
        await turn_until(
            lambda: seen and job.state == "pending" and record_of(job).task is not None
        )
        commander.put_job(Read())
        commander.put_job(Read(), priority=1)
        assert record_of(job).task is None  # postponed
        await job
    assert seen == ["putter", "putter"]


async def test_a_retried_job_that_is_cancelled_before_its_turn_ends_in_a_fresh_context():
    """Its callbacks do not see the values of the attempt before the wait for a slot."""
    seen = []

    class Fails(Job[None]):
        async def task(self):
            TRACE.set("an earlier attempt")
            raise ValueError

    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        TRACE.set("putter")
        job = commander.put_job(Fails().at_terminate(lambda _: seen.append(TRACE.get())),
                                retry=Retry())  # fmt: skip
        await turn_until(lambda: record_of(job).attempts.starts and job.state == "pending")
        await turn_until(lambda: record_of(job).attempts.timer is None)
        assert record_of(job).task is None  # it waits in the queue
        job.cancel()
        with pytest.raises(NodeCancelled):
            await job
    assert seen == ["putter"]
