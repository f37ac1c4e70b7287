"""Graphs of nodes and their results (jobs/_edge.py)."""

from __future__ import annotations

import asyncio
import copy
import pickle
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graph_jobs import Guess, Step

from anabranch.commander import Commander, Node, Retry, run
from anabranch.handlers import handler
from anabranch.jobs import Graph, Job, add_conditional_edge, add_edge
from anabranch.testing import pause, run_seeded


class Add(Job[int]):
    """Adds its inputs, and records the sum."""

    numbers: tuple[int, ...]
    seen: list[int]

    async def task(self) -> int:
        await asyncio.sleep(0)
        self.seen.append(sum(self.numbers))
        return sum(self.numbers)


async def test_the_target_of_an_edge_is_not_started_by_being_awaited() -> None:
    """It would run before its source, and then again. The message says what to await."""
    seen: list[str] = []
    first, second = Step("a", seen), Step("b", seen)
    add_edge(first, second)
    async with Commander() as commander:

        @handler
        async def wait(node: Node[object]) -> str:
            with pytest.raises(RuntimeError, match=r"Graph\(\.\.\.\)"):
                await second
            return await Graph(first)

        assert await commander.run(wait()) == "done"
        assert await second == "done"
    assert seen == ["a", "b"]


async def test_a_node_that_leads_to_itself_may_be_awaited() -> None:
    """It is the beginning of its graph."""
    runs: list[int] = []
    guess = Guess(runs)
    add_conditional_edge(guess, {"again": guess})

    @handler
    async def wait(node: Node[object]) -> str:
        return await guess

    async with Commander() as commander:
        assert await commander.run(wait()) == "again"
    assert len(runs) == 3


def test_a_graph_gives_what_its_last_node_gave() -> None:
    """It ends when all its nodes have ended."""
    seen: list[str] = []
    nodes = [Step(name, seen, answer=name.upper()) for name in "abc"]
    for source, target in pairwise(nodes):
        add_edge(source, target)

    assert run(Graph(nodes[0])) == "C"
    assert seen == ["a", "b", "c"]


async def test_a_graph_with_a_cycle_gives_what_the_last_round_gave() -> None:
    """For any number of rounds."""
    guess = Guess([])
    add_conditional_edge(guess, {"again": guess})
    async with Commander() as commander:
        assert await commander.run(Graph(guess)) == "enough"


@pytest.mark.parametrize("side", ["left", "right"])
async def test_a_conditional_diamond_meets_again_once(side: str) -> None:
    """Edges from both branches start it once, from the chosen one."""
    seen: list[str] = []
    first, last = Step("a", seen, answer=side), Step("z", seen, answer="end")
    left, right = Step("left", seen), Step("right", seen)
    add_conditional_edge(first, {"left": left, "right": right})
    add_edge(left, last)
    add_edge(right, last)
    async with Commander() as commander:
        assert await commander.run(Graph(first)) == "end"
    assert seen == ["a", side, "z"]


async def test_a_node_that_fails_fails_its_graph() -> None:
    """Its targets do not start, and its siblings are cancelled."""
    seen: list[str] = []

    class Fails(Job[None]):
        async def task(self) -> None:
            raise ValueError("no")

    class Hangs(Job[None]):
        async def task(self) -> None:
            try:
                await asyncio.Event().wait()
            finally:
                seen.append("cancelled")

    fails, hangs = Fails(), Hangs()
    add_edge((fails, hangs), Step("c", seen))
    async with Commander() as commander:
        with pytest.raises(ValueError, match="no"):
            await commander.run(Graph(hangs, fails))
    assert seen == ["cancelled"]


async def test_a_graph_that_is_tried_again_begins_anew() -> None:
    """Nodes that completed before the failure run again."""
    seen: list[int] = []
    fails = iter([True, False])

    class Flaky(Job[int]):
        async def task(self) -> int:
            await asyncio.sleep(0)
            if next(fails):
                raise ValueError
            return 5

    one, flaky = Add((1,), seen), Flaky()
    add_edge((one, flaky), lambda one, flaky: Add((one.result, flaky.result), seen))
    async with Commander() as commander:
        assert await commander.run(Graph(one, flaky), retry=Retry(attempts=2, backoff=0)) == 6
    assert seen == [1, 1, 6]


async def test_an_edge_from_several_starts_its_target_once_after_all() -> None:
    """Also without a graph, and if several nodes put the sources."""
    seen: list[str] = []
    sources = Step("a", seen), Step("b", seen)
    assert add_edge(sources, Step("c", seen)) is sources
    async with Commander() as commander:
        await commander.run(sources[1])
        assert seen == ["b"]
        commander.put_job(sources[0])
    assert seen == ["b", "a", "c"]


async def test_an_edge_from_several_leads_nowhere_if_one_never_completes() -> None:
    """A graph then ends with the other results."""
    seen: list[str] = []
    first, taken, other = Step("a", seen, answer="x"), Step("b", seen, answer="B"), Step("o", seen)
    add_conditional_edge(first, {"x": taken, "y": other})
    add_edge((taken, other), Step("c", seen))
    async with Commander() as commander:
        assert await commander.run(Graph(first)) == "B"
    assert seen == ["a", "b"]


async def test_an_edge_from_several_in_a_cycle_waits_for_all_of_them_again() -> None:
    """In each round."""
    seen: list[str] = []
    runs: list[int] = []
    one, other, guess = Step("a", seen), Step("b", seen), Guess(runs)
    guess.at_end(lambda node: seen.append("c"))
    add_edge((one, other), guess)
    for each in one, other:
        add_conditional_edge(guess, {"again": each})
    async with Commander() as commander:
        assert await commander.run(Graph(one, other)) == "enough"
    assert seen == ["a", "b", "c"] * 3


class Alike(Job[str]):
    """Equal to all others of its class, so it cannot be hashed."""

    name: str
    seen: list[str]
    turns: int

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Alike)

    async def task(self) -> str:
        for _ in range(self.turns):
            await asyncio.sleep(0)
        self.seen.append(self.name)
        return self.name


@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.booleans())
def test_nodes_that_are_equal_are_still_several(turns: list[int], each: bool) -> None:
    """An edge from them waits for all; the last node gives the result."""
    seen: list[str] = []
    starts = tuple(Alike(str(number), seen, wait) for number, wait in enumerate(turns))
    last = Alike("last", seen, 0)
    if each and len(starts) == 1:
        add_edge(starts[0], last)
    else:
        add_edge(starts, last)
    assert run(Graph(*starts)) == "last"
    assert sorted(seen[:-1]) == [start.name for start in starts]
    assert seen[-1] == "last"


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda graph: pickle.loads(pickle.dumps(graph))])
async def test_a_graph_is_neither_sent_nor_copied_without_its_edges(copied: Any) -> None:
    """It would end after its first nodes. A `copy`, as in a cycle, has the same nodes."""
    seen: list[str] = []
    graph = Graph(add_edge(Step("a", seen), Step("b", seen, "end")))
    with pytest.raises(TypeError, match="its nodes would lose their edges"):
        copied(graph)
    assert seen == []
    async with Commander() as commander:
        assert await commander.run(copy.copy(graph)) == "end"
    assert seen == ["a", "b"]


def test_edges_and_graphs_need_a_node() -> None:
    """An empty one is refused."""
    with pytest.raises(ValueError, match="needs at least one source"):
        add_edge((), Step("a", []))
    with pytest.raises(ValueError, match="needs at least one node"):
        Graph()


@given(
    st.lists(st.sets(st.integers(0, 7), min_size=1), min_size=1, max_size=8),
    st.integers(0, 1000),
)
def test_every_node_of_a_graph_without_cycles_runs_once_after_all_before_it(
    layers: list[set[int]], seed: int
) -> None:
    """For any edges and any order of ends."""
    order: list[int] = []
    before: dict[int, set[int]] = {0: set()}

    class Noted(Job[int]):
        number: int

        async def task(self) -> int:
            await pause()
            order.append(self.number)
            return self.number

    nodes = [Noted(0)]
    for number, drawn in enumerate(layers, 1):
        before[number] = {each % number for each in drawn}
        nodes.append(Noted(number))
        add_edge(tuple(nodes[each] for each in sorted(before[number])), nodes[number])

    async def main() -> None:
        async with Commander() as commander:
            await commander.run(Graph(nodes[0]))

    run_seeded(main, seed=seed)
    assert sorted(order) == [*range(len(nodes))]
    assert all(order.index(each) < order.index(n) for n, needs in before.items() for each in needs)
