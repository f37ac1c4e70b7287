"""T11: the CPU time of each node's own steps."""

import asyncio
import gc
from time import thread_time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.waiting import settle_loop

from anabranch.commander import Commander, Retry
from anabranch.handlers import handler
from anabranch.jobs import Job

pytestmark = pytest.mark.contract("T11")

ENDS = ("completed", "failed", "cancelled")


@pytest.fixture(autouse=True)
def _no_collector():
    """Disable the collector: in a large process a collection takes longer than these tests."""
    gc.disable()
    yield
    gc.enable()


def burn(seconds: float, seen: list[float]) -> None:
    """Compute for the given CPU time, and record the actual time."""
    begun = thread_time()
    while thread_time() - begun < seconds:
        pass
    seen.append(thread_time() - begun)


class Work(Job[None]):
    """A job that burns `parts` on separate turns. It may put a child, fail or wait."""

    def __init__(self, *parts, child=None, end="completed"):
        super().__init__()
        self.parts, self.child, self.end = parts, child, end
        self.seen = []

    async def task(self):
        if self.child is not None:
            self.put_job(self.child)
        for part in self.parts:
            burn(part, self.seen)
            await asyncio.sleep(0)
        if self.end == "failed":
            raise ValueError("it fails")
        if self.end == "cancelled":
            await asyncio.Event().wait()


async def cpu_of(work, *others, cancel=False, **options):
    """Run `work` in a tree. Return the CPU time in the last events of it and of `others`."""
    async with asyncio.timeout(30):
        async with Commander(cpu_time=True, slow_after=None) as commander:
            events = commander.events(ENDS)
            commander.put_job(work, **options)
            if cancel:
                await settle_loop()
                work.cancel()
        ended = {event.node_id: event.cpu async for event in events}
    return [ended[each.node_id] for each in (work, *others)]


times = st.lists(st.sampled_from([0.0, 0.001, 0.003]), max_size=4)


@given(times, times, st.sampled_from(ENDS), st.sampled_from([None, 1]))
@settings(max_examples=25, deadline=None)
def test_a_nodes_cpu_time_is_that_of_its_own_steps(mine, childs, end, limit):
    """Any end counts. A child's steps between its own do not, also under a limit."""
    child = Work(*childs)
    work = Work(*mine, child=child, end=end)

    async def main():
        return await cpu_of(work, child, cancel=end == "cancelled")

    for each, cpu in zip((work, child), asyncio.run(main()), strict=True):
        assert cpu >= sum(each.seen)
    assert work.state == end


async def test_a_nodes_cpu_time_is_not_its_childs():
    """The child burns much more CPU time than its parent may show."""
    child = Work(0.1)
    parent = Work(0.001, child=child)
    own, below = await cpu_of(parent, child)
    assert sum(parent.seen) <= own < sum(child.seen) <= below


async def test_a_sleeping_node_takes_next_to_nothing():
    """The CPU time of other nodes is not included."""

    async def sleep(node):
        await asyncio.sleep(0.01)

    sleeper, busy = handler(sleep)(), Work(0.1)
    async with asyncio.timeout(30):
        async with Commander(cpu_time=True, slow_after=None) as commander:
            events = commander.events(ENDS)
            commander.call_handler(sleeper)
            commander.put_job(busy)
        ended = {event.node_id: event.cpu async for event in events}
    assert 0 <= ended[sleeper.node_id] < sum(busy.seen) <= ended[busy.node_id]


async def test_all_attempts_count_and_so_do_async_final_callbacks():
    """Three attempts fail, then a callback computes in two steps."""
    work = Work(0.001, end="failed")
    called = []

    async def late(node):
        burn(0.002, called)
        await asyncio.sleep(0)
        burn(0.002, called)

    work.at_exception(late)
    (cpu,) = await cpu_of(work, retry=Retry(attempts=3))
    assert (len(work.seen), len(called)) == (3, 2)
    assert cpu >= sum(work.seen) + sum(called)


async def test_the_snapshot_the_drawing_and_explain_show_it():
    """The node waits, and its line of code is found as without the option."""
    work = Work(0.003, end="cancelled")
    async with asyncio.timeout(30), Commander(cpu_time=True, slow_after=None) as commander:
        commander.put_job(work)
        await settle_loop()
        root, node = commander.tree()
        assert root.cpu is None
        assert node.cpu >= sum(work.seen)
        assert f"{node.cpu:.3f} s CPU" in str(commander)
        said = commander.explain(work)
        assert f"{node.cpu:.3f} s CPU" in said
        assert "test_t11_cpu.py" in said
        work.cancel()


async def test_without_the_option_nothing_is_measured():
    """Snapshot, events and drawing show no CPU time."""
    work = Work(end="cancelled")
    async with asyncio.timeout(30):
        async with Commander() as commander:
            events = commander.events()
            commander.put_job(work)
            await settle_loop()
            assert [node.cpu for node in commander.tree()] == [None, None]
            assert "CPU" not in str(commander) + commander.explain()
            work.cancel()
        assert {event.cpu async for event in events} == {None}
