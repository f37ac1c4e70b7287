"""The owner of a message: agents without names, and names that several agents have."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anabranch import Agent, AgentMessage, ConfigurationError, Message, ToolCall, tool
from anabranch.agents import (
    ConversableAgent,
    Orchestrator,
    Sequential,
    State,
    StepAgent,
    SummaryMemory,
    UserProxyAgent,
)
from anabranch.agents.layers._call import run_in_tree
from anabranch.messages import Request
from anabranch.testing import ScriptedBackend


def roles(request: Request) -> list[tuple[str, str | None]]:
    return [(message.role, message.content) for message in request.messages]


class UnnamedAgent(Agent[Any]):
    """Called after its class, as another agent may be."""


@settings(deadline=None)
@given(
    kinds=st.lists(st.sampled_from([Agent, UnnamedAgent, StepAgent]), min_size=1, max_size=4),
    names=st.lists(st.sampled_from([None, "a", "b", "c", "d"]), min_size=4, max_size=4),
    session=st.sampled_from([None, 7]),
)
def test_each_agent_takes_the_answer_of_the_one_before_for_the_user_s(
    kinds: list[Any], names: list[str | None], session: int | None
) -> None:
    """With names or without, in a session or not, twice."""
    given = [name for name in names[: len(kinds)] if name is not None]
    if len({*given}) < len(given):  # which is refused
        names = [None] * 4

    async def main() -> None:
        backends = [ScriptedBackend(otherwise=f"answer {number}") for number in range(len(kinds))]
        chain = Sequential(
            *(
                kind(backend, name=name)
                for kind, backend, name in zip(kinds, backends, names, strict=False)
            )
        )
        rounds = 2
        for number in range(rounds):
            answer = await chain(f"question {number}", session_id=session)
            assert answer.text == f"answer {len(kinds) - 1}"
        for place, backend in enumerate(backends):
            told = [f"answer {place - 1}"] * rounds if place else ["question 0", "question 1"]
            read = [each for each in roles(backend.requests[-1]) if each[0] != "system"]
            first = [("user", told[0]), ("assistant", f"answer {place}")] if session else []
            assert read == [*first, ("user", told[1])]

    asyncio.run(main())


@given(
    names=st.lists(st.sampled_from([None, "a", "b", "c"]), min_size=2, max_size=4),
    nested=st.booleans(),
)
def test_two_agents_of_one_name_do_not_answer_each_other(
    names: list[str | None], nested: bool
) -> None:
    """Each would read the other's answer as its own. One agent may be there twice."""
    agents = [Agent(ScriptedBackend(), name=name) for name in names]
    given = [name for name in names if name is not None]

    def chain(items: list[Agent[Any]]) -> Sequential:
        return Sequential(Sequential(*items[:-1]), items[-1]) if nested else Sequential(*items)

    if len({*given}) < len(given):
        with pytest.raises(ConfigurationError, match=r"two agents called '[abc]'"):
            chain(agents)
    else:
        assert len([*chain(agents).named_agents()]) > len(names)
        chain([*agents, agents[0]])


def test_no_agent_of_a_chain_takes_the_place_of_another() -> None:
    """Neither by its number nor by a key."""
    first, second = Agent(ScriptedBackend(), name="a"), Agent(ScriptedBackend(), name="b")
    with pytest.raises(ConfigurationError, match="two agents as '1'"):
        Sequential({"1": first}, second)
    with pytest.raises(ConfigurationError, match="two agents as 'x'"):
        Sequential({"x": first}, {"x": second})


async def test_an_agent_without_a_name_may_be_given_its_own_answer() -> None:
    """As a text to improve: the model reads it as the user's."""
    backend = ScriptedBackend(otherwise="better")
    agent = Agent(backend)
    answer = await agent("Write.")
    await agent(answer, "Improve this.")
    assert roles(backend.requests[1]) == [("user", "better\nImprove this.")]


async def test_an_agent_without_a_name_is_steered_by_another() -> None:
    """A message from another agent of this name is not its own."""

    @tool
    def work() -> str:
        """Work."""
        assert call.steer(AgentMessage(content="Hurry.", sender="Agent"))
        return "worked"

    asks = Message(role="assistant", tool_calls=[ToolCall(id="1", name="work")])
    backend = ScriptedBackend(asks, "done")
    agent = Agent(backend, tools=[work])
    call: Any = agent.call("Go.", session_id=1)
    assert (await run_in_tree(call)).text == "done"
    assert roles(backend.requests[1])[-1] == ("user", "Hurry.")
    assert [each.sender for each in agent.memory.messages(1)][2] == "another Agent"


async def test_a_named_agent_takes_what_it_has_said_for_its_own() -> None:
    """So it may be called with a history."""
    backend = ScriptedBackend(otherwise="on")
    said = AgentMessage(content="one", sender="sage")
    await Agent(backend, name="sage")("Count.", said, "Go on.")
    assert roles(backend.requests[0]) == [
        ("user", "Count."),
        ("assistant", "one"),
        ("user", "Go on."),
    ]


def test_reserved_names_are_refused() -> None:
    """Those of the senders of messages to an agent."""
    backend = ScriptedBackend(otherwise="ok")
    with pytest.raises(ConfigurationError, match="an agent cannot be called 'user'"):
        Agent(backend, name="user")
    with pytest.raises(ConfigurationError, match="'tools'"):
        StepAgent(backend, name="tools")
    with pytest.raises(ConfigurationError, match="'memory'"):
        Agent(backend, name="memory", memory=SummaryMemory(backend, max_tokens=9))
    for name in ("environment", "orchestrator"):
        with pytest.raises(ConfigurationError, match=name):
            Orchestrator([Agent(backend, name=name)], lambda obs, state: None, State())
        Agent(backend, name=name)


@pytest.mark.parametrize("make", [UserProxyAgent, ConversableAgent])
async def test_a_conversable_agent_called_user_takes_no_question_for_its_own(make: Any) -> None:
    """In a call outside of a conversation."""
    backend = ScriptedBackend(otherwise="yes")
    user = make("user", backend, human_input_mode="NEVER")
    await user("Are you there?", session_id=1)
    await user("Still?", session_id=1)
    expected = [("user", "Are you there?"), ("assistant", "yes"), ("user", "Still?")]
    assert roles(backend.requests[-1]) == expected


# --- messages of the assistant as inputs


@tool
def population(city: str) -> int:
    """Return how many people live in a city."""
    return 7


histories = st.lists(st.sampled_from(["user", "assistant", "tool"]), min_size=1, max_size=5).map(
    lambda drawn: [message for number, role in enumerate(drawn) for message in turn(number, role)]
)


def turn(number: int, role: str) -> list[Message]:
    if role == "tool":
        call = ToolCall(id=f"call_{number}", name="population", arguments={"city": "Oslo"})
        result = Message(role="tool", tool_call_id=call.id, name=call.name, content=f"{number}")
        return [Message(role="assistant", content=f"See {number}.", tool_calls=[call]), result]
    return [Message(role="user" if role == "user" else "assistant", content=f"{role} {number}")]


@settings(deadline=None)
@given(histories, st.sampled_from([None, "sage"]))
def test_a_history_of_messages_is_what_the_model_reads(
    history: list[Message], name: str | None
) -> None:
    """Messages of the user, those of the agent, and its calls with their results."""

    async def main() -> None:
        backend = ScriptedBackend(otherwise="ok")
        agent = Agent(backend, name=name, tools=[population])
        await agent(*history, "Now?", session_id=0)
        agent.load_state_dict(agent.state_dict(0), 1)
        await agent(session_id=1)
        read: list[tuple[str, Any]] = []
        for message in [*history, Message(role="user", content="Now?")]:
            if message.role == "user" and read and read[-1][0] == "user":
                read[-1] = ("user", f"{read[-1][1]}\n{message.content}")
            else:
                read.append((message.role, message.content))
        assert roles(backend.requests[0]) == read
        assert roles(backend.requests[1]) == [*read, ("assistant", "ok")]
        calls = [[call.id for call in each.tool_calls] for each in backend.requests[0].messages]
        assert sorted(each for of in calls for each in of) == sorted(
            call.id for message in history for call in message.tool_calls
        )

    asyncio.run(main())


async def test_a_message_of_the_user_is_no_agent_s_own() -> None:
    """Even with the agent's name."""
    backend = ScriptedBackend(otherwise="ok")
    await Agent(backend, name="sage")(Message(role="user", name="sage", content="Hello."))
    assert roles(backend.requests[0]) == [("user", "Hello.")]


async def test_what_is_no_history_is_refused_before_the_model_is_asked() -> None:
    """Calls without results, results without calls, and system prompts."""
    backend = ScriptedBackend(otherwise="ok")
    agent = Agent(backend, name="sage")
    calls, result = turn(1, "tool")
    for wrong in ([calls], [calls, "no"], [result], [calls, result, result]):
        with pytest.raises(ValueError, match="result"):
            agent.call(*wrong)
    with pytest.raises(TypeError, match="instructions="):
        agent.call(Message(role="system", content="Be brief."))
    with pytest.raises(TypeError, match="the last message must be a user's"):
        agent.call("Hello.", Message(role="assistant", content="Hello."))
    assert not backend.requests
