"""Typed output that JSON does not restore, answers that do not fit, and what a memory keeps."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Field, SecretStr, field_serializer, field_validator

from anabranch import (
    Agent,
    ConfigurationError,
    ContentFiltered,
    Message,
    ModelRetry,
    OutputInvalid,
    Refused,
    ToolCall,
    tool,
)
from anabranch.agents import AgentMessage, Sequential, StepAgent
from anabranch.testing import ScriptedBackend


class City(BaseModel):
    name: str


class CityOfLand(City):
    land: str


class Secret(BaseModel):
    value: SecretStr


class Excluded(BaseModel):
    value: str = Field(default="", exclude=True)


class Alias(BaseModel):
    value: str = Field(validation_alias="name", serialization_alias="other")


class AliasWithDefault(BaseModel):
    value: str = Field(default="?", validation_alias="name")


class Serialized(BaseModel):
    value: str

    @field_serializer("value")
    def shorten(self, value: str) -> str:
        return value[:1]


class Broken(BaseModel):
    value: str

    @field_serializer("value")
    def fail(self, value: str) -> str:
        raise ArithmeticError(value)


class Before(BaseModel):
    value: str

    @field_validator("value", mode="before")
    @classmethod
    def double(cls, value: str) -> str:
        return value * 2


class Bytes(BaseModel):
    value: bytes


KINDS: dict[type[BaseModel], Callable[[str], Any]] = {
    Secret: SecretStr,
    Excluded: str,
    Alias: str,
    AliasWithDefault: str,
    Serialized: str,
    Broken: str,
    Before: str,
    Bytes: str.encode,
}
RESTORED_FROM_JSON = {Alias, AliasWithDefault, Bytes}
CITY = '{"name": "Paris"}'


def make(kind: Any, *replies: Any, change: Any = None, **options: Any) -> Agent[Any]:
    agent = Agent[Any](ScriptedBackend(*replies), output_type=kind, name="g", **options)
    if change is not None:
        agent.output_validator(lambda value: value.model_copy(update={"value": change}))
    return agent


@given(
    kind=st.sampled_from([*KINDS]),
    written=st.text("abc", min_size=2, max_size=3),
    changed=st.none() | st.text("ABC", min_size=2, max_size=3),
)
async def test_a_state_never_changes_or_refuses_an_answer(
    kind: type[BaseModel], written: str, changed: str | None
) -> None:
    """A value that JSON cannot restore is read from the text of the answer again."""
    text = json.dumps({"value": written, "name": written})
    change = None if changed is None else KINDS[kind](changed)
    agent = make(kind, text, change=change)
    answer = await agent("?", session_id=1)
    expected = kind.model_validate_json(text)
    unchanged = expected.model_copy()
    if change is not None:
        vars(expected)["value"] = change
    assert answer.output == expected

    state = agent.state_dict(1)
    other = make(kind)
    other.load_state_dict(json.loads(json.dumps(state)))
    restored = other.memory.messages()[-1].output
    assert restored == (expected if kind in RESTORED_FROM_JSON else unchanged)
    assert other.state_dict() == state  # as often as it is saved


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
async def test_a_journal_gives_the_validated_answer_and_stays_usable(
    kind: type[BaseModel], tmp_path: Path
) -> None:
    """The caller gets the same value as without a journal."""
    path = str(tmp_path / "j.db")
    text = json.dumps({"value": "ab", "name": "ab"})
    change = KINDS[kind]("BC")
    agent = make(kind, text, text, change=change, journal=path)
    assert (await agent("?", session_id=1)).output.value == change
    assert (await agent("!", session_id=1)).output.value == change
    unchanged: Any = kind.model_validate_json(text)
    expected = change if kind in RESTORED_FROM_JSON else unchanged.value
    again = make(kind, text, change=change, journal=path)
    assert [each.output.value for each in (await again.recall(1))[1::2]] == [expected] * 2
    assert (await again("?", session_id=1)).output.value == change
    assert not await again.end_interrupted(1)


async def test_a_journal_of_a_team_gives_the_typed_answer_of_its_agent(tmp_path: Path) -> None:
    """Its output has the type of the agent that answered."""

    class Team(Agent[City]):
        def __init__(self, name: str, agent: Agent[Any]) -> None:
            super().__init__(name=name, journal=str(tmp_path / "j.db"))
            self.agent = agent

        async def forward(self, *messages: Any, **options: Any) -> AgentMessage[City]:
            return await self.agent(*messages, **options)

    def team(name: str) -> Agent[Any]:
        writer = make(City, CITY)
        if name == "team":
            return Team(name, writer)
        return Sequential(writer, name=name, journal=str(tmp_path / "j.db"))

    for name in "team", "sequence":
        assert (await team(name)("?", session_id=1)).output == City(name="Paris")
        assert (await team(name).recall(1))[-1].output == City(name="Paris")


async def test_a_new_required_field_leaves_journal_sessions_usable(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The earlier outputs are None until the type is the earlier one again."""
    path = str(tmp_path / "j.db")
    await make(City, CITY, journal=path)("?", session_id=1)
    later = make(CityOfLand, '{"name": "Rome", "land": "Italy"}', journal=path)
    with caplog.at_level(logging.WARNING, "anabranch.agents"):
        answer = await later("?", session_id=1)
    assert answer.output == CityOfLand(name="Rome", land="Italy")
    assert "land: Field required" in caplog.text
    first = (await later.recall(1))[1]
    assert (first.text, first.output) == (CITY, None)
    restored = await make(City, journal=path).recall(1)
    assert [each.output.name for each in restored[1::2]] == ["Paris", "Rome"]


async def test_answers_that_do_not_fit_are_not_remembered() -> None:
    """They would be examples for the next request."""
    agent = make(City, "bad", "bad", "bad", CITY)
    with pytest.raises(OutputInvalid):
        await agent("one", session_id=1)
    assert agent.memory.messages(1) == []
    await agent("two", session_id=1)
    assert [each.text for each in agent.memory.messages(1)] == ["two", CITY]


async def test_a_refusal_is_remembered_as_its_text() -> None:
    """And never as an empty message."""
    agent = make(City, Message(role="assistant", refusal="I can't."), CITY)
    with pytest.raises(Refused):
        await agent("one", session_id=1)
    await agent("two", session_id=1)
    assert isinstance(agent.backend, ScriptedBackend)
    sent = [each.content for each in agent.backend.requests[-1].messages if each.role != "system"]
    assert sent == ["one", "I can't.", "two"]


@tool(ends_turn=True)
def save(name: str) -> str:
    """Save it."""
    return name


def saves(result: str) -> Message:
    call = ToolCall(id="1", name="save", arguments={"name": result})
    return Message(role="assistant", tool_calls=[call])


async def test_the_result_that_ends_the_turn_must_fit_and_passes_the_validators() -> None:
    """A validator may have the model asked again."""
    agent = make(City, saves("saved"), saves(CITY), '{"name": "Rome"}', tools=[save])
    with pytest.raises(OutputInvalid, match=r"result of save.*'saved'"):
        await agent("?")

    @agent.output_validator
    def is_rome(city: City) -> City:
        if city.name != "Rome":
            raise ModelRetry("take Rome")
        return city

    assert (await agent("?")).output == City(name="Rome")
    assert isinstance(agent.backend, ScriptedBackend)
    assert "take Rome" in (agent.backend.requests[-1].messages[-1].content or "")


async def test_a_filtered_reply_is_no_answer() -> None:
    """Not even if its JSON fits. After its maximum length, a complete object is one."""
    for reason in "content_filter", "length":
        said = Message(role="assistant", content=CITY, finish_reason=reason)
        call = ToolCall(id="1", name="final_answer", arguments={"name": "Paris"})
        calling = Message(role="assistant", tool_calls=[call], finish_reason=reason)
        for mode, reply in ("text", said), ("tool", calling):
            agent = make(City, reply, output_mode=mode)
            if reason == "length":
                assert (await agent("?")).output == City(name="Paris")
                continue
            with pytest.raises(ContentFiltered):
                await agent("?")


def test_arguments_that_would_change_nothing_are_refused() -> None:
    """Where the agent is made."""

    class Team(Agent[City]):
        async def forward(self, *messages: Any, **options: Any) -> AgentMessage[City]:
            raise NotImplementedError

    with pytest.raises(ConfigurationError, match="has its own forward"):
        Team(output_type=City)
    with pytest.raises(ConfigurationError, match="takes no output_type="):
        StepAgent(ScriptedBackend(), output_type=City)
    with pytest.raises(ConfigurationError, match="output_retries"):
        Agent(ScriptedBackend(), output_type=City, output_retries=True)


# --- streams


class Item(BaseModel):
    name: str
    kind: Literal["fruit", "tool"] = "fruit"


@settings(max_examples=20)
@given(
    st.lists(
        st.builds(Item, name=st.text(max_size=2), kind=st.sampled_from(["fruit", "tool"])),
        max_size=3,
    )
)
async def test_a_list_grows_without_losing_or_repeating_values(items: list[Item]) -> None:
    """A field that is incomplete again does not remove its element."""
    text = json.dumps([each.model_dump() for each in items])
    seen: list[list[Item]] = []
    async with make(list[Item], text).stream("?") as stream:
        seen += [list(value) async for value in stream.output()]
    lengths = [len(each) for each in seen]
    assert lengths == sorted(lengths)
    assert all(one != other for one, other in pairwise(seen))
    assert seen[-1] == items


@pytest.mark.parametrize("reading", ["text", "output"])
async def test_a_closed_or_cut_stream_does_not_end_as_if_complete(reading: str) -> None:
    """A read after the block raises, and so does one after a cancelled read."""
    stream = make(City, CITY).stream("?")
    async with stream:
        pass
    with pytest.raises(RuntimeError, match="is closed"):
        getattr(stream, reading)()

    agent = Agent(ScriptedBackend(CITY, delay=30), output_type=City)
    async with agent.stream("?") as stream:
        items = getattr(stream, reading)()
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(anext(items), 0.01)
        with pytest.raises(RuntimeError, match="was cancelled"):
            await anext(items)


async def test_an_interrupted_call_forgets_answers_that_did_not_fit(tmp_path: Path) -> None:
    """The model had been asked again."""
    path = str(tmp_path / "j.db")
    replies = "bad", CITY
    begun = 0
    async with make(City, *replies, journal=path).stream("q", session_id=1) as stream:
        async for message in stream:
            begun += message.stream_state == "begin"
            if begun == 2:
                break
    agent = make(City, journal=path)
    await agent.end_interrupted(1)
    assert "bad" not in [each.text for each in agent.memory.messages(1)]
