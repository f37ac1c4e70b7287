"""Hooks that change a message in place: once, and for their own agent alone."""

import threading
from typing import Any

from support.conversing_agents import contents_by_sender, silent_user

from anabranch import Agent, AgentMessage, BackendUnavailable, Commander, Message, Retry, ToolCall
from anabranch.agents import ConversableAgent, GroupChat, ToolExecutor
from anabranch.testing import ScriptedBackend
from anabranch.tools import tool


def be_brief(_: Any, message: AgentMessage, session_id: object) -> None:
    message.content += " (be brief)"
    message.extra.setdefault("marks", []).append("brief")


async def test_a_retried_call_passes_each_hook_once() -> None:
    """Each attempt starts with the original message."""
    backend = ScriptedBackend(BackendUnavailable("1"), BackendUnavailable("2"), "Yes.")
    agent = Agent(backend)
    agent.before_agent(be_brief)
    came = AgentMessage(content="Is it?", extra={"marks": []})
    async with Commander() as commander:
        call = commander.call_handler(agent.call(came), retry=Retry(attempts=3))
        await call
    assert [r.messages[-1].content for r in backend.requests] == ["Is it? (be brief)"] * 3
    assert came == AgentMessage(content="Is it?", extra={"marks": []})


async def test_a_call_of_a_tool_is_the_hook_s_own_too() -> None:
    """With the lists in its arguments; the memory has the model's call."""
    got: list[Any] = []

    @tool
    def note(lines: list[str]) -> str:
        """Note lines."""
        got.append(lines)
        return "done"

    def sign(_: Any, message: AgentMessage, session_id: object) -> None:
        message.output.arguments["lines"].append("signed")

    call = ToolCall(id="1", name="note", arguments={"lines": ["a"]})
    calls = Message(role="assistant", tool_calls=[call])
    agent = Agent(ScriptedBackend(calls, "Noted."), tools=[note])
    agent.before_action(sign)
    await agent("Note a.")
    executor = ToolExecutor([note])
    executor.before_action(
        lambda _, message, session_id: message.output[0].arguments["lines"].append("x")
    )
    sent = AgentMessage(output=[call])
    for _ in range(2):
        await executor(sent)
    assert got == [["a", "signed"], ["a", "x"], ["a", "x"]]
    assert call.arguments == {"lines": ["a"]}


async def test_what_a_partner_s_hook_changes_is_said_to_nobody_else() -> None:
    """Neither to the sender nor to the other members of a group."""
    a, b = (ConversableAgent(name, default_auto_reply="ok TERMINATE") for name in "ab")
    a.before_agent(be_brief)
    user = silent_user()
    result = await user.initiate_chat(a, "Hello.")
    assert (
        contents_by_sender(result.messages)[0]
        == contents_by_sender(user.chat_messages["a"])[0]
        == ("user", "Hello.")
    )
    assert contents_by_sender(a.chat_messages["user"])[0] == ("user", "Hello. (be brief)")

    await user.initiate_chat(GroupChat("team", [a, b]), "Hello.")
    assert contents_by_sender(a.chat_messages["team"])[0] == ("user", "Hello. (be brief)")
    assert contents_by_sender(b.chat_messages["team"])[0] == ("user", "Hello.")


async def test_what_cannot_be_copied_is_passed_on_as_it_is() -> None:
    """A message may contain any object."""
    lock = threading.Lock()
    agent = Agent(ScriptedBackend("ok"))
    agent.before_agent(be_brief)
    await agent(AgentMessage(content="Hello.", output=lock), session_id=1)
    assert agent.memory.messages(1)[0].output is lock
