"""An agent as a tool of another agent: `Agent.as_tool`."""

from __future__ import annotations

from typing import Any

import pytest
from support.killed_executions import kill_everywhere
from support.memory_journal import act

from anabranch import Agent, Approvals, Commander, Context, tool
from anabranch.agents import AgentHook, ConversableAgent, Memory
from anabranch.backends import Backend
from anabranch.commander.errors import ConfigurationError
from anabranch.messages import Message, Request, ToolCall
from anabranch.store import Durable, Live
from anabranch.store import live as later
from anabranch.testing import ScriptedBackend


def calls(name: str, **arguments: Any) -> Message:
    call = ToolCall(id=name, name=name, arguments=arguments)
    return Message(role="assistant", tool_calls=[call])


def expert(*replies: Any, **options: Any) -> Agent:
    options = {"name": "expert", "description": "Knows colors.", **options}
    return Agent(ScriptedBackend(*(replies or ("blue",))), **options)


def boss(sub: Agent, *more: Any, **options: Any) -> Agent:
    script = calls("expert", request="the sky?"), "It is blue."
    return Agent(ScriptedBackend(*script), name="boss", tools=[sub.as_tool(), *more], **options)


async def test_the_model_asks_an_agent_and_reads_its_answer() -> None:
    """The call is below the tool's node. Both agents count its usage."""
    sub = expert()
    outer = boss(sub)
    async with Commander() as commander:
        answer = await commander.run(outer.call("What color has the sky?"))
    assert answer.text == "It is blue."
    assert sub.backend.requests[0].messages[-1].content == "the sky?"
    (used,) = sub.usage().values()
    (total,) = outer.usage().values()
    assert 0 < used.output_tokens < total.output_tokens
    assert outer.backend.requests[1].messages[-1].content == "blue"
    assert sub.memory.sessions == []


async def test_a_stream_has_the_messages_of_both() -> None:
    """Each has its sender."""
    messages = [each async for each in boss(expert()).stream("go")]
    assert {(each.sender, each.text) for each in messages if each.stream_state == "end"} >= {
        ("expert", "blue"),
        ("boss", "It is blue."),
    }


async def test_its_failure_is_a_failure_of_the_tool() -> None:
    """The model reads it, and goes on."""
    outer = boss(expert(ValueError("no colors today")))
    assert (await outer("go")).text == "It is blue."
    assert "no colors today" in str(outer.backend.requests[1].messages[-1].content)


async def test_its_questions_reach_the_outer_approve() -> None:
    """The sub-agent itself has neither a view nor approve=."""
    asked: list[tuple[str, str]] = []

    @tool(approve=True)
    def paint() -> str:
        """Paint."""
        return "done"

    def approve(question: Any) -> bool:
        asked.append((question.agent, question.call.name))
        return True

    sub = expert(calls("paint"), "painted", tools=[paint])
    await boss(sub, approve=approve)("go")
    assert asked == [("expert", "paint")]
    assert "done" in str(sub.backend.requests[1].messages[-1].content)
    waiting = Approvals(on_ask=lambda question: question.approve())
    sub = expert(calls("paint"), "painted", tools=[paint])
    await boss(sub, approve=waiting)("go")
    assert "done" in str(sub.backend.requests[1].messages[-1].content)


def test_missing_parts_are_reported_when_the_tool_is_made() -> None:
    """A description, a usable name, no journal, and as_tool() among the tools."""
    with pytest.raises(ConfigurationError, match="has no description"):
        Agent(name="expert").as_tool()
    assert Agent(name="expert").as_tool(description="Knows it.").description == "Knows it."
    assert expert(name="The color expert!").as_tool().name == "The_color_expert"
    assert expert().as_tool("ask_expert").name == "ask_expert"
    assert len(expert(name="x" * 80).as_tool().name) == 64
    with pytest.raises(ConfigurationError, match="give name="):
        expert(name="专家").as_tool()
    with pytest.raises(ConfigurationError, match="without journal="):
        expert(journal=":memory:").as_tool()
    with pytest.raises(TypeError, match="expert is not a tool; use its as_tool"):
        Agent(tools=[expert()])  # type: ignore[list-item]
    with pytest.raises(ConfigurationError, match="two tools called 'expert'"):
        Agent(tools=[expert().as_tool(), expert().as_tool()])
    assert expert().as_tool().effect == "nested"
    assert expert().as_tool().origin == "the agent expert"


async def test_an_agent_of_any_class_may_be_one() -> None:
    """Its own forward answers, with its own memory if it has one."""

    class Echo(Agent[Any]):
        async def forward(self, message: Any, session_id: Any = 0) -> str:
            return f"echo {message.text}"

    echo = Echo(name="expert", description="Echoes.", memory=Memory())
    outer = boss(echo)
    await outer("go")
    assert outer.backend.requests[1].messages[-1].content == "echo the sky?"
    assert echo.memory.sessions == []


async def test_users_of_the_outer_agent_never_read_each_other() -> None:
    """Also if the agent has a memory: each call begins with an empty session and leaves nothing."""
    memory = Memory()
    sub = expert(memory=memory)
    sub.backend = ScriptedBackend(
        otherwise=lambda request: " ".join(str(each.content) for each in request.messages)
    )

    def say(request: Request) -> Any:
        last = request.messages[-1]
        return last.content if last.role == "tool" else calls("expert", request=last.content)

    outer = Agent(ScriptedBackend(otherwise=say), name="boss", tools=[sub.as_tool()])
    await outer("my card is 4711", session_id="ann")
    assert (await outer("hello", session_id="bob")).text == "hello"
    assert memory.sessions == []


async def test_questions_hooks_and_contexts_have_the_session_of_the_outer_call() -> None:
    """At each depth, and None without a session."""
    seen: list[object] = []

    @tool(approve=True)
    def paint(ctx: Context[str]) -> str:
        """Paint."""
        seen.append((ctx.agent, ctx.session_id))
        return "done"

    class Note(AgentHook):
        def before_agent(self, agent: Any, message: Any, session_id: object) -> None:
            seen.append((agent.name, session_id))

        def after_action(self, agent: Any, message: Any, session_id: object) -> None:
            seen.append((agent.name, session_id))

    def approve(question: Any) -> bool:
        seen.append((question.agent, question.session_id))
        return True

    for session in ("ann", None):
        inner = Agent(
            ScriptedBackend(calls("paint"), "painted"),
            name="painter",
            description="Paints.",
            tools=[paint],
            hooks=[Note()],
        )
        sub = expert(calls("painter", request="x"), "done", tools=[inner.as_tool()], hooks=[Note()])
        seen.clear()
        await boss(sub, approve=approve)("go", session_id=session, context="x")
        names = ["expert", "painter", "painter", "painter", "painter", "expert"]
        assert seen == [(name, session) for name in names]


async def test_a_wrong_configuration_fails_the_outer_call() -> None:
    """No model can correct it."""
    outer = boss(Agent(name="expert", description="Has no model."))
    with pytest.raises(ConfigurationError, match="expert"):
        await outer("go")
    assert len(outer.backend.requests) == 1
    talker = ConversableAgent("expert", ScriptedBackend("hm"), description="Talks.")
    outer = boss(talker)
    await outer("go")
    assert outer.backend.requests[1].messages[-1].content == "hm"


@tool(effect="nested")
async def paint(color: str) -> str:
    """Paint."""
    return await act("paint", color)


class Paints(Durable[str]):
    """An agent whose sub-agent has a tool with an effect."""

    backend: Live[Backend] = later()

    async def task(self) -> str:
        sub = Agent(self.backend, "expert", name="expert", description="Paints.", tools=[paint])
        outer = Agent(self.backend, "boss", name="boss", tools=[sub.as_tool()])
        return (await outer("go")).text


def test_a_killed_run_repeats_no_effect_of_a_sub_agent() -> None:
    """After a kill at any row the run ends with the same result and the same effects."""

    def answer(request: Request) -> Message | str:
        role, last = request.messages[0].content, request.messages[-1]
        if last.role == "tool":
            return f"{role}: {last.content}"
        if role == "boss":
            return calls("expert", request="blue")
        return calls("paint", color="blue")

    first = kill_everywhere(lambda: Paints(ScriptedBackend(otherwise=answer)))
    assert first.result.startswith("boss: expert: ")
