"""Several threads and loops: thread-safe puts, several commanders, blocking work."""

import asyncio
import concurrent.futures
import os
import threading
import time

import pytest
from support.nodes import fail, give, hang
from support.waiting import settle_loop, wait_until

from anabranch.commander import (
    Commander,
    NodeCancelled,
    NodeClosed,
    WorkerLost,
    check_cancelled,
    current_node,
    run,
)
from anabranch.commander._record import record_of
from anabranch.handlers import handler
from anabranch.jobs import Job

pytestmark = pytest.mark.contract("T15")

WORK = 0.005  # seconds that a blocking function works between two checks


class Square(Job[int]):
    number: int

    async def task(self):
        await asyncio.sleep(0)
        return self.number**2


async def in_thread(function):
    """Run a function in a thread outside any tree."""
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        return await asyncio.get_running_loop().run_in_executor(pool, function)


# --- thread-safe puts


async def test_jobs_and_handlers_are_put_from_any_thread():
    """The calling thread receives the result from the future."""
    async with asyncio.timeout(10), Commander() as commander:

        def ask():
            job = commander.put_job_threadsafe(Square(7))
            call = commander.call_handler_threadsafe(give("x"))
            return job.result(5), call.result(5)

        assert await in_thread(ask) == (49, "x")


async def test_many_threads_may_put_at_once():
    """Each thread receives its own results."""
    async with asyncio.timeout(20), Commander(max_concurrency=3) as commander:

        def ask(first):
            futures = [
                commander.put_job_threadsafe(Square(number)) for number in range(first, first + 50)
            ]
            return [future.result(10) for future in futures]

        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            loop = asyncio.get_running_loop()
            answers = await asyncio.gather(
                *(loop.run_in_executor(pool, ask, first) for first in (0, 50, 100, 150))
            )
    assert [each for answer in answers for each in answer] == [n**2 for n in range(200)]


async def test_a_failure_is_raised_in_the_thread_that_asked():
    """A cancelled node raises `NodeCancelled` there."""
    async with asyncio.timeout(5), Commander() as commander:
        node = hang()
        cancelled = commander.call_handler_threadsafe(node)
        node_failed = commander.call_handler_threadsafe(fail(ValueError("x")))
        await settle_loop()
        node.cancel("from here")
        with pytest.raises(ValueError, match="x"):
            await in_thread(lambda: node_failed.result(5))
        with pytest.raises(NodeCancelled, match="from here"):
            await in_thread(lambda: cancelled.result(5))


async def test_a_future_that_is_cancelled_cancels_its_node():
    """The other thread cancels the future while the node runs."""
    ended, running = asyncio.Event(), asyncio.Event()
    async with asyncio.timeout(5), Commander() as commander:
        node = hang(running).at_terminate(lambda _: ended.set())
        future = commander.call_handler_threadsafe(node)
        await running.wait()
        assert await in_thread(future.cancel)
        await ended.wait()
        await settle_loop()
        assert node.state == "cancelled"
        assert future.cancelled()


async def test_a_future_cancelled_before_its_node_started_keeps_it_from_starting():
    """The node never enters the tree."""
    async with asyncio.timeout(5), Commander() as commander:
        node = give()
        commander.call_handler_threadsafe(node).cancel()
        await settle_loop()
        assert (node.state, node.parent) == ("pending", None)


async def test_a_refusal_arrives_in_the_future():
    """The commander has exited, the node was already started, or the call was the wrong one."""
    async with asyncio.timeout(5), Commander() as commander:
        used = give()
        await commander.run(used)
        with pytest.raises(RuntimeError, match="started before"):
            await asyncio.wrap_future(commander.call_handler_threadsafe(used))
        with pytest.raises(TypeError, match="put_job"):
            await asyncio.wrap_future(commander.call_handler_threadsafe(Square(1)))
        commander.exit()
        with pytest.raises(NodeClosed):
            await asyncio.wrap_future(commander.put_job_threadsafe(Square(1)))


def test_a_put_after_the_end_of_the_loop_raises_at_once():
    """No loop is left to answer."""
    commanders = []

    @handler
    async def leak(node):
        commanders.append(node.commander)

    run(leak())
    with pytest.raises(NodeClosed):
        commanders[0].put_job_threadsafe(Square(1))


def test_a_put_before_the_block_is_an_error():
    """The loop does not exist yet."""
    with pytest.raises(RuntimeError, match="async with"):
        Commander().put_job_threadsafe(Square(1))


async def test_options_go_with_a_thread_safe_put():
    """`parent`, `timeout` and the others have the meaning they have in `put_job`."""
    async with asyncio.timeout(5), Commander() as commander:
        running = asyncio.Event()
        parent = commander.call_handler(hang(running))
        await running.wait()
        node = hang()
        future = commander.call_handler_threadsafe(node, parent=parent, timeout=0.01)
        with pytest.raises(TimeoutError):
            await asyncio.wrap_future(future)
        assert node.parent is parent
        parent.cancel()


# --- several commanders


def test_commanders_run_in_several_threads_at_once():
    """Each commander has its own loop and sees no node of the others."""

    @handler
    async def many(node, count):
        return [await Square(number) for number in range(count)]

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        answers = [*pool.map(lambda count: run(many(count)), [20, 30, 40, 50])]
    assert [len(answer) for answer in answers] == [20, 30, 40, 50]
    assert answers[0] == [number**2 for number in range(20)]


async def test_a_node_of_one_commander_puts_into_that_of_another_thread():
    """The node belongs to the other commander. Its future is awaited like any other."""
    ready, other = threading.Event(), []

    @handler
    async def serve(node):
        other.append(node.commander)
        ready.set()

    thread = threading.Thread(target=lambda: run(serve(), auto_exit=False))
    thread.start()

    class Asks(Job[int]):
        async def task(self):
            job = Square(6)
            answer = await asyncio.wrap_future(other[0].put_job_threadsafe(job))
            assert job.commander is other[0]
            assert current_node() is self
            return answer

    try:
        async with asyncio.timeout(10), Commander() as commander:
            await in_thread(lambda: ready.wait(5))
            assert await commander.run(Asks()) == 36
    finally:
        record_of(other[0]).tree.loop.call_soon_threadsafe(other[0].exit)
        thread.join(5)
    assert not thread.is_alive()


async def test_commanders_nest():
    """A commander inside a body has a separate tree."""

    @handler
    async def outer(node):
        async with Commander() as inner:
            inside = give(1)
            result = await inner.run(inside)
            assert [*inside.ancestors] == [inner]
            assert current_node() is inner
        assert current_node() is node
        return result

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(outer()) == 1


async def test_cancelling_reaches_through_a_nested_commander():
    """The outer node's CancelledError leaves the inner block, which cancels its nodes."""
    ended, running = [], asyncio.Event()

    @handler
    async def outer(node):
        async with Commander() as inner:
            await inner.run(hang(running).at_terminate(lambda _: ended.append("inner")))

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(outer().at_terminate(lambda _: ended.append("outer")))
        await running.wait()
        node.cancel()
    assert ended == ["inner", "outer"]


# --- blocking work in a thread


async def test_blocking_work_is_a_child_node_and_gives_its_result():
    """Arguments and keywords are passed on. The loop is not blocked."""

    started, release = threading.Event(), threading.Event()

    def work(number, *, plus):
        started.set()
        assert release.wait(5)
        return threading.get_ident(), number + plus

    @handler
    async def parent(node):
        child = node.in_thread(work, 1, plus=2)
        assert child in node.children
        await wait_until(started.is_set)
        await settle_loop()
        assert child.state == "running"
        release.set()
        return await child

    async with asyncio.timeout(5), Commander() as commander:
        thread, number = await commander.run(parent())
    assert number == 3
    assert thread != threading.get_ident()


async def test_blocking_work_that_nobody_awaits_is_joined():
    """Its failure follows the policy, like that of any child."""
    done, release = [], threading.Event()

    def work(raising):
        assert release.wait(5)
        done.append(raising)
        if raising:
            raise ValueError("in thread")

    @handler
    async def parent(node, raising):
        node.in_thread(work, raising)

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(parent(False))
        await settle_loop()
        assert (node.state, done) == ("joining", [])
        release.set()
        await node
        assert done == [False]
        with pytest.raises(ValueError, match="in thread"):
            await commander.run(parent(True))


async def test_a_cancelled_node_is_not_done_before_its_thread_returns():
    """The function polls `check_cancelled`, which raises in it. Then the node ends."""
    order, started = [], threading.Event()

    def work():
        started.set()
        try:
            for _ in range(1_000):
                check_cancelled()
                time.sleep(WORK)
        finally:
            order.append("thread")

    async with asyncio.timeout(10), Commander() as commander:
        node = commander.in_thread(work).at_terminate(lambda _: order.append("node"))
        await in_thread(lambda: started.wait(5))
        node.cancel()
        with pytest.raises(NodeCancelled):
            await node
    assert order == ["thread", "node"]


async def test_an_abandoned_thread_is_not_waited_for():
    """The node ends at once, and the thread continues alone."""
    started, release, ended = threading.Event(), threading.Event(), threading.Event()

    def work():
        started.set()
        release.wait(5)
        ended.set()

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.in_thread(work, abandon=True)
        await in_thread(lambda: started.wait(5))
        node.cancel()
        with pytest.raises(NodeCancelled):
            await node
        assert not ended.is_set()
        release.set()
        assert await in_thread(lambda: ended.wait(5))


async def test_a_timeout_tells_a_thread():
    """The node above the thread has the `timeout=`."""
    told = []

    def work():
        try:
            while True:
                check_cancelled()
                time.sleep(WORK)
        finally:
            told.append(True)

    @handler
    async def parent(node):
        await node.in_thread(work)

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(TimeoutError):
            await commander.run(parent(), timeout=0.05)
    assert told == [True]


def test_check_cancelled_belongs_in_a_thread_or_process_of_a_node():
    """Other callers get an error."""
    with pytest.raises(RuntimeError):
        check_cancelled()


# --- blocking work in a process


async def test_work_in_a_process_gives_its_result():
    """The function runs in another process, and its result comes back."""
    async with asyncio.timeout(20), Commander() as commander:
        assert await commander.in_process(pow, 2, 10) == 1024
        assert await commander.in_process(os.getpid) != os.getpid()


async def test_a_failure_in_a_process_is_raised_with_its_traceback():
    """The traceback is a note of the exception."""
    async with asyncio.timeout(20), Commander() as commander:
        with pytest.raises(ValueError, match="invalid literal") as caught:
            await commander.in_process(int, "x")
    assert any("in the process" in note for note in caught.value.__notes__)


async def test_a_process_is_told_and_then_ended(tmp_path):
    """A cancelled process ends within the grace period."""
    started = tmp_path / "started"
    body = f"import pathlib, time; pathlib.Path({str(started)!r}).touch(); time.sleep(3600)"
    async with asyncio.timeout(20), Commander() as commander:
        node = commander.in_process(exec, body, grace=2)
        await wait_until(started.exists)
        node.cancel()
        with pytest.raises(NodeCancelled):
            await node


async def test_a_process_that_dies_without_a_result_is_lost():
    """`WorkerLost` has the node's path."""
    async with asyncio.timeout(20), Commander() as commander:
        node = commander.in_process(os._exit, 3)
        with pytest.raises(WorkerLost, match="status 3") as caught:
            await node
        assert caught.value.path == node.path


async def test_what_cannot_be_sent_to_a_process_is_refused():
    """The message for a local function names the remedy."""
    async with asyncio.timeout(20), Commander() as commander:
        with pytest.raises(TypeError, match="pickle"):
            await commander.in_process(lambda: 1)
