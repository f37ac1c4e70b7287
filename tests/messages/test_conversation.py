"""Conversations read and write the wire's message format, and refuse other objects at once."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anabranch import (
    Agent,
    Commander,
    ConfigurationError,
    Conversation,
    Message,
    Tool,
    ToolCall,
    tool,
)
from anabranch.messages import Request, Usage, request_body
from anabranch.testing import ScriptedBackend

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
WIRE = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Add."},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "2", "tool_call_id": "c1"},
]
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
WIRE_TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds one.", "parameters": SCHEMA},
}

texts = st.text(max_size=20)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant"]),
    content=texts,
    reasoning=st.none() | texts.filter(bool),
    usage=st.none() | st.builds(Usage, input_tokens=st.integers(0, 99)),
    finish_reason=st.none() | st.just("stop"),
) | st.builds(
    Message,
    role=st.just("assistant"),
    tool_calls=st.lists(
        st.builds(ToolCall, id=st.just("c"), name=st.just("f"), raw=st.just('{"a": 1}')),
        min_size=1,
        max_size=1,
    ),
)


def test_messages_of_the_wire_are_taken_as_they_are() -> None:
    """They come from a program that called a server directly."""
    conversation = Conversation()
    conversation.add(*WIRE, "Thanks.")

    body = request_body("m", conversation.request())
    assert body["messages"] == [*WIRE, {"role": "user", "content": "Thanks."}]


@pytest.mark.parametrize(
    "wrong", [{}, {"role": "usr", "content": "x"}, {"content": "x"}, {"role": "user", "content": 5}]
)
def test_a_mapping_that_is_no_message_is_refused_at_once(wrong: dict[str, Any]) -> None:
    """Then no message of the call is added, including valid ones."""
    conversation = Conversation()
    with pytest.raises(ConfigurationError, match="not a message of the wire"):
        conversation.add("right", wrong)

    assert len(conversation) == 0


@pytest.mark.parametrize("wrong", [None, 5, ["x"], b"x"])
def test_what_is_no_message_at_all_is_refused_at_once(wrong: Any) -> None:
    """It raises `TypeError`."""
    with pytest.raises(TypeError, match="Messages, strings and"):
        Conversation().add(wrong)


@given(st.lists(messages, max_size=5), st.text(min_size=1))
def test_a_record_is_the_conversation(said: list[Message], thread_id: str) -> None:
    """The record is plain JSON, so a database row can store it."""
    conversation = Conversation(thread_id=thread_id)
    conversation.add(*said)

    record = conversation.to_record()
    again = Conversation.from_record(json.loads(json.dumps(record)))

    assert again.thread_id == thread_id
    assert again.to_record() == record
    assert [m.to_wire() for m in again] == [m.to_wire() for m in said]
    assert Conversation.from_record(record["messages"]).messages == again.messages


@pytest.mark.parametrize(
    "wrong",
    [
        *(None, 5, {}, {"messages": 5}, {"messages": [5]}, [{}], "x"),
        *({"thread_id": wrong, "messages": []} for wrong in (0, 5, [], {}, ["ann"], True)),
    ],
)
def test_what_is_no_record_is_refused(wrong: Any) -> None:
    """The error names the problem."""
    with pytest.raises(ConfigurationError, match="not a saved conversation"):
        Conversation.from_record(wrong)


@pytest.mark.parametrize("given", [WIRE_TOOL, WIRE_TOOL["function"]])
def test_a_request_takes_tools_of_the_wire(given: Any) -> None:
    """As the complete object or its function alone, and together with our own tools."""

    @tool
    def other() -> None:
        """Do."""

    for request in Conversation().request(tools=[given, other]), Request((), [given, other]):
        assert [each.name for each in request.tools] == ["add", "other"]
    body = request_body("m", request)
    assert body["tools"][0] == WIRE_TOOL
    assert Conversation().request(tools=None).tools == ()


@pytest.mark.parametrize("wrong", [{}, {"name": 5}, {"function": "x"}, print, "add", None])
def test_what_is_no_tool_is_refused_at_once(wrong: Any) -> None:
    """By requests and by agents."""
    with pytest.raises(ConfigurationError, match="not a tool"):
        Conversation().request(tools=[wrong])
    with pytest.raises(ConfigurationError, match="not a tool"):
        Request((), [wrong])
    with pytest.raises(TypeError, match="not a tool"):
        Agent(ScriptedBackend(), tools=[wrong])


def test_a_tool_of_the_wire_that_is_strict_stays_so() -> None:
    """The server is asked to enforce the schema. A `strict` of another type is refused."""
    function = WIRE_TOOL["function"]
    strict: Any = {"type": "function", "function": {**function, "strict": True}}  # pyright: ignore
    loose: Any = {**strict, "function": {**strict["function"], "strict": False}}

    assert request_body("m", Request((), [strict]))["tools"] == [strict]
    assert request_body("m", Request((), [loose]))["tools"] == [WIRE_TOOL]
    with pytest.raises(ConfigurationError, match="not a tool"):
        Request((), [{**strict, "function": {**strict["function"], "strict": "yes"}}])  # type: ignore[list-item]


async def test_a_tool_may_have_a_schema_from_elsewhere() -> None:
    """The model gets the schema unchanged.

    The function gets values that the schema has validated.
    """
    given: list[dict[str, Any]] = []

    async def add(**arguments: Any) -> int:
        given.append(arguments)
        return arguments["a"] + 1

    made = Tool(add, **WIRE_TOOL["function"])  # pyright: ignore
    call = ToolCall(id="1", name="add", arguments={"a": 1})
    wrong = ToolCall(id="2", name="add", arguments={"a": "x"})
    said = Message(role="assistant", tool_calls=[call, wrong])
    backend = ScriptedBackend(said, "It is 2.")
    async with Commander():
        answer = await Agent(backend, tools=[made])("Add.")

    assert request_body("m", backend.requests[0])["tools"] == [WIRE_TOOL]
    assert given == [{"a": 1}]
    results = [m.content or "" for m in backend.requests[1].messages if m.role == "tool"]
    assert results[0] == "2"
    assert "not of type 'integer'" in results[1]
    assert answer.content == "It is 2."


def test_a_schema_of_which_there_can_be_no_tool_is_refused() -> None:
    """For example a schema whose properties are not an object."""
    with pytest.raises(ValueError, match="properties"):
        Tool(lambda: None, name="x", parameters={"properties": []})
