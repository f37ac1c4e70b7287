"""Failures in a stream: each reply that broke off or could not be used, once."""

import asyncio
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from anabranch import Agent, AnabranchError, BackendUnavailable, Message, ToolCall, tool
from anabranch.agents import ConversableAgent, JsonParser, Sequential
from anabranch.messages import Delta
from anabranch.testing import ScriptedBackend, deltas


class Number(BaseModel):
    number: int


@tool
async def clock() -> str:
    """Tell the time."""
    return "noon"


def calling(text: str) -> Message:
    call = ToolCall(id="1", name="clock")
    return Message(role="assistant", content=text or None, tool_calls=[call])


# A round: the reply, and the text that fails with it.
ROUNDS: dict[str, tuple[Any, str | None]] = {
    "no JSON": ("It is five.", "It is five."),
    "a call": (calling("Let me look."), None),
    "a bare call": (calling(""), None),
    "an error": (BackendUnavailable("gone"), None),
    "broken off": ([*deltas("It is f")[:-2], BackendUnavailable("gone")], "It is f"),
    "broken call": ([*deltas(calling("I look."))[:-3], BackendUnavailable("gone")], "I look."),
    "the answer": ('{"number": 5}', None),
}
LAST = {"an error", "broken off", "broken call", "the answer"}


@settings(deadline=None)
@given(st.lists(st.sampled_from(sorted(ROUNDS)), min_size=1, max_size=5), st.booleans())
def test_each_reply_that_fails_is_told_once(rounds: list[str], in_chat: bool) -> None:
    """And no complete reply; also to listeners of a conversation."""
    ended = next((n for n, each in enumerate(rounds) if each in LAST), None)
    rounds = [*rounds, "an error"] if ended is None else rounds[: ended + 1]
    refused = 0
    expected: list[str] = []
    for each in rounds:
        text = ROUNDS[each][1]
        if text is not None:
            expected.append(text)
        refused += each == "no JSON"
        if refused > 2:  # the parser's retries are spent
            break

    async def main() -> list[Any]:
        options: dict[str, Any] = {"tools": [clock], "output_format": JsonParser(Number)}
        backend = ScriptedBackend(*(ROUNDS[each][0] for each in rounds))
        if in_chat:
            user = ConversableAgent("user")
            agent = ConversableAgent("agent", backend, **options)
            stream = user.stream_chat(agent, "?", max_turns=1)
        else:
            stream = Sequential(Agent(backend, name="agent", **options)).stream("?")
        told: list[Any] = []
        try:
            async for message in stream:
                if message.sender == "agent" and message.stream_state == "failed":
                    told.append(message.content)  # noqa: PERF401 - also if it raises then
        except AnabranchError:
            pass
        return told

    assert asyncio.run(main()) == expected


async def test_a_failure_after_a_whole_answer_fails_no_text() -> None:
    """The failure itself is raised."""
    agent = Agent(ScriptedBackend([Delta(text="whole"), Delta(done=True)]))

    def refuse(*_: Any) -> None:
        raise ConnectionError("the hook's")

    agent.after_agent(refuse)
    states: list[str] = []
    try:
        async for message in agent.stream("?"):
            states.append(message.stream_state)  # noqa: PERF401 - also if it raises then
    except ConnectionError:
        states.append("raised")
    assert states == ["begin", "raised"]
