"""An agent's memory of a call that is cancelled at any moment."""

from __future__ import annotations

import asyncio
import logging
import random

import pytest
from support.seeds import seeds

from anabranch import Agent, AgentMessage, Commander, Message, ToolCall, tool
from anabranch.agents.layers import TOOLS
from anabranch.handlers import View
from anabranch.testing import ScriptedBackend, explore, pause

FIRST, ANSWER = "I shall look.", "There is a boat on the river."
END = 40.0  # virtual seconds; the whole exchange takes fewer


@tool(read_only=True)
async def look(place: str) -> str:
    """Look somewhere."""
    await asyncio.sleep(3)
    return f"a boat on the {place}"


class ShownText(View):
    """Records the text that the user reads, reply by reply."""

    def __init__(self) -> None:
        self.replies = [""]

    def write(self, text: str) -> None:
        self.replies[-1] += text

    def ended(self) -> None:
        self.replies.append("")


def cancel_at_random(how: str) -> list[list[AgentMessage]]:
    """Ask an agent that calls a tool, under many seeds; end each call at a random moment."""

    async def main() -> list[AgentMessage]:
        call = ToolCall(id="1", name="look", arguments={"place": "river"})
        calling = Message(role="assistant", content=FIRST, tool_calls=[call])
        view = ShownText()
        backend = ScriptedBackend(calling, ANSWER, delay=1)
        agent = Agent(backend, tools=[look], view=view)
        moment = random.uniform(0, END)
        async with Commander() as commander:
            timeout = moment if how == "timeout" else None
            node = commander.call_handler(
                agent.call("What is there?", session_id=7), timeout=timeout
            )
            if how == "cancel":
                await asyncio.sleep(moment)
                await pause()
                node.cancel()
        kept = agent.memory.messages(7)
        told = [text for text in view.replies if text]
        if told:  # all text that a person has read is remembered
            assert kept[0].text == "What is there?"
            assert [
                each.content[: len(text)] for each, text in zip(kept[1:], told, strict=True)
            ] == told
        else:
            assert not kept
        return kept

    return explore(main, seeds(300))


@pytest.mark.parametrize("how", ["cancel", "timeout"])
def test_what_was_said_before_a_call_was_cut_short_is_remembered(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The memory has all shown text and calls with results, in 300 orders of events."""
    caplog.set_level(logging.CRITICAL)
    states = set[str]()
    for kept in cancel_at_random(how):
        *rounds, last = kept[1:] or [None]
        for each in rounds:
            assert each is not None
            assert each.type == TOOLS
            assert [part.role for part in each.output] == ["assistant", "tool"]
        if last is None:
            states.add("nothing")
        elif last.type == TOOLS:
            states.add(f"called, {last.output[-1].status}")
        else:
            assert (FIRST + ANSWER).find(last.text) >= 0
            states.add(last.stream_state)

    assert states == {"nothing", "failed", "called, ok", "called, failed", "end"}
