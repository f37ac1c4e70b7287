"""T3: a node's callbacks are part of the node."""

import asyncio
import gc
import weakref
from contextvars import ContextVar

import pytest
from support.nodes import Idle, fail, give
from support.waiting import settle_loop

from anabranch.commander import Commander, NodeClosed, current_node
from anabranch.handlers import handler

pytestmark = pytest.mark.contract("T3")

VARIABLE = ContextVar("VARIABLE", default="outside")


async def test_a_node_is_not_done_before_its_callbacks():
    """While an async callback waits, the node is joining. Its awaiter and its parent wait."""
    entered, release, order = asyncio.Event(), asyncio.Event(), []

    async def slow(node):
        entered.set()
        await release.wait()
        order.append("callback")

    @handler
    async def parent(node):
        node.call_handler(give().at_end(slow))

    async def wait_for(node):
        await node
        order.append("awaiter")

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(parent())
        await entered.wait()
        (child,) = node.children
        waiter = asyncio.create_task(wait_for(child))
        await settle_loop()
        assert (child.state, node.state) == ("joining", "joining")
        release.set()
        await waiter
        await node
    assert order == ["callback", "awaiter"]


@pytest.mark.parametrize("is_async", [False, True])
async def test_result_and_error_can_be_read_while_callbacks_run(is_async):
    """Plain and async callbacks can read both. The state is still joining."""
    seen = []

    def read(node):
        seen.append((node.state, node.result, node.error))

    async def read_later(node):
        await asyncio.sleep(0)
        read(node)

    callback, error = (read_later if is_async else read), ValueError()
    async with asyncio.timeout(5), Commander() as commander:
        await commander.run(give(3).at_end(callback))
        with pytest.raises(ValueError):
            await commander.run(fail(error).at_exception(callback))
    assert seen == [("joining", 3, None), ("joining", None, error)]


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_node_takes_no_children_while_its_callbacks_run(is_async):
    """Jobs, handlers and awaits of unstarted nodes are refused."""
    refused = []

    def put(node):
        for start, child in ((node.put_job, Idle()), (node.call_handler, give())):
            with pytest.raises(NodeClosed, match="is ending"):
                start(child)
            refused.append(child.state)

    async def put_later(node):
        await asyncio.sleep(0)
        put(node)
        with pytest.raises(NodeClosed):
            await give()

    async with asyncio.timeout(5), Commander() as commander:
        await commander.run(give().at_end(put_later if is_async else put))
    assert refused == ["pending", "pending"]


async def test_a_callback_may_put_a_node_elsewhere():
    """A chain of rounds grows sideways: no round is below another."""
    depths = []

    def next_round(node):
        depths.append(len([*node.ancestors]))
        if len(depths) < 5:
            node.put_job(Idle().at_end(next_round), parent=node.commander)

    async with asyncio.timeout(5), Commander() as commander:
        commander.put_job(Idle().at_end(next_round))
    assert depths == [1] * 5


async def test_a_childs_final_callbacks_finish_before_the_parents_begin():
    """Async callbacks are included, over three generations and several children."""
    order = []

    def note(name):
        async def callback(node):
            order.append(f"{name} begins")
            await asyncio.sleep(0)
            order.append(f"{name} ends")

        return callback

    @handler
    async def root(node, depth):
        for number in range(2 if depth else 0):
            node.call_handler(root(depth - 1).at_done(note((depth - 1, number))))

    async with asyncio.timeout(5), Commander() as commander:
        await commander.run(root(2).at_done(note((2, 0))))
    assert len(order) == 2 * 7
    assert order[-2:] == ["(2, 0) begins", "(2, 0) ends"]
    for number in range(2):
        begins = order.index(f"(1, {number}) begins")
        assert (
            sum(line.startswith("(0, ") and line.endswith("ends") for line in order[:begins]) >= 2
        )


async def test_callbacks_run_in_the_order_in_which_they_were_added():
    """Plain, async, at_end and at_done callbacks share one order."""
    order = []

    def plain(name):
        return lambda node: order.append(name)

    def slow(name):
        async def callback(node):
            await asyncio.sleep(0)
            order.append(name)

        return callback

    async with asyncio.timeout(5), Commander() as commander:
        node = give().at_done(plain(1)).at_end(slow(2)).at_end(plain(3)).at_done(slow(4))
        await commander.run(node.at_exception(plain("never")).at_end(plain(5)))
    assert order == [1, 2, 3, 4, 5]


@pytest.mark.parametrize("with_child", [False, True])
async def test_callbacks_run_in_the_nodes_context(with_child):
    """Callbacks see the node as the current node, and the variables that its body set."""
    seen = []

    @handler
    async def body(node):
        VARIABLE.set("body")
        if with_child:
            node.call_handler(give())

    def plain(node):
        seen.append((current_node(), VARIABLE.get()))

    async def slow(node):
        await asyncio.sleep(0)
        plain(node)

    async with asyncio.timeout(5), Commander() as commander:
        node = body().at_end(plain).at_end(slow).at_done(plain).at_commander_end(plain)
        await commander.run(node)
    assert seen == [(node, "body")] * 4
    assert VARIABLE.get() == "outside"


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_callback_that_raises_fails_the_node_and_the_rest_still_run(is_async):
    """The awaiter receives the callback's error. at_exception does not run for it."""
    seen = []

    def bad(node):
        raise ValueError("in callback")

    async def bad_later(node):
        await asyncio.sleep(0)
        bad(node)

    async with asyncio.timeout(5), Commander() as commander:
        node = give(1).at_end(bad_later if is_async else bad)
        node.at_end(lambda _: seen.append("end")).at_done(lambda _: seen.append("done"))
        node.at_exception(lambda _: seen.append("exception"))
        with pytest.raises(ValueError, match="in callback") as caught:
            await commander.run(node)
        assert caught.value.__notes__ == [f"anabranch: failed in {node.path}"]
        assert (node.state, node.result) == ("failed", None)
    assert seen == ["end", "done"]


async def test_a_callbacks_failure_goes_the_way_of_any_other():
    """The node is not awaited, so its parent fails fast."""

    def bad(node):
        raise ValueError("in callback")

    @handler
    async def parent(node):
        node.call_handler(give().at_end(bad))
        await asyncio.Event().wait()

    async with asyncio.timeout(5), Commander() as commander:
        with pytest.raises(ValueError, match="in callback"):
            await commander.run(parent())


async def test_the_nodes_own_failure_outranks_a_callbacks(caplog):
    """Awaiters receive the node's failure. The callback's failure is logged."""

    def bad(node):
        raise KeyError("in callback")

    async with asyncio.timeout(5), Commander() as commander:
        node = fail(ValueError("in body")).at_exception(bad)
        with pytest.raises(ValueError, match="in body"):
            await commander.run(node)
    (record,) = caplog.records
    assert node.path in record.getMessage()
    assert isinstance(record.exc_info[1], KeyError)


async def test_two_callbacks_that_raise_lose_neither(caplog):
    """The node fails with the first error. The second is logged."""

    def bad(error):
        def callback(node):
            raise error

        return callback

    async with asyncio.timeout(5), Commander() as commander:
        node = give().at_end(bad(ValueError())).at_done(bad(KeyError()))
        with pytest.raises(ValueError):
            await commander.run(node)
    (record,) = caplog.records
    assert isinstance(record.exc_info[1], KeyError)


async def test_at_commander_end_is_exempt(caplog):
    """The callback does not delay the node's end. Its errors are logged and fail no node."""
    ran = []

    def bad(node):
        ran.append("bad")
        raise ValueError("at the commander's end")

    async with asyncio.timeout(5), Commander() as commander:
        node = give(1).at_commander_end(bad).at_commander_end(lambda _: ran.append("next"))
        assert await commander.run(node) == 1
        assert (node.state, ran) == ("completed", [])
    assert node.state == "completed"
    assert ran == ["bad", "next"]
    (record,) = caplog.records
    assert node.path in record.getMessage()
    assert isinstance(record.exc_info[1], ValueError)


async def test_only_nodes_with_at_commander_end_are_kept_until_then():
    """Of two finished nodes, only the one with such a callback is still alive."""
    async with asyncio.timeout(5), Commander() as commander:
        kept, gone = give().at_commander_end(print), give().at_end(print)
        references = weakref.ref(kept), weakref.ref(gone)
        await commander.run(kept.at_commander_end(lambda _: None))
        await commander.run(gone)
        del kept, gone
        gc.collect()
        assert references[0]() is not None
        assert references[1]() is None
    gc.collect()
    assert references[0]() is None
