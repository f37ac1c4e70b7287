"""`explain` and the drawing of a tree, beyond what the contracts promise."""

import asyncio

from _clock import jumping, virtual_seconds
from _nodes import hang
from _until import settled

from anabranch.commander import Commander, Retry
from anabranch.handlers import handler
from anabranch.jobs import Job


class Waits(Job[None]):
    async def task(self):
        await asyncio.Event().wait()


@handler
async def leaves(node):
    node.call_handler(hang())


@jumping
async def test_explain_says_for_how_long_a_node_has_been_in_its_state():
    """From one second on, in the largest unit that fits."""
    async with Commander(max_concurrency=1, slow_after=None) as commander:
        runs, waits = commander.put_job(Waits()), commander.put_job(Waits())
        joins = commander.call_handler(leaves())
        await virtual_seconds(0.5)
        assert "(for" not in commander.explain(runs) + commander.explain(joins)
        await virtual_seconds(3)
        assert commander.explain(runs).startswith("Waits#1 is running (for 3 s), stands at ")
        assert commander.explain(waits).endswith(
            "is pending (for 3 s): it waits for one of 1 slots"
        )
        await virtual_seconds(120)
        assert "is joining (for 2 min): its body" in commander.explain(joins)
        assert commander.explain().startswith("Commander is open (for 2 min), with 3 children")
        await virtual_seconds(7200)
        assert commander.explain(runs).startswith("Waits#1 is running (for 2 h), ")
        for node in commander.children:
            node.cancel()
    assert "(for" not in commander.explain(runs)


async def test_explain_of_a_node_that_is_in_no_tree_says_so():
    """With callbacks or without."""
    async with Commander() as commander:
        for job in (Waits(), Waits().at_done(print)):
            assert commander.explain(job) == "Waits is pending: it is in no tree"


@jumping
async def test_explain_counts_the_pause_before_another_attempt_from_its_beginning():
    """A node that is tried again is pending anew."""

    @handler
    async def fails(node):
        await virtual_seconds(30)
        raise ValueError

    async with Commander(slow_after=None) as commander:
        node = commander.call_handler(fails(), retry=Retry(backoff=60, jitter=0), claim=True)
        await virtual_seconds(35)
        assert "is pending (for 5 s): attempt 2 begins after a pause" in commander.explain(node)
        node.cancel()


async def test_explain_shows_all_branches_of_a_gather():
    """Those that wait for nodes by the nodes, the others by where they stand."""

    async def aside():
        await asyncio.Event().wait()

    async def through(node):
        await node

    @handler
    async def gathers(node):
        await asyncio.gather(hang(), through(hang()), aside(), asyncio.Event().wait())

    async with Commander(slow_after=None) as commander:
        node = commander.call_handler(gathers(), claim=True)
        await settled()
        head, *lines = commander.explain(node).splitlines()
        assert "awaits hang#" in head
        assert sum("hang#" in line for line in lines) == 2
        assert sum("a branch that stands at test_tree_explain.py" in line for line in lines) == 1
        assert sum("a branch that stands in Event.wait" in line for line in lines) == 1
        node.cancel()
