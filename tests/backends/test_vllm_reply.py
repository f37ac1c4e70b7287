"""The request that vLLM gets and the deltas made from its answer, with a stand-in for vLLM."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest

from anabranch.backends._vllm_reply import answer, marked_call
from anabranch.commander import (
    BackendError,
    BackendUnavailable,
    ConfigurationError,
    ContextTooLong,
)
from anabranch.dispatch.assembly import assemble
from anabranch.messages import Message, Request, Usage

ADD = SimpleNamespace(name="add", description="", parameters={"type": "object"})


class VLLMError(Exception):
    pass


class VLLMClientError(VLLMError):
    pass


class EngineDeadError(VLLMError):
    pass


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Replace vLLM's modules; its `said` is the model's text."""
    model = SimpleNamespace(said=[("Hi", "stop")], prompt="<user>", params=None, error=None)

    async def render(messages: Any, params: Any) -> Any:
        model.messages, model.rendered = messages[0], params.chat_template_kwargs
        return None, ({"prompt": model.prompt},)

    async def generate(prompt: Any, params: Any, _: str) -> AsyncGenerator[Any, None]:
        model.params = params
        for text, reason in model.said:
            piece = SimpleNamespace(text=text, token_ids=[1, 2], finish_reason=reason)
            yield SimpleNamespace(outputs=[piece], prompt_token_ids=[1] * 5, num_cached_tokens=3)
        if model.error:
            raise model.error

    model.llm = SimpleNamespace(
        renderer=SimpleNamespace(render_chat_async=render), generate=generate
    )
    module = SimpleNamespace(
        SamplingParams=lambda **given: SimpleNamespace(**given),
        StructuredOutputsParams=lambda **given: given,
        RequestOutputKind=SimpleNamespace(DELTA="delta"),
        ChatParams=lambda **given: SimpleNamespace(**given),
        VLLMValidationError=ValueError,
        VLLMError=VLLMError,
        VLLMClientError=VLLMClientError,
        EngineDeadError=EngineDeadError,
    )
    monkeypatch.setattr("anabranch.backends._vllm_reply.vllm_module", lambda *_: module)
    return model


async def ask(model: SimpleNamespace, *tools: Any, template: str = "", **options: Any) -> Message:
    request = Request([Message(role="user", content="Hello")], tools, options)
    loaded: Any = SimpleNamespace(llm=model.llm, sampling={"top_k": 20}, chat_template=template)
    async with aclosing(answer(loaded, request, {}, None)) as deltas:
        return assemble([delta async for delta in deltas])


async def test_a_reply_of_the_engine_becomes_a_message(stand_in: SimpleNamespace) -> None:
    """With the model's sampling defaults, and the request's options over them."""
    stand_in.said = [("Hel", None), ("lo", "length")]

    message = await ask(stand_in, temperature=0.5, max_completion_tokens=7)

    assert (message.content, message.finish_reason) == ("Hello", "length")
    assert message.usage == Usage(input_tokens=5, output_tokens=4, cached_input_tokens=3)
    params = stand_in.params
    assert (params.top_k, params.temperature, params.max_tokens) == (20, 0.5, 7)
    assert (params.structured_outputs, params.skip_special_tokens) == (None, True)
    assert stand_in.messages == [{"role": "user", "content": "Hello"}]


async def test_a_model_whose_template_knows_no_calls_is_told_how_to_call(
    stand_in: SimpleNamespace,
) -> None:
    """Its calls are read back; its grammar allows one call."""
    stand_in.said = [(marked_call("add", '{"a": 1}'), "stop")]

    message = await ask(stand_in, ADD)

    assert [(c.name, c.arguments) for c in message.tool_calls] == [("add", {"a": 1})]
    assert message.finish_reason == "tool_calls"
    assert stand_in.messages[0]["role"] == "system"
    assert "<tools>" in stand_in.messages[0]["content"]
    assert "tools" not in stand_in.rendered
    grammar = json.loads(stand_in.params.structured_outputs["structural_tag"])
    assert grammar["format"]["stop_after_first"] is True


async def test_a_template_that_knows_calls_gets_the_tools(stand_in: SimpleNamespace) -> None:
    """Nothing is added to the conversation."""
    await ask(stand_in, ADD, template="... <tool_call> ...")

    assert [tool["function"]["name"] for tool in stand_in.rendered["tools"]] == ["add"]
    assert [message["role"] for message in stand_in.messages] == ["user"]


@pytest.mark.parametrize(
    ("wanted", "bounds"),
    [
        ({"type": "text"}, None),
        ({"type": "json_object"}, {"json_object": True}),
        (
            {"type": "json_schema", "json_schema": {"schema": {"type": "array"}}},
            {"json": {"type": "array"}},
        ),
    ],
)
async def test_a_response_format_is_a_bound_of_vllms(
    wanted: dict[str, Any], bounds: object, stand_in: SimpleNamespace
) -> None:
    """In vLLM's terms; together with tools it is refused."""
    await ask(stand_in, response_format=wanted)

    assert stand_in.params.structured_outputs == bounds
    if bounds:
        with pytest.raises(ConfigurationError, match="not both"):
            await ask(stand_in, ADD, response_format=wanted)


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (VLLMClientError("exceeds the maximum model length"), ContextTooLong),
        (VLLMClientError("no such option"), BackendError),
        (VLLMError("out of memory"), BackendUnavailable),
        (EngineDeadError("gone"), EngineDeadError),
    ],
)
async def test_a_failure_of_vllm_is_one_of_the_family(
    error: Exception, kind: type[Exception], stand_in: SimpleNamespace
) -> None:
    """Except the engine's death, which the engine handles."""
    stand_in.said, stand_in.error = [("Hi", None)], error

    with pytest.raises(kind) as caught:
        await ask(stand_in)
    assert type(caught.value) is kind


async def test_a_reply_that_the_engine_breaks_off_is_no_whole_one(
    stand_in: SimpleNamespace,
) -> None:
    """It may be retried."""
    stand_in.said = [("Hi", "abort")]

    with pytest.raises(BackendUnavailable, match="aborted"):
        await ask(stand_in)


async def test_reasoning_that_the_prompt_began_is_told_apart(stand_in: SimpleNamespace) -> None:
    """It is separate from the text after it."""
    stand_in.prompt, stand_in.said = "<user><think>\n", [("hm</think>Yes", "stop")]

    message = await ask(stand_in)

    assert message.content == "Yes"
