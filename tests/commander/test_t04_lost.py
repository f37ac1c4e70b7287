"""T4: a failure names its origin, and no failure is lost."""

import asyncio
import logging

import pytest
from support.nodes import NOTE_PREFIX, SlowCleanup, cancel_running, fail, failure_notes

from anabranch.commander import Commander, NodeCancelled, Retry
from anabranch.handlers import handler
from anabranch.jobs import Job

pytestmark = pytest.mark.contract("T4")


async def test_the_exception_carries_one_note_with_the_path_of_the_node_that_failed_first():
    """The note stays single however far the failure travels, awaited or not."""
    error, paths = ValueError(), []

    @handler
    async def awaiting(node):
        await fail(error).at_exception(lambda each: paths.append(each.path))

    @handler
    async def joining(node):
        node.call_handler(awaiting())

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ValueError):
            await commander.run(joining())
        with pytest.raises(ValueError):
            await commander.run(fail(error))
    assert error.__notes__ == [NOTE_PREFIX + paths[0]]
    assert paths[0].startswith("Commander/joining#1/awaiting#2/fail#")


async def test_a_group_carries_the_path_of_its_collector_and_its_members_carry_theirs():
    """Each has one note."""

    @handler
    async def parent(node):
        node.call_handler(fail(ValueError()))

    async with asyncio.timeout(5), Commander() as commander:
        node = parent()
        with pytest.raises(ExceptionGroup) as caught:
            await commander.run(node, policy="collect")
    assert failure_notes(caught.value) == [NOTE_PREFIX + node.path]
    assert failure_notes(caught.value.exceptions[0]) == [NOTE_PREFIX + node.path + "/fail#2"]


async def test_a_failure_that_nobody_awaits_is_logged_with_its_path_and_traceback(caplog):
    """The logger `anabranch` records it as an error."""
    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(fail(ValueError("lost?")))
    (record,) = caplog.records
    assert (record.name, record.levelno) == ("anabranch", logging.ERROR)
    assert node.path in record.getMessage()
    assert record.exc_info[1].__traceback__ is not None
    assert "lost?" in caplog.text
    assert "raise error" in caplog.text


async def test_a_failure_during_cancellation_is_logged(caplog):
    """The node ends cancelled. The error of its clean-up is logged."""

    @handler
    async def stubborn(node, running):
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("in clean-up")

    async with asyncio.timeout(5), Commander() as commander:
        running = asyncio.Event()
        node = commander.call_handler(stubborn(running))
        await cancel_running(node, running)
    (record,) = caplog.records
    assert isinstance(record.exc_info[1], ValueError)


@pytest.mark.parametrize("by_child", [False, True])
async def test_a_failure_overtaken_by_a_cancel_is_logged(by_child, caplog):
    """The failed node is cancelled while it waits for a slow child. It ends cancelled."""
    child = SlowCleanup()

    @handler
    async def slow(node):
        await child.hang()

    @handler
    async def parent(node):
        node.call_handler(slow())
        await child.running.wait()
        if not by_child:
            raise ValueError("overtaken")
        node.call_handler(fail(ValueError("overtaken")))

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(parent())
        await child.cleaning.wait()
        node.cancel()
        child.release.set()
        with pytest.raises(NodeCancelled):
            await node
    (record,) = caplog.records
    assert isinstance(record.exc_info[1], ValueError)


async def test_a_failure_whose_callback_is_cancelled_is_logged(caplog):
    """A failed node is cancelled in its async at_exception. It ends cancelled."""
    entered = asyncio.Event()

    async def callback(node):
        entered.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(fail(ValueError()).at_exception(callback))
        await cancel_running(node, entered)
    (record,) = caplog.records
    assert isinstance(record.exc_info[1], ValueError)


async def test_an_awaited_failure_is_not_logged(caplog):
    """A recovered failure and a failed attempt before a success are not logged either."""

    class Flaky(Job[int]):
        tries: list[int]

        async def task(self):
            self.tries.append(1)
            if len(self.tries) < 3:
                raise ValueError
            return len(self.tries)

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ValueError):
            await commander.run(fail(ValueError()))
        commander.call_handler(fail(ValueError()).at_exception(lambda node: node.recover(1)))
        assert await commander.run(Flaky([]), retry=Retry(attempts=3)) == 3
    assert caplog.records == []
