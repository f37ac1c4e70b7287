"""Hooks: some of four methods, never a misspelt one, with the session."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch import Agent, ConfigurationError, Message, ToolCall, tool
from anabranch.agents import AgentHook, AgentMessage, ConversableAgent, ToolExecutor
from anabranch.agents.layers._hooks import HOOK_NAMES
from anabranch.testing import ScriptedBackend


@tool(read_only=True)
def ping() -> str:
    """Ping."""
    return "pong"


CALLS = Message(role="assistant", tool_calls=[ToolCall(id="c", name="ping")])


@given(st.sets(st.sampled_from(HOOK_NAMES), min_size=1), st.booleans())
async def test_an_object_may_have_some_of_the_methods(moments: set[str], derived: bool) -> None:
    """An object of any class, or an `AgentHook`: the methods that it has are called."""
    seen: list[str] = []

    def noting(moment: str) -> Any:
        def note(self: Any, agent: Any, message: AgentMessage, session_id: object) -> None:
            seen.append(moment)

        return note

    bases = (AgentHook,) if derived else ()
    hook = type("Notes", bases, {moment: noting(moment) for moment in moments})()
    agent = Agent(ScriptedBackend(CALLS, "done", "again"), tools=[ping], hooks=[hook])

    await agent("?")
    order = ["before_agent", "before_action", "after_action", "after_agent"]
    assert seen == [moment for moment in order if moment in moments]


@pytest.mark.parametrize(
    "name",
    ["before_agents", "befor_agent", "beforeAgent", "after_tool", "before", "on_after_agent"],
)
def test_a_misspelt_method_is_refused(name: str) -> None:
    """It would never be called."""
    methods = {name: lambda *_: None, "after_action": lambda *_: None}
    for bases in (), (AgentHook,):
        with pytest.raises(ConfigurationError, match=rf"an agent has no hook Wrong\.{name}"):
            Agent(ScriptedBackend(), hooks=[type("Wrong", bases, methods)()])


def test_an_object_without_any_of_the_methods_is_refused() -> None:
    """Also a function, which is for one moment only."""
    agent = Agent(ScriptedBackend())
    for wrong in print, object(), None:
        with pytest.raises(ConfigurationError, match="none of the methods before_agent"):
            agent.add_hook(wrong)


async def test_hooks_are_told_the_session() -> None:
    """Around the agent, its tools and executors, and in conversations."""
    seen: list[tuple[str, object]] = []

    class Notes(AgentHook):
        def before_agent(self, agent: Any, message: AgentMessage, session_id: object) -> None:
            seen.append((agent.name, session_id))

        def after_action(self, agent: Any, message: AgentMessage, session_id: object) -> None:
            seen.append(("tool", session_id))

    agent = Agent(ScriptedBackend(CALLS, "done"), tools=[ping], hooks=[Notes()], name="a")
    await agent("?", session_id="s7")
    executor = ToolExecutor([ping])
    executor.before_action(lambda _, message, session_id: seen.append(("executor", session_id)))
    await executor(AgentMessage(content={"name": "ping", "parameters": {}}), session_id=3)
    await executor(AgentMessage(content={"name": "ping", "parameters": {}}), session_id="")

    class Caller(Agent[Any]):
        async def forward(self, *messages: Any, **options: Any) -> str:
            call = AgentMessage(content={"name": "ping", "parameters": {}})
            return (await executor(call)).content

    await Caller()("?", session_id="s8")
    talker = ConversableAgent("t", ScriptedBackend("hi"), hooks=[Notes()])
    await talker.receive(AgentMessage(content="hi", sender="bob"))

    assert seen == [
        ("a", "s7"),
        ("tool", "s7"),
        *[("executor", each) for each in (3, "", "s8")],
        ("t", "bob"),
    ]
