"""T1: parents of nodes, joining, and nodes that may or may not enter."""

import asyncio
import threading

import pytest
from support.nodes import Idle, wait_for
from support.waiting import run_turns, settle_loop

from anabranch.commander import Commander, Node, NodeClosed
from anabranch.handlers import handler
from anabranch.jobs import Job

pytestmark = pytest.mark.contract("T1")


@handler
async def nothing(node):
    return None


class Plain(Node[str]):
    """A node that is neither a Job nor a Handler. `call_handler` accepts it too."""

    async def task(self):
        return "plain"


async def test_a_child_has_the_node_that_put_it_as_its_parent():
    """The parent is the node whose method put or called the child."""
    seen = {}

    class Parent(Job[None]):
        async def task(self):
            seen["handler"] = self.call_handler(nothing()).parent is self
            seen["job"] = self.put_job(Idle()).parent is self
            seen["plain"] = self.call_handler(Plain()).parent is self

    async with asyncio.timeout(5), Commander() as commander:
        top = commander.put_job(Parent())
        assert top.parent is commander
    assert seen == {"handler": True, "job": True, "plain": True}


async def test_parent_argument_puts_a_node_elsewhere_in_the_tree():
    """With `parent=` the node joins that parent, and the putter does not wait for it."""
    release = asyncio.Event()

    @handler
    async def putter(node):
        return node.call_handler(wait_for(release), parent=node.commander) and None

    async with asyncio.timeout(5), Commander() as commander:
        await commander.run(putter())
        (child,) = commander.children
        assert child.parent is commander
        release.set()


async def test_a_node_is_not_done_before_its_children():
    """After its body has returned, the node joins its child and its awaiter waits."""
    release, body_over = asyncio.Event(), asyncio.Event()

    @handler
    async def parent(node):
        node.call_handler(wait_for(release))
        body_over.set()
        return "result"

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(parent())
        await body_over.wait()
        await settle_loop()
        assert node.state == "joining"
        release.set()
        assert await node == "result"
        assert node.state == "completed"


async def test_a_node_is_not_done_before_its_body():
    """All children have ended and the body has not: the node is running."""
    release, child_over = asyncio.Event(), asyncio.Event()

    @handler
    async def parent(node):
        await nothing()
        child_over.set()
        await release.wait()

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(parent())
        await child_over.wait()
        assert node.children == ()
        assert node.state == "running"
        release.set()
        await node
        assert node.state == "completed"


async def test_a_joining_node_accepts_children_from_a_descendant():
    """A grandchild adds to the root after the root's body has returned. The root waits."""
    ended = []

    @handler
    async def late(node):
        ended.append("late")

    @handler
    async def below(node, root):
        assert root.state == "joining"
        root.call_handler(late())

    @handler
    async def root(node):
        node.call_handler(below(node))

    async with asyncio.timeout(5), Commander() as commander:
        node = root()
        node.at_done(lambda _: ended.append("root"))
        await commander.run(node)
    assert ended == ["late", "root"]


async def test_a_joining_node_accepts_children_from_any_task_on_its_loop():
    """A task outside the tree puts a handler and a job below a joining node."""
    release, body_over = asyncio.Event(), asyncio.Event()

    @handler
    async def parent(node):
        node.call_handler(wait_for(release))
        body_over.set()

    async with asyncio.timeout(5), Commander() as commander:
        node = commander.call_handler(parent())
        await body_over.wait()
        await settle_loop()

        async def stranger():
            return node.call_handler(nothing()), node.put_job(Idle())

        added = await asyncio.create_task(stranger())
        assert node.state == "joining"
        release.set()
        await node
        assert [each.state for each in added] == ["completed", "completed"]


@pytest.mark.parametrize("ending", ["completed", "failed", "cancelled"])
async def test_adding_to_a_done_node_raises_node_closed(ending):
    """The refused node is unchanged and can be put under another parent."""

    @handler
    async def parent(node):
        if ending == "failed":
            raise ValueError
        if ending == "cancelled":
            node.cancel()
            await asyncio.sleep(0)

    async with asyncio.timeout(5), Commander() as commander:
        done = commander.call_handler(parent(), claim=True)
        await asyncio.wait([asyncio.ensure_future(done)])
        assert done.state == ending
        job, call = Idle(), nothing()
        with pytest.raises(NodeClosed) as caught:
            done.put_job(job)
        assert caught.value.path == done.path
        with pytest.raises(NodeClosed):
            done.call_handler(call)
        assert (job.state, job.parent) == ("pending", None)
        commander.put_job(job)
        commander.call_handler(call)
    assert job.state == call.state == "completed"


async def test_adding_to_a_closed_commander_raises_node_closed():
    """The commander takes no children after its block."""
    async with asyncio.timeout(5), Commander() as commander:
        pass
    with pytest.raises(NodeClosed):
        commander.put_job(Idle())
    with pytest.raises(NodeClosed):
        commander.call_handler(nothing())


async def test_adding_to_a_node_outside_a_tree_is_refused():
    """A node without a commander cannot have children."""
    with pytest.raises(RuntimeError, match="not in a tree"):
        nothing().call_handler(nothing())
    with pytest.raises(RuntimeError, match="not in a tree"):
        Commander().put_job(Idle())


async def test_the_body_starts_on_a_later_turn():
    """Callbacks added after the starting call are in time."""
    seen = []

    @handler
    async def body(node):
        seen.append("body")

    class Body(Job[None]):
        async def task(self):
            seen.append("body")

    async with asyncio.timeout(5), Commander() as commander:
        for start, node in ((commander.call_handler, body()), (commander.put_job, Body())):
            seen.clear()
            assert start(node) is node
            assert (node.state, seen) == ("pending", [])
            node.at_start(lambda _: seen.append("start")).at_end(lambda _: seen.append("end"))
            await node
            assert seen == ["start", "body", "end"]


async def test_the_body_runs_in_an_asyncio_task_of_its_own():
    """`asyncio.current_task()` in a body is neither the putter's task nor another body's."""
    tasks = []

    @handler
    async def body(node):
        tasks.append(asyncio.current_task())

    async with asyncio.timeout(5), Commander() as commander:
        await commander.run(body())
        await commander.run(body())
    assert len({*tasks, asyncio.current_task()}) == 3


async def test_starting_a_node_twice_is_an_error():
    """Pending, running and ended nodes are refused, also under another parent."""

    @handler
    async def twice(node, release):
        await release.wait()

    async with asyncio.timeout(5), Commander() as commander:
        release = asyncio.Event()
        node, job = twice(release), Idle()
        other = commander.call_handler(wait_for(release))
        commander.call_handler(node)
        commander.put_job(job)
        for _ in range(3):
            with pytest.raises(RuntimeError, match="started before"):
                commander.call_handler(node)
            with pytest.raises(RuntimeError, match="started before"):
                other.put_job(job)
            await run_turns(1)
        release.set()
        await node
        with pytest.raises(RuntimeError, match="started before"):
            commander.call_handler(node)
        with pytest.raises(RuntimeError, match="started before"):
            await commander.run(job)


async def test_a_job_is_put_and_a_handler_is_called():
    """The wrong method raises a `TypeError` that names the right one, and starts nothing."""
    async with asyncio.timeout(5), Commander() as commander:
        job, call = Idle(), nothing()
        with pytest.raises(TypeError, match="put_job"):
            commander.call_handler(job)
        with pytest.raises(TypeError, match="call_handler"):
            commander.put_job(call)
        assert job.parent is call.parent is None


async def test_putting_from_another_loop_or_thread_is_an_error():
    """The error names the thread-safe call, with and without a loop in the thread."""
    caught = []

    def attempt(commander, node):
        try:
            commander.put_job(node)
        except RuntimeError as error:
            caught.append(error)

    async with asyncio.timeout(5), Commander() as commander:
        job = Idle()

        async def main():
            attempt(commander, job)

        for target in (lambda: attempt(commander, job), lambda: asyncio.run(main())):
            thread = threading.Thread(target=target)
            thread.start()
            await asyncio.to_thread(thread.join)
        assert len(caught) == 2
        assert all("put_job_threadsafe" in str(error) for error in caught)
        assert job.parent is None


async def test_children_are_the_unfinished_ones_in_the_order_they_were_put():
    """Nodes that have ended are not listed."""

    @handler
    async def parent(node, events):
        one, two, three = [node.call_handler(wait_for(event)) for event in events]
        assert node.children == (one, two, three)
        events[1].set()
        await two
        assert node.children == (one, three)
        events[0].set()
        await one
        assert node.children == (three,)
        events[2].set()

    async with asyncio.timeout(5), Commander() as commander:
        await commander.run(parent([asyncio.Event() for _ in range(3)]))
