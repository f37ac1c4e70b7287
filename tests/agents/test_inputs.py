"""Invalid messages and requests are refused with their names."""

from __future__ import annotations

import asyncio
from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch import Agent, ConfigurationError, Message, ToolCall, connect, tool
from anabranch.agents import Sequential
from anabranch.agents.layers import AgentMessage
from anabranch.agents.layers._hooks import Moment
from anabranch.backends import Fallback
from anabranch.backends._cassette import CassetteBackend
from anabranch.messages import Conversation, Request
from anabranch.testing import ScriptedBackend

USER: dict[str, Any] = {"role": "user", "content": "x"}

no_messages = st.one_of(
    st.just([USER]),
    st.just(USER),
    st.text(min_size=1),
    st.integers(),
    st.none(),
    st.lists(st.sampled_from(["x", None, USER]), min_size=1),
)


@settings(deadline=None)
@given(no_messages)
def test_what_is_no_request_is_a_type_error(wrong: Any) -> None:
    """By each backend, before it sends anything."""
    backend = ScriptedBackend(otherwise="ok")
    server = connect("http://127.0.0.1:9/v1", model="m")
    for each in (backend, server):
        with pytest.raises(TypeError, match="a backend takes a Request"):
            asyncio.run(each.complete(wrong))
    played, recording = CassetteBackend("none"), CassetteBackend("none", record=backend)
    for each in (backend, server, Fallback([backend]), played, recording):
        with pytest.raises(TypeError, match="a backend takes a Request"):
            next(each.stream_sync(wrong))
    assert not backend.requests


@given(st.sampled_from([USER, "x", None, 7]), st.booleans())
def test_a_request_is_made_of_messages(wrong: Any, first: bool) -> None:
    """At each position of the invalid value."""
    said = Message(role="user", content="x")
    with pytest.raises(ConfigurationError, match="must be Messages, not"):
        Request([wrong, said] if first else [said, wrong])
    if isinstance(wrong, str | dict):
        conversation = Conversation()
        conversation.add(wrong)
        assert conversation.request().messages == (said,)


@pytest.mark.parametrize("moment", get_args(Moment))
@pytest.mark.parametrize("wrong", ["text", "", 0, {"content": "text"}])
@pytest.mark.parametrize("waits", [False, True])
async def test_what_a_hook_returns_is_a_message_or_nothing(
    moment: str, wrong: Any, waits: bool
) -> None:
    """Otherwise the call or the tool fails with an error that names the hook."""

    @tool
    def work() -> str:
        """Work."""
        return "worked"

    def bad_hook(agent: Any, message: AgentMessage, session_id: Any) -> Any:
        return wrong

    async def bad_async_hook(agent: Any, message: AgentMessage, session_id: Any) -> Any:
        return wrong

    call = Message(role="assistant", tool_calls=[ToolCall(id="1", name="work")])
    backend = ScriptedBackend(call, "done")
    agent = Agent(backend, tools=[work])
    getattr(agent, moment)(bad_async_hook if waits else bad_hook)
    if moment.endswith("agent"):
        with pytest.raises(TypeError, match=r"bad_.*hook.* must return an AgentMessage or None"):
            await Sequential(agent)("Go.")
    else:
        assert (await agent("Go.")).text == "done"
        (result,) = [each for each in backend.requests[1].messages if each.role == "tool"]
        assert "must return an AgentMessage or None" in f"{result.content}"
