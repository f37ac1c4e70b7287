"""Edges: a node that has completed starts the next (jobs/_edge.py)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.graph_jobs import Guess, Step
from support.seeds import SEED

from anabranch.backends import Limits
from anabranch.commander import Commander, Node, NodeCancelled, Retry, limits_around
from anabranch.commander._record import record_of
from anabranch.handlers import handler
from anabranch.jobs import Job, add_conditional_edge, add_edge
from anabranch.testing import pause, run_seeded


async def test_an_edge_starts_the_next_node_beside_the_first() -> None:
    """The target becomes a child of the source's parent."""
    seen: list[str] = []
    parents: list[Node[object] | None] = []
    first, second = Step("a", seen), Step("b", seen)
    second.at_start(lambda node: parents.append(node.parent))
    add_edge(first, second)
    async with Commander() as commander:
        await commander.run(first)
    assert seen == ["a", "b"]
    assert parents == [commander]


async def test_several_edges_are_followed_in_the_order_in_which_they_were_added() -> None:
    """One node may start many."""
    seen: list[str] = []
    first = Step("a", seen)
    for name in "bcd":
        add_edge(first, Step(name, seen))
    async with Commander() as commander:
        commander.put_job(first)
    assert seen == ["a", "b", "c", "d"]


async def test_a_cycle_runs_copies_with_the_same_inputs_and_shared_data() -> None:
    """Changes of a body to its fields are not in the next run; shared data is."""
    runs: list[int] = []
    ended: list[int] = []
    guess = Guess(runs)
    guess.at_end(lambda node: ended.append(node.node_id))
    add_conditional_edge(guess, {"again": guess})
    async with Commander() as commander:
        commander.put_job(guess)
    assert runs == [1, 1, 1]
    assert len(set(ended)) == 3


async def test_a_condition_chooses_by_result_and_falls_back_to_the_default() -> None:
    """Other results start the default; without one the path ends."""
    seen: list[str] = []
    first = Step("a", seen, answer="left")
    add_conditional_edge(first, {"left": Step("l", seen), "right": Step("r", seen)})
    other = Step("b", seen, answer="?")
    add_conditional_edge(other, {"left": Step("l", seen)}, default=Step("d", seen))
    lost = Step("c", seen, answer="?")
    add_conditional_edge(lost, {"left": Step("l", seen)})
    async with Commander() as commander:
        for job in (first, other, lost):
            await commander.run(job)
    assert sorted(seen) == ["a", "b", "c", "d", "l"]


async def test_a_target_may_be_made_from_the_node_that_completed() -> None:
    """A function target carries results along the edge."""
    seen: list[str] = []
    first = Step("a", seen, answer="b")
    add_edge(first, lambda node: Step(node.result, seen))
    async with Commander() as commander:
        commander.put_job(first)
    assert seen == ["a", "b"]


async def test_handlers_and_jobs_are_joined_by_the_same_edges() -> None:
    """An edge leads from a handler to a job and back, also in a cycle."""
    seen: list[str] = []

    @handler
    async def note(node: Node[object], word: str) -> int:
        seen.append(word)
        return len(seen)

    handled = note("h")
    job = Step("j", seen)
    add_edge(handled, job)
    add_conditional_edge(job, {"done": lambda _: note("end")})
    async with Commander() as commander:
        await commander.run(handled)
    assert seen == ["h", "j", "end"]


async def test_a_failed_or_cancelled_node_follows_no_edge() -> None:
    """Edges need completion."""
    seen: list[str] = []

    class Fails(Job[None]):
        async def task(self) -> None:
            raise ValueError

    fails, cancelled = Fails(), Step("x", seen)
    add_edge(fails, Step("y", seen))
    add_edge(cancelled, Step("z", seen))
    async with Commander() as commander:
        with pytest.raises(ValueError):
            await commander.run(fails)
        cancelled.cancel()
        with pytest.raises(NodeCancelled):
            await commander.run(cancelled)
    assert seen == []


async def test_a_started_node_gets_no_more_edges() -> None:
    """Its inputs can no longer be known."""
    seen: list[str] = []
    job = Step("a", seen)
    async with Commander() as commander:
        await commander.run(job)
        with pytest.raises(RuntimeError, match="has started"):
            add_edge(job, Step("b", seen))


async def test_an_unhashable_result_fails_the_node() -> None:
    """The failure has the node's path."""

    class Lists(Job[list[int]]):
        async def task(self) -> list[int]:
            return []

    job = Lists()
    add_conditional_edge(job, {1: Lists()})
    async with Commander() as commander:
        with pytest.raises(TypeError, match="unhashable"):
            await commander.run(job)


async def test_copies_have_the_callbacks_of_the_maker_and_not_those_of_a_run():
    """Callbacks that a body or a start callback adds belong to that run."""
    seen: list[str] = []
    runs: list[int] = []

    class Adds(Guess):
        async def task(self) -> str:
            self.at_end(lambda node: seen.append("body"))
            self.at_start(lambda node: seen.append("never"))
            self.at_commander_end(lambda node: seen.append("leaving"))
            return await super().task()

    job = Adds(runs)
    job.at_start(lambda node: seen.append("start"))
    job.at_start(lambda node: node.at_end(lambda node: seen.append("started")))
    add_conditional_edge(job, {"again": job})
    job.at_end(lambda node: seen.append("made"))
    async with Commander() as commander:
        commander.put_job(job).at_end(lambda node: seen.append("put"))
    assert seen == ["start", "made", "put", "started", "body"] * 3 + ["leaving"] * 3


async def test_a_copy_made_before_the_first_run_began_has_the_same_callbacks():
    """Two edges start one node in one turn: the node itself and a copy of it."""
    seen: list[str] = []
    runs: list[int] = []

    class Adds(Guess):
        async def task(self) -> str:
            self.at_end(lambda node: seen.append("body"))
            return await super().task()

    first, target = Step("a", []), Adds(runs)
    target.at_end(lambda node: seen.append("made"))
    add_edge(first, target)
    add_edge(first, target)
    async with Commander() as commander:
        commander.put_job(first)
    assert seen == ["made", "body"] * 2


async def test_an_edges_function_may_return_its_own_node_round_after_round():
    """A copy of a copy equals a copy of the first."""
    seen: list[str] = []
    runs: list[int] = []

    class Adds(Guess):
        async def task(self) -> str:
            self.at_end(lambda node: seen.append("body"))
            return await super().task()

    job = Adds(runs)
    add_conditional_edge(job, {"again": lambda node: node})
    async with Commander() as commander:
        commander.put_job(job)
    assert seen == ["body"] * 3


async def test_copies_go_by_the_name_of_the_first_and_in_its_place():
    """Handlers keep their function's name; jobs their priority, timeout, retry, policy, limits."""
    paths: list[str] = []
    options: list[object] = []
    bounds: list[object] = []
    limits = Limits(budget=1000)
    count = 0

    @handler
    async def note(node: Node[object]) -> bool:
        nonlocal count
        count += 1
        paths.append(node.path)
        return count < 3

    class Named(Job[bool]):
        async def task(self) -> bool:
            attempts = record_of(self).attempts
            assert attempts is not None
            options.append(
                (record_of(self).priority, attempts.timeout, attempts.retry, record_of(self).policy)
            )
            bounds.append(limits_around())
            return len(options) < 3

    handled, job, retry = note(), Named(), Retry(attempts=2)
    add_conditional_edge(handled, {True: handled})
    add_conditional_edge(job, {True: job})
    async with Commander() as commander:
        commander.call_handler(handled)
        commander.put_job(job, priority=7, timeout=60, retry=retry, policy="collect", limits=limits)
    assert bounds == [[limits]] * 3
    assert [path.split("#")[0] for path in paths] == ["Commander/note"] * 3
    assert options == [(7, 60, retry, "collect")] * 3


@given(st.lists(st.sampled_from(["maker", "putter", "start", "body", "callback"]), max_size=6))
def test_every_run_of_a_cycle_calls_the_same_callbacks(who: list[str]):
    """For any number of callbacks, added anywhere."""
    seen: list[list[int]] = []

    class Round(Job[bool]):
        def add(self, whose: str) -> None:
            for number, each in enumerate(who):
                if each == whose:
                    self.at_end(lambda node, number=number: seen[-1].append(number))

        async def task(self) -> bool:
            seen.append([])
            self.add("body")
            return len(seen) < 4

    job = Round()
    job.add("maker")
    job.at_start(lambda node: node.add("start"))
    job.at_end(lambda node: node.add("callback"))
    add_conditional_edge(job, {True: job})

    async def main() -> None:
        async with Commander() as commander:
            commander.put_job(job).add("putter")

    asyncio.run(main())
    assert seen == [seen[0]] * 4
    assert sorted(seen[0]) == [*range(len(who))]


CALLBACKS = ("edge", "join", "choice", "recover", "recover late", "fail at end", "fail when done")


@pytest.mark.parametrize("fails", [True, False])
@given(order=st.lists(st.sampled_from(CALLBACKS), max_size=5))
def test_edges_are_followed_by_a_node_that_has_completed_in_the_end(
    fails: bool, order: list[str]
) -> None:
    """With any callbacks in any order: one may recover it, another may fail it."""
    seen: list[str] = []

    @handler
    async def first(node: Node[Any]) -> str:
        if fails:
            raise ValueError
        return "go"

    def recover(node: Node[Any]) -> None:
        if node.error is not None:
            node.recover("go")

    async def recover_late(node: Node[Any]) -> None:
        await pause()
        recover(node)

    def fail(node: Node[Any]) -> None:
        raise LookupError

    async def main() -> None:
        node = first()
        for number, each in enumerate(order):
            if each == "recover":
                node.at_exception(recover)
            elif each == "recover late":
                node.at_exception(recover_late)
            elif each == "fail at end":
                node.at_end(fail)
            elif each == "fail when done":
                node.at_done(fail)
            elif each == "choice":
                add_conditional_edge(node, {"go": Step(str(number), seen)})
            elif each == "join":
                add_edge((node,), Step(str(number), seen))
            else:
                add_edge(node, Step(str(number), seen))
        async with Commander() as commander:
            commander.call_handler(node)
        edges = [str(n) for n, each in enumerate(order) if each in ("edge", "join", "choice")]
        assert sorted(seen) == (edges if node.state == "completed" else [])

    run_seeded(main, seed=SEED)
