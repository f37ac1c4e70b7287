"""States of agents that have changed since they were saved: names, agents, fields."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from anabranch import Agent, AgentMessage, ConfigurationError, ToolCall, tool
from anabranch.agents import JsonParser, Sequential
from anabranch.messages import Message
from anabranch.testing import ScriptedBackend

names = st.sampled_from([None, "a", "b", "Agent", "memory"])


@tool
def look() -> str:
    """Look."""
    return "seen"


def roles(backend: ScriptedBackend) -> list[tuple[str, str | None]]:
    return [(each.role, each.content) for each in backend.requests[-1].messages]


def pair(one: str | None, two: str | None) -> tuple[Sequential, list[ScriptedBackend]]:
    """Two agents in a row, the first with a tool."""

    def reply(request: Any) -> Message | str:
        if request.tools and request.messages[-1].role == "user":
            return Message(role="assistant", tool_calls=[ToolCall(id="1", name="look")])
        return f"answer {len(request.messages)}"

    backends = [ScriptedBackend(otherwise=reply) for _ in range(2)]
    first = Agent(backends[0], name=one, tools=[look])
    return Sequential(first, Agent(backends[1], name=two)), backends


@settings(deadline=None)
@given(names, names, names, names, st.integers(1, 2))
def test_a_state_means_the_same_under_other_names(
    one: str | None, two: str | None, later_one: str | None, later_two: str | None, calls: int
) -> None:
    """An agent's answers stay its own, others do not become so, also after a second save."""

    async def main() -> None:
        chain, backends = pair(one, two)
        for number in range(calls):
            await chain(f"question {number}", session_id=0)
        state = json.loads(json.dumps(chain.state_dict(0)))
        await chain("And now?", session_id=0)
        expected = [roles(each) for each in backends]
        for _ in range(2):
            other, backends = pair(later_one, later_two)
            assert other.load_state_dict(state) == []
            state = json.loads(json.dumps(other.state_dict()))
            await other("And now?", session_id=0)
            assert [roles(each) for each in backends] == expected

    pairs = [(one, two), (later_one, later_two)]
    if all(first != second or first in (None, "Agent") for first, second in pairs):
        asyncio.run(main())


async def test_an_earlier_release_s_state_of_another_name_is_loaded_with_a_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It has no mark of an agent's own messages."""
    agent = Agent(ScriptedBackend(otherwise="yes"), name="sage")
    await agent("Well?", session_id=0)
    state = agent.state_dict()
    for record in state["memory"]:
        record.pop("own", None)
    with caplog.at_level(logging.WARNING, "anabranch.agents"):
        agent.load_state_dict(state, 1)
        assert not caplog.records
        backend = ScriptedBackend(otherwise="yes")
        other = Agent(backend, name="guru")
        other.load_state_dict(state)
    assert "no messages of its own, but messages of sage" in caplog.text
    assert agent.memory.save(1) == agent.memory.save(0)


# --- changed agents and fields


def team(*names: str, strict_json: bool = False) -> Any:
    """An agent with agents below it."""
    above: Any = Agent(ScriptedBackend(otherwise="ok"), name="above")
    for name in names:
        setattr(above, name, Agent(ScriptedBackend(otherwise="ok"), name=name))
    return above


agents = st.lists(st.sampled_from(["writer", "critic", "editor"]), unique=True)


@given(agents, agents, st.lists(st.sampled_from(["colour", "mood"]), unique=True))
def test_agents_and_fields_that_came_and_went_are_reported(
    before: list[str], now: list[str], fields: list[str]
) -> None:
    """Without `strict`; with it the load fails."""
    saved, other = team(*before), team(*now)
    for name, agent in saved.named_agents().items():
        agent.memory.add("hello", AgentMessage(content=name, sender=agent.name), session_id=0)
    state = json.loads(json.dumps(saved.state_dict()))
    for field in fields:
        state["memory"][1][field] = "blue"
    gone = sorted(f"{name}.memory" for name in before if name not in now)
    dropped = [*gone, *(f"memory[1].{field}" for field in sorted(fields))]
    added = [name for name in now if name not in before]

    other.memory.add("of now")
    earlier = other.state_dict()
    if dropped or added:
        with pytest.raises(ConfigurationError):
            other.load_state_dict(state)
        assert other.state_dict() == earlier
    assert other.load_state_dict(state, strict=False) == dropped
    for name, agent in other.named_agents().items():
        expected = [] if name in added else ["hello", name]
        assert [each.content for each in agent.memory.messages()] == expected
    assert saved.load_state_dict(saved.state_dict(), 1) == []


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=6,
)
record_fields = st.sampled_from(
    ["content", "parts", "sender", "formatted", "extra", "type", "receiver", "own", "usage", "x"]
)
records = st.one_of(json_values, st.dictionaries(record_fields, json_values | st.just("tools")))


@given(
    st.dictionaries(
        st.sampled_from(["memory", "writer.memory", "x"]), st.lists(records) | json_values
    )
)
def test_whatever_a_state_is_it_is_loaded_without_strict(state: dict[str, Any]) -> None:
    """The loaded part can be saved and loaded; exactly the dropped values are reported."""
    agent = team("writer")
    dropped = agent.load_state_dict(state, strict=False)
    assert len({*dropped}) == len(dropped)
    saved = agent.state_dict()
    agent.load_state_dict(saved, 1)
    assert agent.state_dict(1) == saved
    given_records = (
        [each for key in ("memory", "writer.memory") for each in state.get(key) or ()]
        if all(isinstance(each, list) for each in state.values())
        else None
    )
    if given_records is not None:
        kept = sum(map(len, saved.values()))
        whole = [each for each in dropped if each.endswith("]")]
        assert kept + len(whole) == len(given_records)


class City(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str
    country: str


class SmallCity(BaseModel):
    model_config = ConfigDict(extra="forbid")
    name: str


async def test_what_a_parser_has_made_is_dropped_if_it_does_not_know_it_any_more() -> None:
    """The message stays."""
    reply = '{"name": "Oslo", "country": "Norway"}'
    agent = Agent(ScriptedBackend(reply), output_format=JsonParser(City), name="a")
    await agent("?", session_id=0)
    state = json.loads(json.dumps(agent.state_dict()))
    other = Agent(ScriptedBackend(), output_format=JsonParser(SmallCity), name="a")
    with pytest.raises(ConfigurationError, match="not a saved memory of a"):
        other.load_state_dict(state)
    assert other.load_state_dict(state, strict=False) == ["memory[1].output"]
    asked, answer = other.memory.messages()
    assert (asked.content, answer.content, answer.output) == ("?", reply, None)


def test_a_path_of_an_earlier_release_is_read() -> None:
    """Its half surrogate pair is now written as in Python."""
    agent: Any = Agent(name="above")
    agent.below = {"\ud800x": Agent(name="below")}
    assert agent.load_state_dict({"memory": [], "below.\ud800x.memory": [{"content": "hi"}]}) == []
    assert [each.content for each in agent.below["\ud800x"].memory.messages()] == ["hi"]


@pytest.mark.parametrize("wrong", [None, 5, "memory", ["memory"]])
def test_what_is_no_state_is_refused_without_strict_too(wrong: Any) -> None:
    """No part of it can be used."""
    with pytest.raises(ConfigurationError, match="a state must be a mapping"):
        Agent(ScriptedBackend()).load_state_dict(wrong, strict=False)
