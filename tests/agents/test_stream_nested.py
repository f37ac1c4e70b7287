"""Messages of an agent inside another's `forward` reach the readers of the outer agent."""

from __future__ import annotations

import asyncio
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch import Agent, BackendUnavailable, Message, ToolCall, tool
from anabranch.agents import AgentMessage, ConversableAgent
from anabranch.messages import Delta
from anabranch.testing import ScriptedBackend


@tool(read_only=True)
def ping() -> str:
    """Ping."""
    return "pong"


class Editor(Agent[str]):
    """Reads its writer's stream, or waits for the answer, at a given depth."""

    def __init__(self, writer: Agent[Any], *, reads: bool) -> None:
        super().__init__(name="editor")
        self.writer = writer
        self.reads = reads

    async def forward(self, *messages: AgentMessage, **options: Any) -> str:
        if not self.reads:
            return (await self.writer(*messages)).text
        parts = [part async for part in self.writer.stream(*messages)]
        return parts[-1].text


class Talker(ConversableAgent):
    writer: Agent[Any]

    async def forward(self, *messages: AgentMessage, **options: Any) -> str:
        return [part async for part in self.writer.stream(*messages)][-1].text


def writer() -> Agent[Any]:
    call = Message(role="assistant", content="Wait.", tool_calls=[ToolCall(id="c", name="ping")])
    return Agent(ScriptedBackend(call, "The whole text."), tools=[ping], name="writer")


def join_parts(parts: list[AgentMessage]) -> list[tuple[str, str, str | None, str]]:
    """Join the growing parts of each message."""
    found: list[tuple[str, str, str | None, str]] = []
    growing: dict[str, str] = defaultdict(str)
    for part in parts:
        if part.stream_state in ("begin", "streaming"):
            growing[part.sender] += part.extra["delta"]
        else:
            text = growing.pop(part.sender, "")
            found.append((part.sender, text, part.type, part.text))
    return found


@given(st.lists(st.booleans(), min_size=1, max_size=4))
async def test_a_stream_inside_forward_is_heard_outside(depth: list[bool]) -> None:
    """As an awaited call is, at each depth, and by each reader on the way."""
    heard, plain = [writer(), writer()]
    agent: Agent[Any] = heard
    other: Agent[Any] = plain
    for reads in depth:
        agent, other = Editor(agent, reads=reads), Editor(other, reads=False)

    parts = [part async for part in agent.stream("go")]
    expected = [part async for part in other.stream("go")]

    assert join_parts(parts) == join_parts(expected)
    assert ("writer", "The whole text.", None, "The whole text.") in join_parts(parts)


async def test_a_stream_inside_forward_that_breaks_off_is_told_once() -> None:
    """To the reader inside and to the one outside."""
    backend = ScriptedBackend([Delta("half"), BackendUnavailable("gone")])
    states: list[list[str]] = [[], []]

    class Reads(Agent[str]):
        async def forward(self, *messages: AgentMessage, **options: Any) -> str:
            async for part in Agent(backend, name="inner").stream(*messages):
                states[0].append(part.stream_state)
            return ""

    with pytest.raises(BackendUnavailable):
        async for part in Reads().stream("go"):
            states[1].append(part.stream_state)
    assert [each.count("failed") for each in states] == [1, 1]


async def test_a_stream_inside_an_answer_is_heard_by_the_conversation() -> None:
    """Listeners of the chat see the text grow."""
    talker = Talker("talker", ScriptedBackend())
    talker.writer = writer()
    user = ConversableAgent("user")

    async with asyncio.timeout(20):
        parts = [p async for p in user.stream_chat(talker, "go", max_turns=1)]
    grown = "".join(p.extra["delta"] for p in parts if p.stream_state != "end")
    assert grown.endswith("The whole text.")
