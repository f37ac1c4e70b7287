"""Clients send answers back in their libraries' form, with fields that the libraries add."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai.types.chat import ChatCompletion
from openai.types.responses import Response
from support.asgi_requests import encode_body, send_request
from support.seeds import example_count

from anabranch.messages import Message, ToolCall
from anabranch.serve import Server, serve
from anabranch.testing import ScriptedBackend

USER = {"role": "user", "content": "hi"}
TOOL: dict[str, Any] = {"name": "weather", "parameters": {"type": "object", "properties": {}}}
CHAT_TOOL = {"type": "function", "function": TOOL}
TEXTS = st.none() | st.text("ab", min_size=1)


def model(text: str | None, calls: int) -> ScriptedBackend:
    """Make a model that always returns a text with tool calls."""
    made = [ToolCall(id=f"c{n}", name="weather", arguments={}, index=n) for n in range(calls)]
    reply = Message(role="assistant", content=text, tool_calls=made)
    return ScriptedBackend(otherwise=reply)


async def post(server: Server, path: str, **body: Any) -> tuple[int, Any]:
    answer = await send_request(
        server, "POST", f"/v1/{path}", encode_body({"model": "model", **body})
    )
    return answer.status, answer.json


def litellm_message(message: Any) -> dict[str, Any]:
    """Return the message as `litellm.Message.model_dump()` writes it."""
    dumped = message.model_dump()
    kept = {name: dumped[name] for name in ("content", "role", "tool_calls", "function_call")}
    return {**kept, "provider_specific_fields": {"refusal": None}, "thinking_blocks": None}


def litellm_of_others(message: Any) -> dict[str, Any]:
    """Return the fields that litellm adds for other providers."""
    more = {"refusal": None, "reasoning_content": "Hm.", "citations": [["a"]]}
    thought = [{"type": "thinking", "thinking": "Hm.", "signature": "x"}]
    more = {"provider_specific_fields": more, "thinking_blocks": thought}
    return {**litellm_message(message), "reasoning_content": "Hm.", **more}


def parsed_message(message: Any) -> dict[str, Any]:
    """Return the message of `client.chat.completions.parse(...)`."""
    dumped = message.model_dump()
    for each in dumped["tool_calls"] or ():
        each["function"]["parsed_arguments"] = {"city": "Rome"}
    return {**dumped, "parsed": {"city": "Rome"}}


FORMS: list[Callable[[Any], dict[str, Any]]] = [
    lambda message: message.model_dump(),
    lambda message: message.model_dump(exclude_none=True),
    lambda message: message.model_dump(exclude_unset=True),
    lambda message: message.to_dict(),
    parsed_message,
    litellm_message,
    litellm_of_others,
]


@settings(max_examples=example_count(30, 300))
@given(text=TEXTS, calls=st.integers(0, 2), form=st.sampled_from(FORMS))
async def test_a_chat_accepts_returned_messages(
    text: str | None, calls: int, form: Callable[[Any], dict[str, Any]]
) -> None:
    """In each form of a client, the model gets the same answer."""
    backend = model(text, calls)
    server = serve({"model": backend})
    async with server.running():
        asked: dict[str, Any] = {"messages": [USER], "tools": [CHAT_TOOL]}
        _, answer = await post(server, "chat/completions", **asked)
        message = ChatCompletion.model_validate(answer).choices[0].message
        results = [
            {"role": "tool", "tool_call_id": each.id, "content": "warm"}
            for each in message.tool_calls or ()
        ]
        said = [USER, form(message), *results, USER]
        status, answer = await post(server, "chat/completions", messages=said, tools=[CHAT_TOOL])
        assert status == 200, answer
    heard = backend.requests[-1].messages[1]
    assert (heard.content or None, len(heard.tool_calls)) == (text, calls)


@settings(max_examples=example_count(30, 300))
@given(text=TEXTS, calls=st.integers(0, 2), form=st.sampled_from(FORMS[:4]))
async def test_responses_accept_returned_items(
    text: str | None, calls: int, form: Callable[[Any], dict[str, Any]]
) -> None:
    """For each item of the output, in each form of the client."""
    backend = model(text, calls)
    server = serve({"model": backend})
    async with server.running():
        tools = [{"type": "function", **TOOL}]
        _, answer = await post(server, "responses", input=[USER], tools=tools)
        items = Response.model_validate(answer).output
        results = [
            {"type": "function_call_output", "call_id": each.call_id, "output": "warm"}
            for each in items
            if each.type == "function_call"
        ]
        said = [USER, *map(form, items), *results, USER]
        status, answer = await post(server, "responses", input=said, tools=tools)
        assert status == 200, answer
    heard = backend.requests[-1].messages[1]
    if text or calls:
        assert (heard.content or None, len(heard.tool_calls)) == (text, calls)


NOTHING = st.recursive(
    st.sampled_from([None, "", False, 0]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(), inner, max_size=2),
    max_leaves=6,
)


@settings(max_examples=example_count(40, 400))
@given(nothing=NOTHING, something=st.sampled_from([1, "x", True]), depth=st.integers(0, 3))
async def test_empty_fields_are_ignored_and_others_refused(
    nothing: Any, something: Any, depth: int
) -> None:
    """S17: for fields of any origin."""
    for _ in range(depth):
        something = [{"inner": something}]
    server = serve({"model": ScriptedBackend(otherwise="Hello.")})
    async with server.running():
        for odd, expected in ((nothing, 200), (something, 400)):
            said = [{"role": "assistant", "content": "a", "of_its_own": odd}, USER]
            status, answer = await post(server, "chat/completions", messages=said)
            assert status == expected, answer
        assert "of_its_own" in answer["error"]["message"]


@pytest.mark.parametrize("path", ["chat/completions", "responses"])
async def test_a_refusal_goes_back_to_the_model(path: str) -> None:
    """As a part of an assistant's message, on both wires; a user's message cannot have one."""
    name = "messages" if path == "chat/completions" else "input"
    backend = ScriptedBackend(otherwise="Hello.")
    server = serve({"model": backend})
    refusal = [{"type": "refusal", "refusal": "No."}]
    async with server.running():
        for role, expected in (("assistant", 200), ("user", 400)):
            said = [{"role": role, "content": refusal}, USER]
            status, answer = await post(server, path, **{name: said})
            assert status == expected, answer
    assert [each.refusal for each in backend.requests[-1].messages] == ["No.", None]
    assert backend.requests[-1].messages[0].to_wire()["content"] == "No."
