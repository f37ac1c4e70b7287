"""T4: the outcome of awaiting a node, and which of several awaiters receives a failure."""

import asyncio
import concurrent.futures

import pytest
from support.nodes import drop, fail, give
from support.waiting import settle_loop

from anabranch.commander import Commander, NodeCancelled
from anabranch.handlers import handler
from anabranch.jobs import Job

pytestmark = pytest.mark.contract("T4")


async def test_awaiting_a_node_gives_its_result_now_or_after_its_end():
    """Several tasks may await the node any number of times."""
    release = asyncio.Event()

    @handler
    async def later(node):
        await release.wait()
        return 5

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(later())
        waiters = [asyncio.ensure_future(node) for _ in range(3)]
        await settle_loop()
        release.set()
        assert await asyncio.gather(*waiters) == [5, 5, 5]
        assert (await node, await node) == (5, 5)


async def test_awaiting_a_node_raises_its_exception_now_or_after_its_end():
    """Each await raises the same exception object."""
    release, error = asyncio.Event(), ValueError()

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(fail(error, release))
        waiters = [asyncio.ensure_future(node) for _ in range(3)]
        await settle_loop()
        release.set()
        assert await asyncio.gather(*waiters, return_exceptions=True) == [error] * 3
        with pytest.raises(ValueError) as caught:
            await node
    assert caught.value is error


async def test_a_result_that_is_an_exception_or_none_is_a_result():
    """The return value of a body is never a failure."""
    error = ValueError()
    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(give(error)) is error
        assert await commander.run(give(None)) is None


# --- receivers of a failure


async def test_a_failure_is_handed_to_those_who_await_the_node_at_that_moment(caplog):
    """The parent, under fail_fast, awaits the node. It may catch the failure and continue."""

    @handler
    async def parent(node):
        sibling = node.call_handler(give("unharmed"))
        with pytest.raises(ValueError):
            await fail(ValueError())
        return await sibling

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(parent()) == "unharmed"
    assert caplog.records == []


async def test_somebody_elses_await_takes_the_failure_too(caplog):
    """A sibling awaits the failing node. The parent does not see the failure and completes."""
    release = asyncio.Event()

    @handler
    async def parent(node):
        bad = node.call_handler(fail(ValueError(), release))
        node.call_handler(drop(bad).at_start(lambda _: release.set()))
        return "unharmed"

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(parent()) == "unharmed"
    assert caplog.records == []


async def test_a_thread_safe_future_counts_as_an_awaiter(caplog):
    """Only the future receives the failure."""
    async with asyncio.timeout(5), Commander(policy="fail_fast") as commander:
        future = commander.call_handler_threadsafe(fail(ValueError("x")))
        with pytest.raises(ValueError, match="x"):
            await asyncio.wrap_future(future)
    assert caplog.records == []


async def test_an_awaiter_whose_own_wait_was_cancelled_does_not_count():
    """The awaiter stopped waiting before the failure, so the parent's policy handles it."""
    release = asyncio.Event()

    @handler
    async def parent(node):
        bad = node.call_handler(fail(ValueError(), release))
        waiter = asyncio.ensure_future(drop_it(bad))
        await settle_loop()
        waiter.cancel()
        await asyncio.wait([waiter])
        release.set()
        await asyncio.Event().wait()

    async def drop_it(node):
        await node

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ValueError):
            await commander.run(parent())


async def test_an_awaiter_cancelled_in_the_turn_of_the_failure_does_not_count():
    """The cancelled wait raises CancelledError, so the parent's policy handles the failure."""
    taken = []

    @handler
    async def parent(node):
        async def wait_for(bad):
            try:
                await bad
            except ValueError:
                taken.append("failure")
                raise

        bad = node.call_handler(fail(ValueError(), release))
        waiter = asyncio.ensure_future(wait_for(bad))
        bad.at_done(lambda _: loop.call_soon(waiter.cancel))
        await settle_loop()
        release.set()
        await asyncio.wait([waiter])
        assert waiter.cancelled()
        await asyncio.Event().wait()

    loop, release = asyncio.get_running_loop(), asyncio.Event()
    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ValueError):
            await commander.run(parent())
    assert taken == []


async def test_of_two_awaiters_one_cancelled_the_other_still_takes_the_failure(caplog):
    """The cancel and the failure share a turn. The parent does not fail."""

    @handler
    async def parent(node):
        bad = node.call_handler(fail(ValueError(), release))
        waiters = [asyncio.ensure_future(bad) for _ in range(2)]
        bad.at_done(lambda _: loop.call_soon(waiters[0].cancel))
        await settle_loop()
        release.set()
        await asyncio.wait(waiters)
        assert waiters[0].cancelled()
        assert isinstance(waiters[1].exception(), ValueError)
        return "unharmed"

    loop, release = asyncio.get_running_loop(), asyncio.Event()
    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(parent()) == "unharmed"
    assert caplog.records == []


async def test_a_job_cancelled_while_it_waits_for_its_place_has_not_taken_the_failure(caplog):
    """The job was cancelled before it had its slot again, so the policy handles the failure."""
    release, busy, failed, ended = asyncio.Event(), asyncio.Event(), asyncio.Event(), []

    class Busy(Job[None]):
        async def task(self):
            busy.set()
            await asyncio.Event().wait()

    class Waiter(Job[None]):
        async def task(self):
            await bad

    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        bad = commander.call_handler(fail(ValueError("seen by nobody"), release))
        bad.at_done(lambda _: failed.set())
        waiter = commander.put_job(Waiter().at_terminate(lambda _: ended.append("waiter")))
        commander.put_job(Busy())
        await busy.wait()
        release.set()
        await failed.wait()
        await settle_loop()
        assert (bad.state, waiter.state) == ("failed", "running")
        waiter.cancel()
        with pytest.raises(NodeCancelled):
            await waiter
        commander.exit()
    (record,) = caplog.records
    assert bad.path in record.getMessage()
    assert ended == ["waiter"]


async def test_a_future_cancelled_in_the_turn_of_the_failure_has_not_taken_it(caplog):
    """The failure is logged, because no other code receives it."""
    async with asyncio.timeout(5), Commander() as commander:
        node = fail(ValueError())
        node.at_done(lambda _: future.cancel())
        future: concurrent.futures.Future[None] = commander.call_handler_threadsafe(node)
        await settle_loop()
    (record,) = caplog.records
    assert node.path in record.getMessage()


async def test_the_failure_of_a_returned_node_is_its_parents():
    """The parent's state, error and at_exception show the failure."""
    seen, error = [], ValueError()

    @handler
    async def parent(node):
        return fail(error)

    async with asyncio.timeout(5), Commander() as commander:
        node = parent().at_exception(lambda each: seen.append(each.error))
        with pytest.raises(ValueError):
            await commander.run(node)
        assert node.error is error
    assert seen == [error]
