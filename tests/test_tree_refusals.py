"""What is no node, or a node of the other kind, is refused by a message that says what to do."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from anabranch.commander import Commander, Node
from anabranch.handlers import handler
from anabranch.jobs import Job


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
    """Nothing enters the tree."""
    async with Commander() as commander:
        with pytest.raises(TypeError, match=said):
            getattr(commander, how)(given)
        assert commander.children == ()


@pytest.mark.parametrize("how", ["call_handler", "put_job"])
async def test_a_coroutine_is_refused_by_what_to_do_instead(how: str) -> None:
    """It is what `agent("...")` gives, where `agent.call("...")` is meant."""
    async with Commander() as commander:
        coroutine = asyncio.sleep(0)
        with pytest.raises(TypeError, match=r"but a coroutine: await it, .* agent\.call\("):
            getattr(commander, how)(coroutine)
        coroutine.close()
