"""T5: cancelling a node cancels its whole subtree, and children end first."""

import asyncio

import pytest
from support.nodes import SlowCleanup, cancel_running, give, hang
from support.waiting import run_turns, settle_loop

from anabranch.commander import Commander, NodeCancelled
from anabranch.commander._cancel import NODES_PER_TURN
from anabranch.commander._record import record_of
from anabranch.handlers import handler
from anabranch.jobs import Job

pytestmark = pytest.mark.contract("T5")


@handler
async def tree(node, depth, width, leaves):
    """Return a tree of waiting bodies. `leaves` counts down as its leaves start."""
    for _ in range(width if depth else 0):
        node.call_handler(tree(depth - 1, width, leaves))
    if not depth:
        leaves.count_down()
    await asyncio.Event().wait()


class Latch:
    """An event that is set after a count of calls."""

    def __init__(self, count):
        self.count = count
        self.open = asyncio.Event()

    def count_down(self):
        self.count -= 1
        if not self.count:
            self.open.set()


def everything_below(node):
    return [each for child in node.children for each in (child, *everything_below(child))]


async def test_cancel_marks_and_ends_the_whole_subtree():
    """Every descendant ends cancelled, and no other node does."""
    async with asyncio.timeout(5), Commander() as commander:
        latch = Latch(2**4 + 1)
        other = commander.call_handler(tree(0, 0, latch))
        top = commander.call_handler(tree(4, 2, latch))
        await latch.open.wait()
        below = everything_below(top)
        assert len(below) == 30
        top.cancel("all")
        with pytest.raises(NodeCancelled):
            await top
        assert {node.state for node in (top, *below)} == {"cancelled"}
        assert {node.error.reason for node in below} == {"all"}
        assert other.state == "running"
        other.cancel()


async def test_children_end_before_their_parents():
    """A child's at_terminate runs before its parent's, at any depth."""
    ended = []
    async with asyncio.timeout(5), Commander() as commander:
        latch = Latch(3**3)
        top = commander.call_handler(tree(3, 3, latch))
        await latch.open.wait()
        for node in (top, *everything_below(top)):
            node.at_terminate(ended.append)
        top.cancel()
        with pytest.raises(NodeCancelled):
            await top
    assert len(ended) == 40
    place = {node: index for index, node in enumerate(ended)}
    assert all(place[node] < place[node.parent] for node in ended[:-1])


async def test_bodies_are_told_deepest_first():
    """The CancelledError is raised in the leaf first and in the root last."""
    told, running = [], asyncio.Event()

    @handler
    async def chain(node, depth):
        if depth:
            node.call_handler(chain(depth - 1))
        else:
            running.set()
        try:
            await asyncio.Event().wait()
        finally:
            told.append(depth)

    async with asyncio.timeout(5), Commander() as commander:
        top = commander.call_handler(chain(5))
        await running.wait()
        top.cancel()
    assert told == [0, 1, 2, 3, 4, 5]


async def test_a_joining_parent_waits_for_its_childrens_clean_up():
    """A slow clean-up keeps every ancestor open."""
    child = SlowCleanup()

    @handler
    async def slow(node):
        await child.hang()

    @handler
    async def parent(node):
        node.call_handler(slow())

    async with asyncio.timeout(5), Commander() as commander:
        top = commander.call_handler(parent())
        await child.running.wait()
        top.cancel()
        await child.cleaning.wait()
        assert top.state == "joining"
        child.release.set()
        with pytest.raises(NodeCancelled):
            await top


async def test_children_added_meanwhile_are_cancelled_before_their_body_runs():
    """The body's clean-up or outside code adds jobs and handlers, awaited or not."""
    ran, added, awaited = [], [], []

    @handler
    async def late(node):
        ran.append(node)

    class Late(Job[None]):
        async def task(self):
            ran.append(self)

    @handler
    async def parent(node, running):
        running.set()
        try:
            await asyncio.Event().wait()
        finally:
            added.append(node.call_handler(late().at_start(ran.append)))
            added.append(node.put_job(Late()))
            try:
                await late()
            except asyncio.CancelledError as error:
                awaited.append(error)

    async with asyncio.timeout(5), Commander() as commander:
        running = asyncio.Event()
        node = commander.call_handler(parent(running))
        await running.wait()
        node.cancel()
        added.append(node.put_job(Late()))
        with pytest.raises(NodeCancelled):
            await node
    assert ran == []
    assert [each.state for each in added] == ["cancelled"] * 3
    assert len(awaited) == 1


async def test_a_pending_node_runs_at_terminate_without_at_start():
    """The node is in its first turn, in the queue of a limit, or between two attempts."""
    seen = []

    class Idle(Job[None]):
        async def task(self):
            seen.append("body")

    class Hang(Job[None]):
        async def task(self):
            await asyncio.Event().wait()

    async with asyncio.timeout(5), Commander(max_concurrency=1) as commander:
        holder = commander.put_job(Hang())
        await settle_loop()
        queued = commander.put_job(Idle())
        called = commander.call_handler(give())
        for node in (queued, called):
            node.at_start(lambda _: seen.append("start"))
            node.at_terminate(lambda _: seen.append("terminate"))
        await settle_loop()
        queued.cancel()
        with pytest.raises(NodeCancelled):
            await queued
        fresh = commander.call_handler(give()).at_terminate(lambda _: seen.append("terminate"))
        fresh.at_start(lambda _: seen.append("start")).cancel()
        with pytest.raises(NodeCancelled):
            await fresh
        assert holder.state == "running"
        holder.cancel()
    assert called.state == "completed"
    assert seen == ["start", "terminate", "terminate"]


async def test_cancelling_a_done_or_unstarted_node_does_nothing():
    """The done node keeps its result. The unstarted one is cancelled when it enters a tree."""
    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(give(1))
        assert await node == 1
        node.cancel()
        assert (node.state, await node) == ("completed", 1)


async def test_a_node_cancelled_before_it_was_put_never_runs():
    """The unstarted node stores the cancel."""
    ran = []

    @handler
    async def body(node):
        ran.append(node)

    async with asyncio.timeout(5), Commander() as commander:
        node = body()
        node.cancel("too early")
        with pytest.raises(NodeCancelled, match="too early"):
            await commander.run(node)
    assert ran == []


async def test_cancelling_a_node_in_its_final_callbacks_ends_it():
    """A waiting async callback is cancelled, so the node does not hang."""
    entered = asyncio.Event()

    async def stuck(node):
        entered.set()
        await asyncio.Event().wait()

    async with asyncio.timeout(5), Commander() as commander:
        seen = []
        node = give().at_end(stuck).at_done(lambda _: seen.append("done"))
        commander.call_handler(node)
        await cancel_running(node, entered, "stuck")
    assert seen == ["done"]


async def test_cancelling_from_a_childs_callback_reaches_the_parent():
    """The parent ends cancelled once, although the tree is reporting the child's end."""
    seen = []

    @handler
    async def parent(node):
        child = node.call_handler(give())
        child.at_end(lambda each: each.parent.cancel("by the child"))

    async with asyncio.timeout(5), Commander() as commander:
        node = parent().at_terminate(lambda _: seen.append("terminate"))
        node.at_end(lambda _: seen.append("end"))
        with pytest.raises(NodeCancelled, match="by the child"):
            await commander.run(node)
    assert seen == ["terminate"]


# --- many nodes


@handler
async def fan(node, count):
    """Await `count` hanging children at once."""
    await asyncio.gather(*(node.call_handler(hang(), timeout=3600) for _ in range(count)))


@handler
async def branch(node, depth):
    """Await a binary tree of nodes like this one with `depth` levels below it."""
    await asyncio.gather(*(branch(depth - 1) for _ in range(2 if depth else 0)), hang())


class Queued(Job[None]):
    async def task(self):
        await asyncio.Event().wait()


@handler
async def queue(node, count):
    for _ in range(count):
        node.put_job(Queued())


def records_below(record):
    found, stack = [], [record]
    while stack:
        found.append(stack.pop())
        stack += found[-1].unfinished_children
    return found


@pytest.mark.parametrize("starts", [False, True])
@pytest.mark.parametrize("make", [lambda: fan(4_000), lambda: branch(10), lambda: queue(4_000)])
async def test_a_cancel_of_many_nodes_is_spread_over_the_turns_of_the_loop(make, starts):
    """A turn marks, cancels and ends a bounded number of nodes, started or unstarted."""
    async with asyncio.timeout(60), Commander(max_concurrency=3, slow_after=None) as commander:
        top = make()
        commander.call_handler(top, claim=True)
        await (settle_loop() if starts else run_turns(3))
        records = records_below(record_of(top))
        assert len(records) > 4_000 or not starts
        top.cancel("enough")
        most, last = [0, 0], [0, 0]
        while top.state != "cancelled":
            seen = [0, 0]
            for record in records:
                seen[0] += record.cancel_reason is not None
                seen[1] += record.state == "cancelled"
            most = [max(most[at], seen[at] - last[at]) for at in (0, 1)]
            last = seen
            await asyncio.sleep(0)
        assert max(most) <= 2 * NODES_PER_TURN
        assert {record.cancel_reason for record in records} == {"enough"}
        assert commander._tree.sweep is commander._tree.marking is None
        with pytest.raises(NodeCancelled):
            await top


@pytest.mark.parametrize(("depth", "width"), [(5, 4), (1, 5 * NODES_PER_TURN)])
@pytest.mark.parametrize("how", ["gather", "one by one"])
async def test_of_many_nodes_each_body_is_cancelled_once_and_sees_no_other_end(depth, width, how):
    """Bodies whose children end turns earlier are included. No new node starts, none is left."""
    seen = []

    @handler
    async def parent(node, depth):
        try:
            children = [node.call_handler(parent(depth - 1)) for _ in range(width if depth else 0)]
            if how == "gather":
                await asyncio.gather(*children)
            for child in reversed(children):
                await child
            await asyncio.Event().wait()
        except BaseException as error:
            seen.append(type(error))
            node.call_handler(give().at_start(lambda _: seen.append("started")))
            await run_turns(20 if depth else 0)
            seen.append("cleaned up")
            raise

    async with asyncio.timeout(60), Commander(slow_after=None) as commander:
        top = commander.call_handler(parent(depth))
        await settle_loop()
        count = len(records_below(record_of(top)))
        assert count > 2 * NODES_PER_TURN
        top.cancel()
    assert seen.count(asyncio.CancelledError) == seen.count("cleaned up") == count
    assert len(seen) == 2 * count


async def test_the_rest_of_a_tree_goes_on_while_many_nodes_are_cancelled():
    """Jobs under other parents start in order after the cancel has marked its nodes."""
    order = []

    class Note(Job[None]):
        number: int

        async def task(self):
            order.append(self.number)

    async with asyncio.timeout(60), Commander(slow_after=None) as commander:
        top = commander.call_handler(fan(5 * NODES_PER_TURN))
        await settle_loop()
        top.cancel()
        for number in range(10):
            commander.put_job(Note(number))
            await run_turns(1)
    assert order == [*range(10)]


async def test_a_commander_s_cancel_of_many_nodes_ends_its_block():
    """The block's task is cancelled as usual. A second cancel changes nothing."""
    with pytest.raises(NodeCancelled, match="enough"):
        async with asyncio.timeout(60), Commander(slow_after=None) as commander:
            top = commander.call_handler(fan(5 * NODES_PER_TURN))
            await settle_loop()
            commander.cancel("enough")
            await run_turns(2)
            top.cancel("again")
            await top
    assert top.state == "cancelled"
    assert asyncio.current_task().cancelling() == 0
