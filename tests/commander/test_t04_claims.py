"""T4: failures of children put with `claim=True`."""

import asyncio

import pytest
from support.nodes import fail
from support.waiting import settle_loop

from anabranch.commander import Commander
from anabranch.commander._record import record_of
from anabranch.handlers import handler

pytestmark = pytest.mark.contract("T4")


async def test_a_claimed_failure_waits_for_its_awaiter():
    """The putter is busy when the child fails, and receives the failure later."""

    @handler
    async def parent(node):
        failed = asyncio.Event()
        bad = node.call_handler(fail(ValueError()).at_done(lambda _: failed.set()), claim=True)
        await failed.wait()
        await settle_loop()
        assert bad.state == "failed"
        with pytest.raises(ValueError):
            await bad
        return "unharmed"

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(parent()) == "unharmed"


@pytest.mark.parametrize(
    ("policy", "kind"), [("fail_fast", ValueError), ("collect", ExceptionGroup)]
)
async def test_a_claimed_failure_untaken_at_the_join_follows_the_policy(policy, kind):
    """The body runs to its end, then the node fails."""
    through = []

    @handler
    async def parent(node):
        failed = asyncio.Event()
        node.call_handler(fail(ValueError()).at_done(lambda _: failed.set()), claim=True)
        await failed.wait()
        await settle_loop()
        through.append("body")

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(kind):
            await commander.run(parent(), policy=policy)
    assert through == ["body"]


async def test_a_claimed_failure_untaken_at_the_join_is_logged_under_isolate(caplog):
    """Nodes and commanders log it at the join, not before."""
    async with asyncio.timeout(5), Commander() as commander:
        ended = asyncio.Event()
        commander.call_handler(fail(ValueError()).at_done(lambda _: ended.set()), claim=True)
        await ended.wait()
        await settle_loop()
        assert caplog.records == []
    assert len(caplog.records) == 1


async def test_a_claimed_failure_that_is_taken_late_is_not_kept():
    """A long-lived commander drops a claimed failure once it has been awaited."""
    async with asyncio.timeout(5), Commander() as commander:
        for _ in range(3):
            ended = asyncio.Event()
            node = fail(ValueError()).at_done(lambda _, ended=ended: ended.set())
            commander.call_handler(node, claim=True)
            await ended.wait()
            await settle_loop()
            with pytest.raises(ValueError):
                await node
        assert not record_of(commander).failures  # white box: no public API shows this
