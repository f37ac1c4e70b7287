"""T1: which nodes may be awaited from where, and nodes that a body returns."""

import asyncio

import pytest
from support.nodes import Idle, wait_for

from anabranch.commander import Commander, current_node
from anabranch.handlers import handler
from anabranch.jobs import Job

pytestmark = pytest.mark.contract("T1")


async def test_awaiting_itself_is_an_error():
    """The error is raised in the body, in a task of the body and in a final callback."""
    errors = []

    async def await_it(node):
        try:
            await node
        except RuntimeError as error:
            errors.append(str(error))

    @handler
    async def own(node):
        await await_it(node)
        await asyncio.create_task(await_it(node))

    async with asyncio.timeout(5), Commander() as commander:
        await commander.run(own().at_end(await_it))
    assert len(errors) == 3
    assert all("itself" in error for error in errors)


async def test_awaiting_an_ancestor_is_an_error():
    """Awaiting the parent, the grandparent or the commander could never end."""
    errors = []

    @handler
    async def grandchild(node):
        for ancestor in node.ancestors:
            with pytest.raises(RuntimeError, match="ancestor"):
                await ancestor
            errors.append(ancestor)

    @handler
    async def child(node):
        await grandchild()

    @handler
    async def root(node):
        await child()

    async with asyncio.timeout(5), Commander() as commander:
        await commander.run(root())
    assert len(errors) == 3
    assert errors[-1] is commander


async def test_awaiting_an_older_node_that_is_no_ancestor_is_fine():
    """A sibling or an uncle has a lower number, and can be awaited like any other node."""

    @handler
    async def give(node, release):
        await release.wait()
        return "given"

    @handler
    async def take(node, *others):
        return [await other for other in others]

    @handler
    async def root(node, uncle, release):
        sibling = node.call_handler(give(release))
        taker = node.call_handler(take(uncle, sibling))
        release.set()
        return await taker

    async with asyncio.timeout(5), Commander() as commander:
        release = asyncio.Event()
        uncle = commander.call_handler(give(release))
        assert await commander.run(root(uncle, release)) == ["given", "given"]


async def test_awaiting_from_another_loop_is_an_error():
    """A node of one loop cannot be awaited on the loop of another thread."""
    caught = []

    def elsewhere(node):
        async def main():
            try:
                await node
            except RuntimeError as error:
                caught.append(str(error))

        asyncio.run(main())

    async with asyncio.timeout(5), Commander() as commander:
        release = asyncio.Event()
        node = commander.call_handler(wait_for(release))
        await asyncio.to_thread(elsewhere, node)
        release.set()
    assert len(caught) == 1
    assert "another loop" in caught[0]


async def test_awaiting_an_unstarted_node_starts_it_as_a_child_of_the_current_node():
    """The await calls a handler or puts a job, at any depth below the body."""
    seen = []

    @handler
    async def child(node):
        seen.append(node.parent)

    class Child(Job[None]):
        async def task(self):
            seen.append(self.parent)

    @handler
    async def parent(node):
        async def helper():
            assert current_node() is node
            await child()

        await child()
        await Child()
        await asyncio.create_task(helper())
        await asyncio.gather(child(), Child())

    async with asyncio.timeout(5), Commander() as commander:
        node = parent()
        await commander.run(node)
    assert len(seen) == 5
    assert {*seen} == {node}


async def test_awaiting_an_unstarted_node_outside_a_tree_is_an_error():
    """Before and after a commander's block the await is refused. The node stays unstarted."""
    job = Idle()
    with pytest.raises(RuntimeError, match="outside of a tree"):
        await job
    async with asyncio.timeout(5), Commander() as commander:
        commander.put_job(Idle())
    with pytest.raises(RuntimeError, match="outside of a tree"):
        await job
    assert job.state == "pending"


async def test_a_body_may_return_a_node():
    """The returned node runs as a child, and its result becomes the parent's."""
    parents = []

    @handler
    async def second(node):
        parents.append(node.parent)
        return "second"

    class First(Job[str]):
        async def task(self):
            return second()

    @handler
    async def started(node):
        return node.call_handler(second())

    async with asyncio.timeout(5), Commander() as commander:
        first, other = First(), started()
        assert await commander.run(first) == "second"
        assert await commander.run(other) == "second"
    assert parents == [first, other]


async def test_a_node_that_returns_itself_or_an_ancestor_fails():
    """The node would otherwise wait forever."""

    @handler
    async def circle(node, up):
        return node.parent if up else node

    async with asyncio.timeout(5), Commander() as commander:
        for up in (False, True):
            with pytest.raises(RuntimeError, match="could ever end"):
                await commander.run(circle(up))


async def test_a_node_of_another_commander_on_the_same_loop_may_be_awaited():
    """Waiting for a node of a second tree is not a cycle."""

    @handler
    async def give(node):
        return 7

    @handler
    async def take(node, other):
        return await other

    async with asyncio.timeout(5), Commander() as first, Commander() as second:
        given = first.call_handler(give())
        assert await second.run(take(given)) == 7
