"""Objects that are not nodes, or nodes of the wrong kind, are refused with a remedy."""

from __future__ import annotations

import asyncio
import copy
import pickle
from typing import Any

import pytest

from anabranch.commander import Commander, Node, charge, limits_around
from anabranch.handlers import handler
from anabranch.jobs import Graph, Job, add_edge


@handler
async def upper(node: Node[Any], text: str) -> str:
    return text.upper()


class Shout(Job[str]):
    text: str

    async def task(self) -> str:
        return self.text


@pytest.mark.parametrize(
    ("how", "given", "said"),
    [
        ("call_handler", upper, r"not a handler: make one, upper\(\.\.\.\)"),
        ("call_handler", Shout("hi"), "not a handler: start it with put_job"),
        ("call_handler", None, "None is not a handler$"),
        ("put_job", Shout, r"not a Job: make one, Shout\(\.\.\.\)"),
        ("put_job", upper("hi"), "not a Job: start it with call_handler"),
        ("put_job", "hi", "'hi' is not a Job$"),
    ],
)
async def test_what_cannot_be_started_is_refused(how: str, given: Any, said: str) -> None:
    """No node enters the tree."""
    async with Commander() as commander:
        with pytest.raises(TypeError, match=said):
            getattr(commander, how)(given)
        assert commander.children == ()


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, pickle.dumps])
async def test_a_commander_is_not_copied(copied: Any) -> None:
    """Two commanders would share one tree. The original runs on."""
    commander = Commander()
    with pytest.raises(TypeError, match="create another"):
        copied(commander)
    async with commander:
        assert await commander.run(Shout("hi")) == "hi"


def test_outside_a_tree_nobody_is_charged() -> None:
    """Without a node in a running tree, `charge` does nothing and no limits apply."""
    for node in None, Shout("hi"), Commander():
        charge("account", 1, node)
        assert limits_around(node) == []
    assert Commander().usage() == {}


@pytest.mark.parametrize("how", ["call_handler", "put_job"])
async def test_a_coroutine_is_refused_by_what_to_do_instead(how: str) -> None:
    """`agent("...")` returns a coroutine where `agent.call("...")` is meant."""
    async with Commander() as commander:
        coroutine = asyncio.sleep(0)
        with pytest.raises(TypeError, match=r"but a coroutine: await it, .* agent\.call\("):
            getattr(commander, how)(coroutine)
        coroutine.close()


@pytest.mark.parametrize("use", ["graph", "edge", "usage", "explain", "charge"])
async def test_a_class_in_the_place_of_a_node_is_refused(use: str) -> None:
    """The refused class is unchanged: each instance made from it is a separate node."""
    kind: Any = Shout
    with pytest.raises(TypeError, match=r"create (one|a node), Shout\(\.\.\.\)"):
        match use:
            case "graph":
                Graph(kind)
            case "edge":
                add_edge(kind, Shout("hi"))
            case "usage":
                Commander().usage(kind)
            case "explain":
                Commander().explain(kind)
            case _:
                charge("account", 1, kind)
    async with Commander() as commander:
        assert await commander.run(Shout("a")) == "a"
        assert await commander.run(Shout("b")) == "b"
