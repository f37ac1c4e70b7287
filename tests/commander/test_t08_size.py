"""T8: memory is the only limit of depth and width."""

import asyncio
import gc
import random
import sys
import time

import pytest
from support.nodes import cancel_running, wait_for
from support.waiting import settle_loop

from anabranch.commander import Commander
from anabranch.handlers import handler
from anabranch.jobs import Job

pytestmark = [pytest.mark.contract("T8"), pytest.mark.usefixtures("light_heap")]
LARGE = 100_000


@handler
async def link(node, depth):
    """Extend a chain whose parents only join."""
    if depth:
        node.call_handler(link(depth - 1))
    return depth


@handler
async def asking(node, depth):
    """Extend a chain whose parents await their child."""
    return 1 + await asking(depth - 1) if depth else 0


@handler
async def handing_on(node, depth):
    """Extend a chain whose parents return their child."""
    return handing_on(depth - 1) if depth else "the end"


class Link(Job[int]):
    depth: int

    async def task(self):
        return 1 + await self.put_job(Link(self.depth - 1)) if self.depth else 0


@handler
async def failing(node, depth):
    if not depth:
        raise ValueError("at the bottom")
    node.call_handler(failing(depth - 1))


@pytest.fixture(autouse=True)
def no_collections():
    """Disable the collector: full collections of a growing heap would take most of the time."""
    gc.disable()
    yield
    gc.enable()
    gc.collect()


@pytest.fixture(autouse=True)
def default_recursion_limit():
    """Set the default recursion limit, which the contract assumes."""
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(1_000)
    yield
    sys.setrecursionlimit(before)


@pytest.mark.parametrize("kind", [link, asking], ids=["joining", "awaiting"])
async def test_a_chain_100_000_deep_completes(kind):
    """Parents join or await their child."""
    async with asyncio.timeout(60), Commander(slow_after=None) as commander:
        assert await commander.run(kind(LARGE)) == LARGE


@pytest.mark.parametrize("kind", [handing_on, Link], ids=["returning", "jobs"])
async def test_a_deep_chain_of_any_kind_completes(kind):
    """Parents return their child, or the chain consists of jobs."""
    async with asyncio.timeout(60), Commander(slow_after=None) as commander:
        assert await commander.run(kind(20_000)) in ("the end", 20_000)


async def test_a_chain_of_jobs_completes_at_a_limit_of_one():
    """Each job waits for the next one and lends it its slot."""
    async with asyncio.timeout(60), Commander(max_concurrency=1, slow_after=None) as commander:
        assert await commander.run(Link(20_000)) == 20_000


async def test_a_failure_climbs_100_000_nodes():
    """The failure passes joining parents from the bottom to the awaiter of the top."""
    async with asyncio.timeout(60), Commander(slow_after=None) as commander:
        with pytest.raises(ValueError, match="at the bottom") as caught:
            await commander.run(failing(LARGE))
    assert len(caught.value.__notes__) == 1


async def test_a_cancel_reaches_100_000_nodes_in_a_chain():
    """Each node ends cancelled."""
    release, running, ended = asyncio.Event(), asyncio.Event(), []

    @handler
    async def chain(node, depth):
        if depth:
            node.call_handler(chain(depth - 1))
        else:
            running.set()
            await release.wait()

    async with asyncio.timeout(60), Commander(slow_after=None) as commander:
        node = commander.call_handler(chain(LARGE).at_terminate(lambda _: ended.append("top")))
        await cancel_running(node, running, "all")
    assert ended == ["top"]


async def test_async_callbacks_climb_a_deep_chain():
    """Each callback runs in a separate task, so the stack does not grow."""
    ended = []

    async def callback(node):
        ended.append(1)

    @handler
    async def chain(node, depth):
        if depth:
            node.call_handler(chain(depth - 1).at_end(callback))

    async with asyncio.timeout(60), Commander(slow_after=None) as commander:
        await commander.run(chain(20_000))
    assert len(ended) == 20_000


ORDERS = {
    "in order": range(LARGE),
    "reversed": range(LARGE - 1, -1, -1),
    "shuffled": random.Random(7).sample(range(LARGE), LARGE),
}


@pytest.mark.parametrize("order", ORDERS)
async def test_a_node_with_100_000_children_completes_in_whatever_order(order):
    """The parent ends after the last child. benchmarks/tree.py compares the orders."""

    @handler
    async def parent(node, events):
        for event in events:
            node.call_handler(wait_for(event))

    async with asyncio.timeout(60), Commander(slow_after=None) as commander:
        events = [asyncio.Event() for _ in range(LARGE)]
        node = commander.call_handler(parent(events))
        await settle_loop()
        assert len(node.children) == LARGE
        for number in ORDERS[order]:
            events[number].set()
        await node
        assert node.children == ()


async def test_drain_of_many_children_is_not_quadratic():
    """Children end one per turn. drain examines each end once."""
    release = [asyncio.Event() for _ in range(20_000)]

    @handler
    async def chained(node, index):
        await release[index].wait()
        if index + 1 < len(release):
            asyncio.get_running_loop().call_later(0, release[index + 1].set)

    async with asyncio.timeout(60), Commander(slow_after=None) as commander:
        for index in range(len(release)):
            commander.call_handler(chained(index))
        await settle_loop()
        release[0].set()
        started = time.process_time()
        assert await commander.drain()
        assert time.process_time() - started < 4


async def test_a_failing_child_among_many_brings_all_down():
    """fail_fast cancels each of the others, and the parent fails once."""
    release = asyncio.Event()

    @handler
    async def parent(node):
        for _ in range(20_000):
            node.call_handler(wait_for(release))
        await settle_loop()
        node.call_handler(failing(0))

    async with asyncio.timeout(60), Commander(slow_after=None) as commander:
        with pytest.raises(ValueError, match="at the bottom"):
            await commander.run(parent())


# --- the path


async def test_a_path_names_each_node_and_its_number():
    """The path starts at the commander. Each segment has a class or function name and a number."""
    paths = []

    class Shout(Job[None]):
        async def task(self):
            await upper()

    @handler
    async def upper(node):
        paths.append(node.path)

    async with asyncio.timeout(5), Commander() as commander:
        assert commander.path == "Commander"
        await commander.run(Shout())
    assert paths == ["Commander/Shout#1/upper#2"]


@pytest.mark.parametrize("depth", [29, 30, 31, 32, 500])
async def test_the_middle_of_a_long_path_is_left_out(depth):
    """Beyond 32 segments, the path shows 16 at each end and the number left out."""
    paths = []

    @handler
    async def chain(node, depth):
        if depth:
            await chain(depth - 1)
        else:
            paths.append(node.path)

    async with asyncio.timeout(5), Commander() as commander:
        await commander.run(chain(depth))
    segments = paths[0].split("/")
    assert segments[0] == "Commander"
    assert segments[-1] == f"chain#{depth + 1}"
    if depth + 2 <= 32:
        assert len(segments) == depth + 2
    else:
        assert len(segments) == 33
        assert segments[16] == f"...{depth + 2 - 32} more..."


async def test_a_path_can_be_asked_for_before_and_after():
    """Outside a tree the path is the name alone. After the end it stays the same."""
    node = link(0)
    assert node.path == "link"
    async with asyncio.timeout(5), Commander() as commander:
        await commander.run(node)
    assert node.path == "Commander/link#1"
