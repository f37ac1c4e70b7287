"""OpenAI's own client, unmodified: chat completions and the list of models."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest
from openai import (
    APIError,
    AuthenticationError,
    BadRequestError,
    InternalServerError,
    NotFoundError,
    OpenAI,
    RateLimitError,
)
from support.openai_client import on_uvicorn, open_client, serve_to_client

from anabranch import Agent
from anabranch.messages import Delta, Message, ToolCall, ToolCallDelta, Usage
from anabranch.serve import serve
from anabranch.testing import ScriptedBackend, deltas

USAGE = Usage(input_tokens=3, output_tokens=4)
HI: Any = [{"role": "user", "content": "hi"}]
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city.",
        "strict": True,
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}


def writer(*replies: Any, **options: Any) -> Agent[Any]:
    """Make an agent with these replies."""
    return Agent(ScriptedBackend(*replies, otherwise="Hello you."), name="writer", **options)


def call(name: str, number: int = 0, **arguments: Any) -> ToolCall:
    """Make a tool call."""
    return ToolCall(id=f"c{number}", name=name, arguments=arguments, index=number)


async def test_a_chat_is_the_same_streamed_and_complete() -> None:
    """S9: with its usage, if the request asks for it."""
    said = Message(role="assistant", content="Hello you.", usage=USAGE)
    async with serve_to_client(writer(said, said, said)) as client:
        whole = await client.chat.completions.create(model="writer", messages=HI)
        assert whole.choices[0].message.content == "Hello you."
        assert whole.choices[0].finish_reason == "stop"
        assert whole.usage is not None
        assert whole.usage.total_tokens == 7
        stream = await client.chat.completions.create(model="writer", messages=HI, stream=True)
        chunks = [chunk async for chunk in stream]
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Hello you."
        assert all(chunk.usage is None for chunk in chunks)
        stream = await client.chat.completions.create(
            model="writer", messages=HI, stream=True, stream_options={"include_usage": True}
        )
        *_, last = [chunk async for chunk in stream]
        assert last.choices == []
        assert last.usage == whole.usage


async def test_the_helper_for_streams_returns_the_complete_completion() -> None:
    """S9: `chat.completions.stream(...)` assembles it."""
    async with serve_to_client(writer()) as client:
        async with client.chat.completions.stream(model="writer", messages=HI) as stream:
            whole = await stream.get_final_completion()
        assert whole.choices[0].message.content == "Hello you."


async def test_the_synchronous_client_works() -> None:
    """S9: from another thread."""
    async with on_uvicorn(serve(writer())) as url:

        def ask() -> list[str]:
            with OpenAI(base_url=f"{url}/v1", api_key="none") as client:
                names = [model.id for model in client.models.list()]
                stream = client.chat.completions.create(model="writer", messages=HI, stream=True)
                return [*names, "".join(c.choices[0].delta.content or "" for c in stream)]

        assert await asyncio.to_thread(ask) == ["writer", "Hello you."]
    assert threading.active_count() < 20


async def test_models_are_listed_and_found_by_name() -> None:
    """S9: clients see all served models, and choose one."""
    fast = ScriptedBackend(otherwise="Quick.")
    async with serve_to_client(writer(), {"org/fast": fast}) as client:
        assert [model.id async for model in client.models.list()] == ["writer", "org/fast"]
        assert (await client.models.retrieve("org/fast")).id == "org/fast"
        said = await client.chat.completions.create(model="org/fast", messages=HI)
        assert (said.model, said.choices[0].message.content) == ("org/fast", "Quick.")
        with pytest.raises(NotFoundError) as missing:
            await client.models.retrieve("nothing")
        assert missing.value.code == "model_not_found"
        with pytest.raises(NotFoundError) as missing:
            await client.chat.completions.create(model="nothing", messages=HI)
        assert missing.value.param == "model"


async def test_text_parts_are_joined_and_images_passed_on() -> None:
    """S17: to agents too; models that cannot take images refuse them."""
    backend = ScriptedBackend(otherwise="A cat.")
    agent = writer()
    text: Any = [{"type": "text", "text": "what "}, {"type": "text", "text": "is it?"}]
    image: Any = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    blind = ScriptedBackend(otherwise="A cat.", takes=())
    shy = Agent(blind, name="shy")
    async with serve_to_client(agent, {"model": backend, "blind": blind, "shy": shy}) as client:
        create = client.chat.completions.create
        await create(model="writer", messages=[{"role": "user", "content": text}])
        heard = agent.backend.requests[-1].messages[-1]  # type: ignore[union-attr]
        assert heard.content == "what is it?"
        for name in "blind", "shy":
            with pytest.raises(BadRequestError, match="images"):
                await create(model=name, messages=[{"role": "user", "content": [*text, image]}])
        assert not blind.requests
        for name, model in ("model", backend), ("writer", agent.backend):
            await create(model=name, messages=[{"role": "user", "content": [*text, image]}])
            heard = model.requests[-1].messages[-1]  # type: ignore[union-attr]
            assert heard.content == "what is it?"
            assert [part.url for part in heard.parts] == [image["image_url"]["url"]]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_runs_its_own_tools(stream: bool) -> None:
    """S9: the client gets the model's calls, and sends their results with the conversation."""
    calls = [call("weather", 0, city="Rome"), call("weather", 1, city="Oslo")]
    backend = ScriptedBackend(Message(role="assistant", tool_calls=calls), otherwise="Mild.")
    async with serve_to_client({"model": backend}) as client:
        messages: list[Any] = [*HI]
        if stream:
            async with client.chat.completions.stream(
                model="model", messages=messages, tools=[WEATHER], tool_choice="required"
            ) as made:
                choice: Any = (await made.get_final_completion()).choices[0]
        else:
            choice = (
                await client.chat.completions.create(
                    model="model", messages=messages, tools=[WEATHER], tool_choice="required"
                )
            ).choices[0]
        assert choice.finish_reason == "tool_calls"
        assert not choice.message.content
        made_calls = choice.message.tool_calls
        assert [each.function.arguments for each in made_calls] == [
            '{"city": "Rome"}',
            '{"city": "Oslo"}',
        ]
        asked = backend.requests[0]
        tools: Any = asked.tools
        assert [(tool.name, tool.strict) for tool in tools] == [("weather", True)]
        assert asked.options == {"tool_choice": "required"}
        messages.append(choice.message)
        messages += [
            {"role": "tool", "tool_call_id": each.id, "content": "warm"} for each in made_calls
        ]
        answer = await client.chat.completions.create(
            model="model", messages=messages, tools=[WEATHER]
        )
        assert answer.choices[0].message.content == "Mild."
        heard = backend.requests[1].messages
        assert [message.role for message in heard] == ["user", "assistant", "tool", "tool"]
        assert [each.id for each in heard[1].tool_calls] == ["c0", "c1"]
        assert [message.tool_call_id for message in heard[2:]] == ["c0", "c1"]


async def test_arguments_that_are_not_json_reach_the_client_unchanged() -> None:
    """S9: they do not become an empty call."""
    broken = ToolCallDelta(0, id="c0", name="weather", arguments='{"city": ')
    backend = ScriptedBackend([Delta(tool_calls=(broken,)), Delta(finish_reason="stop", done=True)])
    async with serve_to_client({"model": backend}) as client:
        said: Any = await client.chat.completions.create(
            model="model", messages=HI, tools=[WEATHER]
        )
    assert said.choices[0].message.tool_calls[0].function.arguments == '{"city": '


async def test_a_failed_run_runs_once_and_hides_its_cause() -> None:
    """S17: the client raises its own error, and does not retry."""
    error = RuntimeError("the secret is 42")
    backend = ScriptedBackend(otherwise=["Hel", error])
    async with serve_to_client({"model": backend}) as client:
        with pytest.raises(InternalServerError) as failed:
            await client.chat.completions.create(model="model", messages=HI)
        assert len(backend.requests) == 1
        assert "secret" not in str(failed.value)
        stream = await client.chat.completions.create(model="model", messages=HI, stream=True)
        chunks = aiter(stream)
        first, second = await anext(chunks), await anext(chunks)
        assert (first.choices[0].delta.role, second.choices[0].delta.content) == (
            "assistant",
            "Hel",
        )
        with pytest.raises(APIError, match="The run failed") as broke:
            await anext(chunks)
        assert broke.value.code == "server_error"


async def test_refusals_are_the_clients_own_errors() -> None:
    """S14, S15: an unknown key is an `AuthenticationError`, too many runs a `RateLimitError`."""
    go_on = asyncio.Event()
    backend = ScriptedBackend(otherwise=["a", go_on, *deltas("b")])
    async with on_uvicorn(serve({"model": backend}, auth="right", max_runs=1)) as url:
        async with open_client(url, "wrong") as client:
            with pytest.raises(AuthenticationError) as unknown:
                await client.models.list()
            assert unknown.value.code == "invalid_api_key"
        async with open_client(url, "right") as client:
            once = client.with_options(max_retries=0)
            stream = await once.chat.completions.create(model="model", messages=HI, stream=True)
            await anext(aiter(stream))
            with pytest.raises(RateLimitError) as busy:
                await once.chat.completions.create(model="model", messages=HI)
            assert busy.value.response.headers["retry-after"] == "5"
            go_on.set()
            assert [chunk async for chunk in stream][-1].choices[0].finish_reason == "stop"


@pytest.mark.parametrize("status", ["length", "content_filter"])
async def test_the_finish_reason_is_passed_on(status: str) -> None:
    """S9: a truncated reply has its reason."""
    said = Message(role="assistant", content="Hel", finish_reason=status)
    async with serve_to_client({"model": ScriptedBackend(said, said)}) as client:
        whole = await client.chat.completions.create(model="model", messages=HI)
        assert whole.choices[0].finish_reason == status
        cut = await client.responses.create(model="model", input="hi")
        assert cut.status == "incomplete"


async def test_a_wire_that_is_not_chosen_is_not_served() -> None:
    """S17: only the wires in `wires` exist."""
    async with serve_to_client(writer(), wires=[]) as client:
        with pytest.raises(NotFoundError):
            await client.models.list()
