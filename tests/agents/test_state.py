"""The state of agents: `load_state_dict` restores all of `state_dict`, each part at its place."""

import json
from dataclasses import dataclass
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, Field, computed_field, field_validator

from anabranch import Agent, AgentMessage, ConfigurationError, Message, ToolCall, tool
from anabranch.agents import JsonParser, ToolParser
from anabranch.agents.layers import TextCall, ToolAction
from anabranch.messages import Usage
from anabranch.testing import ScriptedBackend


class Named(BaseModel):
    """Has other names in JSON, different for reading and writing."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(validation_alias="Name", serialization_alias="title")
    secret: str = Field(exclude=True)
    length: int = Field(alias="len")

    @computed_field
    @property
    def twice(self) -> int:
        return 2 * self.length

    @field_validator("length", mode="before")
    @classmethod
    def read(cls, value: str) -> int:
        return int(value.removesuffix(" km"))


@dataclass
class Pair:
    left: bytes
    right: tuple[int, ...]


NILE = '{"Name": "Nile", "secret": "deep", "len": "6650 km"}'


async def save_and_load(agent: Agent[Any]) -> list[AgentMessage]:
    """Return session 0 after it was saved, and loaded as session 1."""
    agent.load_state_dict(json.loads(json.dumps(agent.state_dict(0))), 1)
    return agent.memory.messages(1)


@pytest.mark.parametrize(
    ("kind", "reply"),
    [
        (Named, NILE),
        (list[Named], f"Two: [{NILE}, {NILE}]"),
        (Pair, '{"left": "abc", "right": [1, 2]}'),
        (dict[int, Named], f'{{"7": {NILE}}}'),
        (Any, '{"7": [null, 1.5]}'),
    ],
)
async def test_what_a_parser_made_comes_back_whatever_its_fields_are_called(
    kind: Any, reply: str
) -> None:
    """Aliases, excluded fields, computed ones, and validators that read a text."""
    agent = Agent(ScriptedBackend(reply), output_format=JsonParser[Any](kind))
    answer = await agent("?", session_id=0)
    assert (await save_and_load(agent))[1] == answer.model_copy(update={"usage": Usage()})


numbers = st.sampled_from([float("nan"), float("inf"), float("-inf")]) | st.floats()


@given(st.lists(numbers, max_size=3), st.booleans())
def test_numbers_that_json_has_not_come_back(made: list[float], own: bool) -> None:
    """Any reader accepts the saved JSON; no reply contains `own`."""
    agent = Agent(output_format=JsonParser(list[float]), name="a")
    content = "the best" if own else json.dumps(made)
    agent.memory.add(AgentMessage(content=content, output=made, sender="a"), session_id=0)
    saved = json.dumps(agent.state_dict(0), allow_nan=False)
    agent.load_state_dict(json.loads(saved), 1)
    assert repr(agent.memory.messages(1)) == repr(agent.memory.messages(0))
    assert agent.state_dict(1) == agent.state_dict(0)


action_like = st.dictionaries(
    st.sampled_from([*ToolAction.__required_keys__, "more"]),
    st.none() | st.text(max_size=3) | st.dictionaries(st.text(max_size=2), st.integers()),
)


@given(action_like)
def test_the_steps_of_a_reply_that_looks_like_an_action_can_be_listed(said: Any) -> None:
    """With any fields of the model."""
    agent = Agent(output_format=JsonParser(dict), name="a")
    agent.memory.add(AgentMessage(content=json.dumps(said), output=said, sender="a"))
    assert all(step["content"] for step in agent.get_steps() if step["kind"] == "thought")


async def test_what_a_subclass_made_itself_comes_back() -> None:
    """It may differ from the reply's text."""

    class Best(Agent[list[int]]):
        async def forward(self, *messages: Any, **options: Any) -> AgentMessage[list[int]]:
            return AgentMessage(content="the best", output=[1, 2], sender=self.name)

    agent = Best(output_format=JsonParser(list[int]))
    await agent("?", session_id=0)
    assert (await save_and_load(agent))[1].output == [1, 2]


@pytest.mark.parametrize("reason", ["length", "content_filter"])
async def test_an_action_that_was_cut_off_is_none_after_loading_either(reason: Any) -> None:
    """Though its text alone could be parsed as complete."""
    cut = Message(role="assistant", content="Do: rm -rf /data/cache", finish_reason=reason)
    parser = ToolParser(TextCall("shell", "Do: ", "\n"))
    agent = Agent(ScriptedBackend(cut), output_format=parser)
    assert (await agent("?", session_id=0)).extra == {"status": reason}
    assert (await save_and_load(agent))[1].output["status"] == "invalid"


async def test_calls_of_tools_come_back() -> None:
    """With their results."""

    @tool
    def clock() -> str:
        """Tell the time."""
        return "noon"

    calls = Message(role="assistant", tool_calls=[ToolCall(id="1", name="clock")])
    agent = Agent(ScriptedBackend(calls, "It is noon."), tools=[clock])
    await agent("?", session_id=0)
    assert await save_and_load(agent) == agent.memory.messages(0)


# --- refused states

plain = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda below: (
        st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=6), below, max_size=3)
    ),
    max_leaves=6,
)
parts = st.fixed_dictionaries({}, optional={"role": plain, "content": plain, "tool_calls": plain})
records = st.fixed_dictionaries(
    {},
    optional={
        "content": plain,
        "sender": plain | st.just("river"),
        "formatted": plain | st.lists(parts, max_size=2),
        "type": st.sampled_from(["tools", None]) | plain,
        "extra": plain,
        "stream_state": plain,
    },
)


@settings(deadline=None, max_examples=200)
@given(st.lists(records | plain, max_size=3) | plain)
def test_a_memory_is_loaded_or_refused(saved: Any) -> None:
    """With one error, whatever the file contains; then nothing has changed."""
    parsers: list[Any] = [None, JsonParser(list[int]), ToolParser()]
    for parser in parsers:
        agent = Agent(ScriptedBackend(), name="river", output_format=parser)
        agent.memory.add("before", session_id=0)
        try:
            agent.load_state_dict({"memory": saved})
        except ConfigurationError:
            assert [message.content for message in agent.memory.messages(0)] == ["before"]
        else:
            json.dumps(agent.state_dict(0))
            agent.aggregate(0)


def test_a_part_without_a_role_is_refused() -> None:
    """As any other invalid message."""
    agent = Agent(ScriptedBackend())
    with pytest.raises(ConfigurationError, match="not a saved memory"):
        agent.memory.load([{"type": "tools", "formatted": [{"content": "x"}]}])


# --- where agents are found


class Team(Agent[Any]):
    """Has the given attributes."""

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held


def one(name: str) -> Agent[Any]:
    return Agent(ScriptedBackend(), name=name)


keys = st.one_of(
    st.integers(0, 2),
    st.booleans(),
    st.sampled_from(["0", "1", "a", "a.b", "b", "[1]", "a[1]", "", "True", "memory"]),
    st.tuples(st.integers(0, 1)),
)
held = st.recursive(
    st.just(...),
    lambda below: (
        st.lists(below, max_size=3)
        | st.tuples(below, below)
        | st.dictionaries(keys, below, max_size=4)
    ),
    max_leaves=8,
)


@given(held)
def test_every_agent_is_found_at_a_path_of_its_own(shape: Any) -> None:
    """At any depth of containers, with any keys; no memory is lost."""
    made: list[Agent[Any]] = []

    def fill(shape: Any) -> Any:
        if shape is ...:
            made.append(one(f"{len(made)}"))
            return made[-1]
        if isinstance(shape, dict):
            return {key: fill(each) for key, each in cast("Any", shape).items()}
        return type(shape)(fill(each) for each in shape)

    team = Team(fill(shape))
    for agent in made:
        agent.memory.add(agent.name, session_id=0)
    paths = dict(team.named_children())
    assert sorted(map(id, paths.values())) == sorted(map(id, made))
    state = json.loads(json.dumps(team.state_dict(0)))
    assert len(state) == len(made) + 1
    team.load_state_dict(state, 1)
    assert all(agent.memory.messages(1)[0].content == agent.name for agent in made)


def test_paths_are_plain_where_they_can_be() -> None:
    """An ambiguous key is written as in Python."""
    team = Team({"editor": one("a"), "1": one("b"), 1: one("c"), "x.y": [one("d"), [one("e")]]})
    assert [path for path, _ in team.named_children()] == [
        "held.editor",
        "held.1",
        "held[1]",
        "held['x.y'].0",
        "held['x.y'].1.0",
    ]


def test_containers_that_hold_themselves_come_to_an_end() -> None:
    """And so do very deep ones."""
    held: list[Any] = [one("a")]
    held.append(held)
    deep: list[Any] = [one("b")]
    for _ in range(10_000):
        deep = [deep]
    team = Team(held)
    team.__dict__["deep"] = deep
    assert [agent.name for _, agent in team.named_children()] == ["a", "b"]
