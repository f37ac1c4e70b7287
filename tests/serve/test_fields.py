"""Each field of a request on OpenAI's wire has an effect, is harmless, or is refused by name."""

from __future__ import annotations

import asyncio
import inspect
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import APIStatusError, BadRequestError
from openai.resources.chat.completions import AsyncCompletions
from openai.resources.responses import AsyncResponses
from support.openai_client import on_uvicorn, open_client, serve_to_client

from anabranch import Agent
from anabranch.serve import serve
from anabranch.serve._model_options import ModelOptions, read_options, requested_fields
from anabranch.testing import ScriptedBackend

HI: Any = [{"role": "user", "content": "hi"}]
TOOL: Any = {"type": "function", "function": {"name": "weather"}}
FLAT: Any = {"type": "function", "name": "weather"}
SCHEMA: Any = {"name": "answer", "schema": {"type": "object"}}
# Arguments of the client, which are not in the request.
OWN = {"self", "extra_headers", "extra_query", "extra_body", "timeout"}
# Other tests cover these.
READ = {"model", "messages", "input", "stream"}

# Options for a served backend, and the values that the model receives.
CHAT_HONOURED: dict[str, tuple[Any, Any]] = {
    "temperature": (0.5, {"temperature": 0.5}),
    "top_p": (0.5, {"top_p": 0.5}),
    "stop": (["."], {"stop": ["."]}),
    "seed": (7, {"seed": 7}),
    "max_tokens": (5, {"max_tokens": 5}),
    "max_completion_tokens": (5, {"max_tokens": 5}),
    "presence_penalty": (0.5, {"presence_penalty": 0.5}),
    "frequency_penalty": (0.5, {"frequency_penalty": 0.5}),
    "logit_bias": ({"5": 1}, {"logit_bias": {"5": 1.0}}),
    "reasoning_effort": ("low", {"reasoning_effort": "low"}),
    "verbosity": ("low", {"verbosity": "low"}),
    "parallel_tool_calls": (False, {"parallel_tool_calls": False}),
    "tool_choice": ("none", {"tool_choice": "none"}),
    "response_format": (
        {"type": "json_schema", "json_schema": SCHEMA},
        {"response_format": {"type": "json_schema", "json_schema": SCHEMA}},
    ),
    "tools": ([TOOL], {}),
}
RESPONSE_HONOURED: dict[str, tuple[Any, Any]] = {
    **{
        name: CHAT_HONOURED[name]
        for name in ("temperature", "top_p", "parallel_tool_calls", "tool_choice")
    },
    "max_output_tokens": (5, {"max_tokens": 5}),
    "reasoning": ({"effort": "low"}, {"reasoning_effort": "low"}),
    "text": (
        {"format": {"type": "json_schema", **SCHEMA}, "verbosity": "low"},
        {**CHAT_HONOURED["response_format"][1], "verbosity": "low"},
    ),
    "instructions": ("Be short.", {}),
    "tools": ([FLAT], {}),
}
# Fields that change no answer, and default values.
CHAT_HARMLESS: dict[str, Any] = {
    "metadata": {"a": "b"},
    "user": "ann",
    "safety_identifier": "ann",
    "prompt_cache_key": "key",
    "prompt_cache_options": {"mode": "implicit"},
    "prompt_cache_retention": "24h",
    "prediction": {"type": "content", "content": "hi"},
    "service_tier": "auto",
    "store": False,
    "n": 1,
    "logprobs": False,
    "top_logprobs": 0,
    "modalities": ["text"],
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "response_format": {"type": "text"},
    "stream_options": {},
}
RESPONSE_HARMLESS: dict[str, Any] = {
    **{
        name: CHAT_HARMLESS[name]
        for name in (
            *("metadata", "user", "safety_identifier", "prompt_cache_key", "service_tier"),
            *("prompt_cache_options", "prompt_cache_retention", "top_logprobs", "tool_choice"),
            *("parallel_tool_calls", "stream_options"),
        )
    },
    "background": False,
    "store": True,
    "include": ["reasoning.encrypted_content"],
    "reasoning": {"summary": "auto"},
    "truncation": "disabled",
    "text": {"format": {"type": "text"}},
}
CHAT_REFUSED: dict[str, Any] = {
    "audio": {"voice": "alloy", "format": "wav"},
    "function_call": "auto",
    "functions": [{"name": "weather"}],
    "logprobs": True,
    "top_logprobs": 3,
    "modalities": ["text", "audio"],
    "moderation": {"model": "any"},
    "n": 2,
    "service_tier": "priority",
    "store": True,
    "stream_options": {"include_obfuscation": True},
    "tools": [{"type": "custom", "custom": {"name": "any"}}],
    "web_search_options": {},
}
RESPONSE_REFUSED: dict[str, Any] = {
    "access_programs": {"any": True},
    "background_options": {"completion_window": "2h"},
    "context_management": [{"type": "compaction"}],
    "conversation": "conv_1",
    "image": {"any": True},
    "include": ["message.output_text.logprobs"],
    "max_tokens": 5,
    "max_tool_calls": 3,
    "messages": HI,
    "moderation": {"model": "any"},
    "previous_response_id": "resp_1",
    "prompt": {"id": "pmpt_1"},
    "reasoning": {"summary": "concise"},
    "service_tier": "flex",
    "stream_options": {"include_obfuscation": True},
    "text": {"other": True},
    "tool_choice": {"type": "web_search"},
    "tools": [{"type": "web_search"}],
    "top_logprobs": 3,
    "truncation": "auto",
}
# The server chooses these, except for a served backend.
CHAT = "chat", CHAT_HONOURED, CHAT_HARMLESS, CHAT_REFUSED, AsyncCompletions.create
RESPONSES = (
    "responses",
    RESPONSE_HONOURED,
    RESPONSE_HARMLESS,
    RESPONSE_REFUSED,
    AsyncResponses.create,
)


@pytest.mark.parametrize(("wire", "honoured", "harmless", "refused", "create"), [CHAT, RESPONSES])
def test_every_parameter_of_the_client_is_known(
    wire: str, honoured: Any, harmless: Any, refused: Any, create: Any
) -> None:
    """S17: this test fails if a new version of the client has another parameter."""
    known = {*honoured, *harmless, *refused, *OWN, *READ}
    assert {*inspect.signature(create).parameters} <= known, wire


def _ask(client: Any, wire: str, model: str, **fields: Any) -> Any:
    # As a field of the body, because the client may refuse it before it is sent.
    if wire == "chat":
        return client.chat.completions.create(model=model, messages=HI, extra_body=fields)
    return client.responses.create(model=model, input="hi", extra_body=fields)


@pytest.mark.parametrize(("wire", "honoured", "harmless", "refused", "create"), [CHAT, RESPONSES])
async def test_each_has_an_effect_is_harmless_or_is_refused_by_name(
    wire: str, honoured: Any, harmless: Any, refused: Any, create: Any
) -> None:
    """S17: no field is silently ignored, and the server alone chooses an agent's options."""
    backend = ScriptedBackend(otherwise="Hello.")
    agent = Agent(ScriptedBackend(otherwise="Hello."), name="agent")
    async with serve_to_client({"model": backend}, agent) as client:
        for name, (value, told) in honoured.items():
            await _ask(client, wire, "model", **{name: value})
            request = backend.requests[-1]
            assert dict(request.options) == told, name
            assert [each.name for each in request.tools] == ["weather"] * (name == "tools")
            with pytest.raises(BadRequestError) as no:
                await _ask(client, wire, "agent", **{name: value})
            assert no.value.param == name
        for model in ("model", "agent"):
            await _ask(client, wire, model, **harmless)
        assert not backend.requests[-1].options
        for name, value in [*refused.items(), ("extra", {"model": "other"}), ("tool_images", True)]:
            with pytest.raises(BadRequestError) as no:
                await _ask(client, wire, "model", **{name: value})
            assert no.value.param == name
            assert name in no.value.message
        with pytest.raises(BadRequestError) as no:
            await _ask(client, wire, "agent", extra={"model": "other"})
        assert no.value.param == "extra"


# Values that clients send by default.
DEFAULTS: dict[str, list[Any]] = {
    "temperature": [1, 1.0, None],
    "top_p": [1, 1.0, None],
    "presence_penalty": [0, 0.0, None],
    "frequency_penalty": [0, 0.0, None],
    "max_tokens": [None],
    "seed": [None],
    "stop": [[], None],
    "logit_bias": [{}, None],
    "verbosity": ["medium", None],
    "top_k": [0, -1, None],
    "min_p": [0, None],
    "repetition_penalty": [1, None],
}
CHOSEN: dict[str, list[Any]] = {
    "temperature": [0, True],
    "top_p": [0.99],
    "presence_penalty": [False, 0.1],
    "frequency_penalty": [-1],
    "verbosity": ["low"],
}


def _pairs(values: dict[str, list[Any]]) -> list[tuple[str, Any]]:
    return [(name, value) for name in values for value in values[name]]


async def test_an_agent_accepts_the_defaults_that_clients_send() -> None:
    """S17: they request nothing. A served backend gets them, because its default may differ."""
    backend = ScriptedBackend(otherwise="Hello.")
    agent = Agent(ScriptedBackend(otherwise="Hello."), name="agent")
    async with serve_to_client({"model": backend}, agent) as client:
        for name, value in _pairs(DEFAULTS):
            await _ask(client, "chat", "agent", **{name: value})
            await _ask(client, "chat", "model", **{name: value})
            told = {} if value in (None, [], {}) else {name: value}
            assert backend.requests[-1].options == told
        text = {"format": {"type": "text"}, "verbosity": "medium"}
        await _ask(client, "responses", "agent", temperature=1, top_p=1, text=text)
        for name, value in _pairs(CHOSEN):
            with pytest.raises(BadRequestError) as no:
                await _ask(client, "chat", "agent", **{"top_p": 1, name: value})
            assert no.value.param == name


WRONG: dict[str, Any] = {
    **dict.fromkeys(["temperature", "top_p", "seed", "max_tokens", "logit_bias", "stop"], True),
    "stream": "yes",
    "stream_options": [],
    "tools": {},
    "tool_choice": 3,
    "response_format": "json",
    "fields": 3,
    "top_k": "many",
}


async def test_a_value_of_the_wrong_type_is_refused_before_the_request() -> None:
    """S17: with 400, as an error of the client."""
    backend = ScriptedBackend(otherwise="Hello.")
    async with serve_to_client({"model": backend}) as client:
        for name, value in WRONG.items():
            with pytest.raises(BadRequestError) as no:
                await _ask(client, "chat", "model", **{name: value})
            assert no.value.param == name
    assert not backend.requests


MESSAGES: dict[str, Any] = {
    "none": None,
    "no list": {"role": "user", "content": "hi"},
    "empty": [],
    "no object": ["hi"],
    "no role": [{"content": "hi"}],
    "an unknown role": [{"role": "judge", "content": "hi"}],
    "no text": [{"role": "user", "content": {"text": "hi"}}],
    "a part that is none": [{"role": "user", "content": ["hi"]}],
    "a file": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "f"}}]}],
    "an answer to nothing": [{"role": "tool", "content": "warm"}],
    "an unknown field": [{"role": "user", "content": "hi", "weight": 1}],
    "a legacy call": [{"role": "assistant", "function_call": {"name": "a"}}, *HI],
    "an unknown item": [{"type": "web_search_call", "id": "ws_1"}],
    "the assistant last": [*HI, {"role": "assistant", "content": "hello"}],
}


async def test_an_invalid_history_is_refused() -> None:
    """S17: on both wires, and the error names the place."""
    async with serve_to_client({"model": ScriptedBackend()}) as client:
        for case, said in MESSAGES.items():
            with pytest.raises(BadRequestError) as no:
                await client.chat.completions.create(model="model", messages=said)
            assert str(no.value.param).startswith("messages"), case
            with pytest.raises(BadRequestError) as no:
                await client.responses.create(model="model", input=said)
            assert str(no.value.param).startswith("input"), case


async def test_one_value_by_two_names_is_refused() -> None:
    """S17: also if both values are equal."""
    backend = ScriptedBackend(otherwise="Hello.")
    async with serve_to_client({"model": backend}) as client:
        with pytest.raises(BadRequestError, match="max_completion_tokens") as no:
            await _ask(client, "chat", "model", max_tokens=5, max_completion_tokens=7)
        assert no.value.param == "max_tokens"
        await _ask(client, "chat", "model", max_tokens=None, max_completion_tokens=7)
        assert backend.requests[-1].options == {"max_tokens": 7}


json_values: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=5,
)
names = st.sampled_from([*ModelOptions.model_fields, "n", "store", "extra", "audio"])


@given(st.dictionaries(names, json_values, max_size=4))
def test_options_are_passed_on_or_one_is_refused_by_name(body: dict[str, Any]) -> None:
    """S17: for any body."""
    asked = dict(requested_fields(body))
    named, options = "", {}
    try:
        options = read_options(asked)
    except ValueError as error:
        named = error.args[0]
    if named:
        assert named in body
    else:
        assert options == asked
        json.dumps(options, allow_nan=False)


@settings(max_examples=30)
@given(json_values)
def test_messages_of_any_shape_are_read_or_refused(said: Any) -> None:
    """S17: an invalid history is refused, without an internal error."""
    from anabranch.serve._http import Refusal
    from anabranch.serve._request import read_messages

    server = serve({"model": ScriptedBackend()})
    for value in (said, [said], [{"role": "user", "content": said}]):
        status, messages = 200, []
        try:
            messages = asyncio.run(read_messages(server, value))
        except Refusal as refusal:
            status = refusal.status
        assert (status, bool(messages)) in [(200, True), (400, False)]


async def test_errors_have_the_wires_format() -> None:
    """S9: each error is an object that the client can read."""
    async with on_uvicorn(serve({"model": ScriptedBackend()})) as url, open_client(url) as client:
        for path in ("/chat/completions", "/responses"):
            with pytest.raises(APIStatusError) as no:
                await client.post(path, cast_to=object, body=[1])
            assert no.value.status_code == 400
            assert isinstance(no.value.body, dict)
