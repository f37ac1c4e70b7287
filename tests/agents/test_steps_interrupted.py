"""A journaled `StepAgent` session with an interrupted call: its model reads the action's result."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest

from anabranch import Message, tool
from anabranch.agents import StepAgent
from anabranch.messages import Request
from anabranch.testing import ScriptedBackend
from anabranch.tools import AnyTool

ACT = 'I will.\n```json\n{"name": "order", "parameters": {"thing": "lamp"}}\n```'


class World:
    """The effects of the tool, and the place to interrupt a call."""

    def __init__(self, hangs: str, *, read_only: bool) -> None:
        self.hangs = hangs
        self.ordered: list[str] = []
        self.hung = asyncio.Event()
        self.requests: list[Request] = []

        @tool(read_only=read_only)
        async def order(thing: str) -> str:
            """Order something."""
            self.ordered.append(thing)
            await self.hang("tool")
            return f"{thing} is ordered"

        self.order: AnyTool = order

    async def hang(self, where: str) -> None:
        if where == self.hangs:
            self.hangs = ""
            self.hung.set()
            await asyncio.Event().wait()

    async def answer(self, request: Request) -> str | Message:
        self.requests.append(request)
        if request.messages[-1].content == "Get a lamp.":
            return ACT
        await self.hang("reply")
        return "Done."

    def agent(self, journal: Path | None) -> StepAgent:
        model, where = ScriptedBackend(otherwise=self.answer), journal and str(journal)
        return StepAgent(model, name="buyer", plugins=[self.order], journal=where)


async def _cut(world: World, agent: StepAgent, question: str = "Get a lamp.") -> None:
    """Begin a call, and interrupt it where the world hangs."""

    async def ask() -> None:
        await agent(question, session_id="s")

    asking = asyncio.create_task(ask())
    await world.hung.wait()
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking


def _said(agent: StepAgent) -> list[tuple[str, str | None, str]]:
    return [(each.sender, each.type, each.text) for each in agent.agent.memory.messages("s")]


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("hangs", ["tool", "reply"])
async def test_the_action_of_a_call_that_was_cut_is_remembered(
    tmp_path: Path, hangs: str, read_only: bool
) -> None:
    """By the inner agent, as for a call without a journal."""
    plain = World(hangs, read_only=read_only)
    alone = plain.agent(None)
    await _cut(plain, alone)
    assert _said(alone)[:2] == [("user", None, "Get a lamp."), ("buyer", None, ACT)]

    world = World(hangs, read_only=read_only)
    await _cut(world, world.agent(tmp_path / "s.db"))
    again = world.agent(tmp_path / "s.db")  # a new object, as another process would have
    assert await again.find_interrupted("s") is not None
    assert await again.end_interrupted("s")
    kept = again.agent.memory.messages("s")

    assert _said(again)[:2] == _said(alone)[:2]
    assert kept[1].output["action"] == {"name": "order", "parameters": {"thing": "lamp"}}
    known = hangs == "reply" and not read_only
    text = "lamp is ordered" if known else "The call was interrupted."
    assert [(each.name, each.content) for each in kept[2].output] == [("order", text)]
    assert again.memory.messages("s") == []

    world.requests.clear()
    assert (await again("And now?", session_id="s")).text == "Done."
    said = "\n".join(each.content or "" for each in world.requests[0].messages)
    assert ACT in said
    assert text in said
    assert world.ordered == ["lamp"]

    later = world.agent(tmp_path / "s.db")
    await later.recall("s")
    assert _said(later) == _said(again)
    assert [each["kind"] for each in later.get_steps("s")] == [
        *("thought", "call", "result", "thought")
    ]


async def test_a_cut_call_that_had_no_action_is_remembered(tmp_path: Path) -> None:
    """Its question, and its text."""
    world = World("reply", read_only=True)
    await _cut(world, world.agent(tmp_path / "s.db"), "Hello")
    again = world.agent(tmp_path / "s.db")
    assert await again.end_interrupted("s")
    assert [each.text for each in again.agent.memory.messages("s")] == ["Hello"]
