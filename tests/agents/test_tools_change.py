"""Tools that an agent gets or loses while a call runs."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch import Agent, BadResponse, Message, ToolCall, tool
from anabranch.messages import Request
from anabranch.testing import ScriptedBackend
from anabranch.tools import Tool, Toolkit

Change = tuple[str, bool]
NAMES = "abc"

changes = st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), max_size=3)


def calling(*names: str) -> Message:
    calls = [ToolCall(id=f"call_{number}", name=name) for number, name in enumerate(names)]
    return Message(role="assistant", tool_calls=calls)


def offered(request: Request) -> list[str]:
    return [each.name for each in request.tools]


@settings(deadline=None)
@given(st.lists(changes, min_size=1, max_size=4), st.booleans())
def test_each_round_has_the_tools_that_the_agent_has_then(
    rounds: list[list[Change]], hooked: bool
) -> None:
    """Added or removed by a tool, with hooks or without."""

    async def main() -> None:
        left, ran, expected = [*rounds], list[str](), [["change"]]

        @tool
        def change() -> str:
            """Change the tools."""
            for name, add in left.pop(0):
                agent.tools[:] = [each for each in agent.tools if each.name != name]
                if add:
                    agent.tools.append(made(name))
            expected.append([each.name for each in agent.tools])
            return "changed"

        def made(name: str) -> Tool[..., Any]:
            return Tool(lambda: ran.append(name), name=name, description="One of them.")

        def reply(request: Request) -> Message | str:
            own = [name for name in offered(request) if name != "change"]
            return calling(*own, "change") if left else "done"

        backend = ScriptedBackend(otherwise=reply)
        agent = Agent(backend, tools=[change])
        seen: list[str | None] = []
        if hooked:
            agent.before_action(lambda _agent, message, _session: seen.append(message.receiver))
        assert (await agent("Go.")).text == "done"
        assert [offered(request) for request in backend.requests] == expected
        own = [name for names in expected[:-1] for name in names if name != "change"]
        assert sorted(ran) == sorted(own)
        assert not hooked or sorted(each for each in seen if each and each != "change") == sorted(
            own
        )

    asyncio.run(main())


async def test_a_toolkit_may_be_added_to_the_tools() -> None:
    """Its tools are there in the next round, with hooks too."""

    class Shelf(Toolkit):
        @tool
        def find(self) -> str:
            """Find a book."""
            return "Moby-Dick"

    @tool
    def open_shelf() -> str:
        """Open the shelf."""
        agent.tools.append(Shelf())
        return "open"

    backend = ScriptedBackend(calling("open_shelf"), calling("find"), "Moby-Dick.")
    agent: Any = Agent(backend, tools=[open_shelf])
    seen: list[Any] = []
    agent.before_action(lambda _agent, message, _session: seen.append(message.receiver))
    assert (await agent("Which book?")).text == "Moby-Dick."
    assert seen == ["open_shelf", "find"]
    assert [offered(request) for request in backend.requests] == [
        ["open_shelf"],
        *[["open_shelf", "find"]] * 2,
    ]


@pytest.mark.parametrize("tools", [[], ["last"]])
async def test_a_model_that_calls_what_nobody_offers_comes_to_an_end(tools: Sequence[str]) -> None:
    """With tools at first, or without."""

    def last() -> str:
        agent.tools.clear()
        return "gone"

    backend = ScriptedBackend(otherwise=calling("last"))
    given = [Tool(last, name=name, description="The only one.") for name in tools]
    agent = Agent(backend, tools=given)
    with pytest.raises(BadResponse, match="had to answer without tools"):
        await agent("Go.")
    assert len(backend.requests) == len(tools) + 4  # `repairs`, and once more
