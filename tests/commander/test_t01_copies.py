"""T1: a copy of a node is an unstarted node, whatever the state of the original."""

import asyncio
import copy
import pickle

import cloudpickle
import pytest

from anabranch.commander import Commander
from anabranch.handlers import handler
from anabranch.jobs import Job, add_edge

pytestmark = pytest.mark.contract("T1")


class Note(Job[str]):
    text: str
    tags: list[str]

    async def task(self) -> str:
        return self.text + "".join(self.tags)


class Slotted(Job[int]):
    __slots__ = ("number",)

    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    async def task(self) -> int:
        self.number += 1
        return self.number


@handler
async def note(node, text, tags):
    return text + "".join(tags)


class Desk:
    @handler
    async def note(self, node, text, tags):
        return text + "".join(tags)


async def undecorated(node, text, tags):
    return text + "".join(tags)


def pickled(node: Note) -> Note:
    return pickle.loads(pickle.dumps(node))


def sent(node: Note) -> Note:
    """Return the node pickled by value where possible, as for another machine."""
    return pickle.loads(cloudpickle.dumps(node))


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickled, sent])
@pytest.mark.parametrize("kind", [Note, note, Desk().note, handler(undecorated)])
@pytest.mark.parametrize("ran", [False, True])
async def test_a_copy_has_not_started_and_runs_by_itself(make, kind, ran):
    """`copy`, `deepcopy` and pickle work on a new node and on one that has run."""
    tags = ["b"]
    node = kind("a", tags)
    node.at_end(lambda _: None)
    async with Commander() as commander:
        if ran:
            await commander.run(node)
        twin = make(node)
        assert (twin.state, twin.node_id, twin.parent) == ("pending", 0, None)
        assert await commander.run(twin) == "ab"
        tags.append("c")
        assert await commander.run(make(node)) == "abc"
        if kind is Note:
            assert twin.tags is tags if make is copy.copy else twin.tags is not tags
        assert node.state == ("completed" if ran else "pending")
        assert (node.result, node.node_id) == (("ab", 1) if ran else (None, 0))


async def test_a_copy_of_a_running_node_leaves_it_alone():
    """The running node completes."""
    async with Commander() as commander:
        node = commander.put_job(Note("a", []))
        await asyncio.sleep(0)
        copy.copy(node)
        assert await node == "a"


async def test_a_class_with_slots_keeps_their_values_round_a_cycle():
    """Each round starts from the arguments of the original node."""
    seen: list[int] = []
    first, second = Slotted(1), Slotted(10)
    for node in first, second:
        node.at_end(lambda node: seen.append(node.result))
    add_edge(first, second)
    add_edge(second, lambda _: first if len(seen) < 5 else None)
    async with Commander() as commander:
        commander.put_job(first)
    assert seen == [2, 11, 2, 11, 2, 11]
