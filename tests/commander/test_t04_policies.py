"""T4: fail_fast, collect and isolate, for failures of nodes without an awaiter."""

import asyncio
import logging

import pytest
from support.nodes import drop, fail, failure_notes, give, hang
from support.waiting import settle_loop

from anabranch.commander import Commander, quorum
from anabranch.handlers import handler
from anabranch.jobs import Job

pytestmark = pytest.mark.contract("T4")


async def test_fail_fast_cancels_the_other_children_and_the_body():
    """The parent waits for its children, then fails with the same exception."""
    order, error, running, release = [], ValueError(), asyncio.Event(), asyncio.Event()

    async def clean_up(name):
        try:
            await asyncio.Event().wait()
        finally:
            await release.wait()
            order.append(name)

    @handler
    async def sibling(node):
        running.set()
        await clean_up("sibling")

    @handler
    async def parent(node):
        node.call_handler(sibling().at_terminate(lambda _: order.append("terminated")))
        node.call_handler(fail(error, running))
        await clean_up("body")

    async with asyncio.timeout(5), Commander() as commander:
        node = parent()
        run = asyncio.create_task(commander.run(node))
        await settle_loop()
        assert (order, run.done()) == ([], False)
        release.set()
        with pytest.raises(ValueError) as caught:
            await run
        order.append("parent")
    assert caught.value is error
    assert node.error is error
    assert sorted(order[:3]) == ["body", "sibling", "terminated"]
    assert order[3] == "parent"


async def test_fail_fast_is_the_default_for_nodes_and_cancels_children_of_a_failing_body():
    """A failure of the body cancels its children too."""
    ended = []

    @handler
    async def parent(node):
        running = asyncio.Event()
        node.call_handler(hang(running).at_terminate(lambda _: ended.append("child")))
        await running.wait()
        raise ValueError

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ValueError):
            await commander.run(parent())
    assert ended == ["child"]


@pytest.mark.parametrize("policy", ["fail_fast", quorum(1)])
async def test_what_is_put_below_a_failing_body_does_not_run(policy):
    """A child's clean-up starts a sibling. Both are cancelled."""

    @handler
    async def careful(node):
        try:
            await asyncio.Event().wait()
        finally:
            later.append(node.call_handler(hang(), parent=node.parent))

    @handler
    async def parent(node):
        node.call_handler(careful())
        await settle_loop()
        raise ValueError

    later = []
    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ValueError):
            await commander.run(parent(), policy=policy)
    assert [node.state for node in later] == ["cancelled"]


@pytest.mark.parametrize("n", [1, 2])
async def test_the_failure_of_a_body_counts_under_a_quorum_whether_it_is_met_or_not(n):
    """The remaining children are cancelled. The node fails with the body's exception."""

    @handler
    async def parent(node):
        children.extend(node.call_handler(each) for each in (give(), hang()))
        await settle_loop()
        raise ValueError

    children = []
    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ValueError):
            await commander.run(parent(), policy=quorum(n))
    assert [node.state for node in children] == ["completed", "cancelled"]


async def test_fail_fast_goes_up_the_tree_with_the_same_exception(caplog):
    """The failure passes parents whose bodies have returned. The commander logs it."""
    error = ValueError()

    @handler
    async def parent(node, depth):
        node.call_handler(parent(depth - 1) if depth else fail(error))

    async with asyncio.timeout(5), Commander() as commander:
        top = commander.call_handler(parent(5))
        below = commander.call_handler(give("isolated"))
    assert top.error is error
    assert below.state == "completed"
    assert len(caplog.records) == 1
    assert len(failure_notes(error)) == 1
    assert failure_notes(error)[0].count("parent#") == 6


async def test_a_body_cancelled_by_fail_fast_cannot_complete():
    """A body that swallows the CancelledError and returns fails all the same."""

    @handler
    async def parent(node):
        node.call_handler(fail(ValueError()))
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "swallowed"

    async with asyncio.timeout(5), Commander() as commander:
        node = parent()
        with pytest.raises(ValueError):
            await commander.run(node)
        assert (node.state, node.result) == ("failed", None)


async def test_of_two_failures_under_fail_fast_the_second_is_logged(caplog):
    """The parent fails with the first failure only."""
    release = asyncio.Event()

    @handler
    async def stubborn(node):
        try:
            await asyncio.Event().wait()
        finally:
            raise KeyError("second")

    @handler
    async def parent(node):
        node.call_handler(stubborn().at_start(lambda _: release.set()))
        node.call_handler(fail(ValueError("first"), release))

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ValueError, match="first"):
            await commander.run(parent())
    (record,) = caplog.records
    assert "stubborn" in record.getMessage()
    assert isinstance(record.exc_info[1], KeyError)


async def test_collect_lets_the_others_finish():
    """A failing child or body does not disturb children that still run."""
    release, ended = asyncio.Event(), []

    @handler
    async def slow(node):
        await release.wait()
        ended.append("slow")

    @handler
    async def parent(node):
        node.call_handler(slow())
        bad = node.call_handler(fail(ValueError()))
        bad.at_done(lambda _: loop.call_soon(release.set))
        await release.wait()
        ended.append("body")

    loop = asyncio.get_running_loop()
    async with asyncio.timeout(5), Commander() as commander:
        job = commander.call_handler(parent(), policy="collect", claim=True)
        with pytest.raises(ExceptionGroup):
            await job
    assert sorted(ended) == ["body", "slow"]


async def test_collect_always_raises_an_exception_group():
    """One failure is grouped too. The members are the failures themselves."""
    errors = [ValueError(1), KeyError(2), ValueError(3)]

    @handler
    async def parent(node, errors):
        for error in errors:
            node.call_handler(fail(error))

    async with asyncio.timeout(5), Commander() as commander:
        for some in (errors[:1], errors):
            with pytest.raises(ExceptionGroup) as caught:
                await commander.run(parent(some), policy="collect")
            assert [*caught.value.exceptions] == some


async def test_collect_adds_the_bodys_own_failure_to_the_group():
    """The body's failure comes before those of the children."""
    own, other = ValueError("body"), ValueError("child")

    @handler
    async def parent(node):
        node.call_handler(fail(other))
        raise own

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ExceptionGroup) as caught:
            await commander.run(parent(), policy="collect")
    assert [*caught.value.exceptions] == [own, other]


async def test_collect_counts_no_failure_that_somebody_awaited():
    """The awaiters handle those failures, and the node completes."""

    @handler
    async def parent(node):
        await drop(fail(ValueError()))
        return "unharmed"

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(parent(), policy="collect") == "unharmed"


async def test_isolate_records_the_failure_and_goes_on(caplog):
    """The failure is logged. The body, the other children and the result are unaffected."""
    error = ValueError()

    @handler
    async def parent(node):
        node.call_handler(fail(error))
        other = node.call_handler(give("unharmed"))
        return await other

    async with asyncio.timeout(5), Commander() as commander:
        assert await commander.run(parent(), policy="isolate") == "unharmed"
    (record,) = caplog.records
    assert record.levelno == logging.ERROR
    assert record.exc_info[1] is error
    assert "fail#" in record.getMessage()


async def test_isolate_is_the_default_of_the_commander(caplog):
    """A top-level failure ends neither the block nor other nodes."""
    async with asyncio.timeout(5), Commander() as commander:
        commander.call_handler(fail(ValueError()))
        other = commander.call_handler(give(1))
        await settle_loop()
    assert other.state == "completed"
    assert len(caplog.records) == 1


async def test_a_commander_may_fail_fast(caplog):
    """The other nodes end first, then the block raises the failure without a group."""
    error, running, ended = ValueError(), asyncio.Event(), []

    async with asyncio.timeout(5):
        with pytest.raises(ValueError) as caught:
            async with Commander(policy="fail_fast") as commander:
                commander.call_handler(hang(running).at_terminate(lambda _: ended.append(1)))
                commander.call_handler(fail(error, running))
                await asyncio.Event().wait()
        assert caught.value is error
        assert ended == [1]
        assert asyncio.current_task().cancelling() == 0
    assert caplog.records == []


async def test_a_commander_may_collect():
    """The block raises a group of the failures without an awaiter."""
    error = ValueError()
    async with asyncio.timeout(5):
        with pytest.raises(ExceptionGroup) as caught:
            async with Commander(policy="collect") as commander:
                commander.call_handler(fail(error))
                assert await commander.run(give(1)) == 1
    assert [*caught.value.exceptions] == [error]


async def test_policy_is_an_argument_of_the_put_and_an_attribute_of_the_class():
    """The attribute sets the default, and the argument overrides it."""

    class Gathers(Job[None]):
        policy = "collect"

        async def task(self):
            self.call_handler(fail(ValueError()))

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ExceptionGroup):
            await commander.run(Gathers())
        with pytest.raises(ValueError):
            await commander.run(Gathers(), policy="fail_fast")


async def test_an_unknown_policy_is_refused_with_the_list_of_those_there_are():
    """A class, a put and a commander refuse it, and start no node."""
    with pytest.raises(ValueError, match=r"fail_fast.*collect.*isolate"):
        Commander(policy="fail_slow")
    with pytest.raises(ValueError, match="fail_slow"):

        class Bad(Job[None]):
            policy = "fail_slow"

    async with asyncio.timeout(5), Commander() as commander:
        node = give()
        with pytest.raises(ValueError, match="fail_slow"):
            commander.call_handler(node, policy="fail_slow")
        assert node.parent is None
