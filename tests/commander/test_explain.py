"""Details of `explain` and of the drawn tree that no contract test covers."""

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st
from support.clock import sleep_virtual, virtual_time
from support.nodes import hang
from support.waiting import settle_loop

from anabranch.commander import Commander, Explanation, Retry
from anabranch.handlers import handler
from anabranch.jobs import Job


class Waits(Job[None]):
    async def task(self):
        await asyncio.Event().wait()


@handler
async def leaves(node):
    node.call_handler(hang())


@virtual_time
async def test_explain_says_for_how_long_a_node_has_been_in_its_state():
    """The duration appears from one second on, in the largest unit that fits."""
    async with Commander(max_concurrency=1, slow_after=None) as commander:
        runs, waits = commander.put_job(Waits()), commander.put_job(Waits())
        joins = commander.call_handler(leaves())
        await sleep_virtual(0.5)
        assert "(for" not in commander.explain(runs) + commander.explain(joins)
        await sleep_virtual(3)
        assert commander.explain(runs).startswith("Waits#1 is running (for 3 s), stands at ")
        assert commander.explain(waits).endswith(
            "is pending (for 3 s): it waits for one of 1 slots"
        )
        await sleep_virtual(120)
        assert "is joining (for 2 min): its body" in commander.explain(joins)
        assert commander.explain().startswith("Commander is open (for 2 min), with 3 children")
        await sleep_virtual(7200)
        assert commander.explain(runs).startswith("Waits#1 is running (for 2 h), ")
        for node in commander.children:
            node.cancel()
    assert "(for" not in commander.explain(runs)


async def test_explain_of_a_node_that_is_in_no_tree_says_so():
    """`explain` says that the node is in no tree, with or without callbacks."""
    async with Commander() as commander:
        for job in (Waits(), Waits().at_done(print)):
            assert commander.explain(job) == "Waits is pending: it is in no tree"


@virtual_time
async def test_explain_counts_the_pause_before_another_attempt_from_its_beginning():
    """A node that waits for its next attempt counts from the start of the pause."""

    @handler
    async def fails(node):
        await sleep_virtual(30)
        raise ValueError

    async with Commander(slow_after=None) as commander:
        node = commander.call_handler(fails(), retry=Retry(backoff=60, jitter=0), claim=True)
        await sleep_virtual(35)
        assert "is pending (for 5 s): attempt 2 begins after a pause" in commander.explain(node)
        node.cancel()


async def test_explain_shows_all_branches_of_a_gather():
    """Branches that await nodes are shown by node, the others by their line of code."""

    async def aside():
        await asyncio.Event().wait()

    async def through(node):
        await node

    @handler
    async def gathers(node):
        await asyncio.gather(hang(), through(hang()), aside(), asyncio.Event().wait())

    async with Commander(slow_after=None) as commander:
        node = commander.call_handler(gathers(), claim=True)
        await settle_loop()
        head, *lines = commander.explain(node).splitlines()
        assert "awaits hang#" in head
        assert sum("hang#" in line for line in lines) == 2
        assert sum("a branch that stands at test_explain.py" in line for line in lines) == 1
        assert sum("a branch that stands in Event.wait" in line for line in lines) == 1
        node.cancel()


def check_agreement(text: str, found: tuple[Explanation, ...]) -> None:
    """Check that text and data list the same nodes in the same order."""
    lines = iter(text.splitlines())
    for each in found:
        line = next(lines)
        label = f"{each.name}#{each.node_id}" if each.node_id else each.name
        colon = ":" if each.text == "see above" else ""
        assert line.startswith("  " * min(each.depth, 20) + f"{label}{colon} {each.text}")
        assert each.at in line
        assert len(each.waits_for) <= 20
        for branch in each.branches:
            assert next(lines).endswith(f"... and {branch}")
        if each.more:
            assert next(lines).endswith(f"... and {each.more} more")
    assert next(lines, None) is None


@handler
async def awaits(node, shape):
    """Await one node for each part of `shape`. Each node recurses into its part."""
    await asyncio.gather(asyncio.Event().wait(), *(awaits(each) for each in shape))


SHAPES = st.recursive(st.just([]), lambda inner: st.lists(inner, max_size=4), max_leaves=30)


@settings(max_examples=30, deadline=None)
@given(SHAPES)
def test_text_and_data_of_explain_agree(shape):
    """The data of each node of a random tree also lists the nodes it awaits."""

    async def main():
        async with Commander(slow_after=None) as commander:
            commander.call_handler(awaits(shape), claim=True)
            await settle_loop()
            for node in (None, *commander.children):
                found = commander.explain(node, data=True)
                check_agreement(commander.explain(node), found)
                numbers = {each.node_id for each in found}
                if not any(each.more for each in found):
                    assert all(numbers.issuperset(each.waits_for) for each in found)
            assert found[0].state == "running"
            assert found[0].seconds is not None
            for node in commander.children:
                node.cancel()

    asyncio.run(main())


async def test_text_and_data_of_explain_agree_where_lists_are_cut():
    """The tree has a commander with many children and a node that two paths reach."""

    @handler
    async def waits(node, other):
        await other

    async with Commander(slow_after=None) as commander:
        shared = commander.call_handler(hang(), claim=True)
        nodes = [commander.call_handler(waits(shared), claim=True) for _ in range(50)]
        await settle_loop()
        found = commander.explain(data=True)
        check_agreement(commander.explain(), found)
        assert found[0].waits_for == tuple(range(1, 21))
        assert found[0].more == 31
        assert [each.text for each in found].count("see above") > 10
        assert found[2].waits_for == (shared.node_id,)
        for node in (shared, *nodes):
            node.cancel()
