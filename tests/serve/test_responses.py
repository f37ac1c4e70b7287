"""OpenAI's own client, unmodified: Responses, also in the background."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import BadRequestError, NotFoundError
from openai.types.responses import ResponseFunctionToolCall
from pydantic import BaseModel
from support.openai_client import serve_to_client
from support.seeds import example_count
from support.waiting import wait_until

from anabranch import Agent, tool
from anabranch.messages import Message, ToolCall, Usage
from anabranch.store import Journal
from anabranch.testing import ScriptedBackend, deltas

USAGE = Usage(input_tokens=3, output_tokens=4)
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}


@tool
def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def calls(name: str, *arguments: dict[str, Any], text: str | None = None) -> Message:
    """Make a reply with tool calls."""
    made = [
        ToolCall(id=f"c{index}", name=name, arguments=each, index=index)
        for index, each in enumerate(arguments)
    ]
    return Message(role="assistant", content=text, tool_calls=made)


def calculator() -> Agent[Any]:
    """Make an agent that writes a text, calls a tool, and answers."""
    backend = ScriptedBackend(
        *[calls("double", {"number": 21}, text="Let me see."), "It is 42."] * 50, size=3
    )
    return Agent(backend, name="calculator", tools=[double])


async def test_a_response_is_the_same_streamed_and_complete() -> None:
    """S9: the client's helper for streams assembles the complete response."""
    async with serve_to_client(calculator()) as client:
        whole = await client.responses.create(model="calculator", input="21?")
        assert whole.status == "completed"
        assert [item.type for item in whole.output] == ["message", "mcp_call", "message"]
        call: Any = whole.output[1]
        assert (call.name, call.arguments, call.output) == ("double", '{"number": 21}', "42")
        assert whole.output_text == "Let me see.It is 42."
        async with client.responses.stream(model="calculator", input="21?") as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        assert final.output_text == whole.output_text
        assert [item.type for item in final.output] == [item.type for item in whole.output]
        assert [event.sequence_number for event in events] == list(range(len(events)))


async def test_the_output_can_be_sent_back() -> None:
    """S9: a client that adds the output to its input has a conversation."""
    agent = calculator()
    async with serve_to_client(agent) as client:
        said: list[Any] = [{"role": "user", "content": "21?"}]
        said += (await client.responses.create(model="calculator", input=said)).output
        said.append({"role": "user", "content": [{"type": "input_text", "text": "Again?"}]})
        await client.responses.create(model="calculator", input=said)
    backend: Any = agent.backend
    heard = backend.requests[2].messages
    assert [(each.role, each.content) for each in heard] == [
        ("user", "21?"),
        ("assistant", "Let me see."),
        ("assistant", "It is 42."),
        ("user", "Again?"),
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_the_client_runs_its_own_tools(stream: bool) -> None:
    """S9: the model's calls are items; the client returns them with their outputs, as one reply."""
    backend = ScriptedBackend(calls("weather", {"city": "Rome"}, {"city": "Oslo"}), "Mild.")
    async with serve_to_client({"model": backend}) as client:
        said: list[Any] = [{"role": "user", "content": "hi"}]
        choice: Any = {"type": "function", "name": "weather"}
        asked: Any = {"model": "model", "input": said, "tools": [WEATHER], "tool_choice": choice}
        if stream:
            async with client.responses.stream(**asked) as events:
                made: Any = await events.get_final_response()
        else:
            made = await client.responses.create(**asked)
        items = [each for each in made.output if isinstance(each, ResponseFunctionToolCall)]
        assert [each.arguments for each in items] == ['{"city": "Rome"}', '{"city": "Oslo"}']
        function = {"type": "function", "function": {"name": "weather"}}
        assert backend.requests[0].options == {"tool_choice": function}
        assert [each.name for each in backend.requests[0].tools] == ["weather"]
        said += made.output
        for each in items:
            answer = {"type": "function_call_output", "call_id": each.call_id, "output": "warm"}
            said.append(answer)
        last = await client.responses.create(model="model", input=said, tools=[WEATHER])
        assert last.output_text == "Mild."
    heard = backend.requests[1].messages
    assert [message.role for message in heard] == ["user", "assistant", "tool", "tool"]
    assert [each.id for each in heard[1].tool_calls] == ["c0", "c1"]


async def test_a_served_backend_gets_the_options_of_a_response() -> None:
    """S17: instructions, format, effort and limits, under the model's names."""

    class Answer(BaseModel):
        number: int

    backend = ScriptedBackend(otherwise='{"number": 42}')
    async with serve_to_client({"model": backend}) as client:
        made = await client.responses.parse(
            model="model",
            input="what?",
            instructions="Be short.",
            text_format=Answer,
            max_output_tokens=50,
            temperature=0.5,
            reasoning={"effort": "low"},
        )
    assert made.output_parsed == Answer(number=42)
    assert (made.instructions, made.temperature, made.max_output_tokens) == ("Be short.", 0.5, 50)
    request = backend.requests[0]
    assert [(each.role, each.content) for each in request.messages] == [
        ("system", "Be short."),
        ("user", "what?"),
    ]
    options = dict(request.options)
    schema = options.pop("response_format")["json_schema"]
    assert schema["name"] == "Answer"
    assert schema["schema"]["properties"]["number"]["type"] == "integer"
    assert options == {"max_tokens": 50, "temperature": 0.5, "reasoning_effort": "low"}


async def test_a_background_response_can_be_polled() -> None:
    """S10: it continues without a reader, and can be found until it is complete."""
    go_on = asyncio.Event()
    backend = ScriptedBackend(["Hel", go_on, *deltas("lo.")])
    async with serve_to_client({"model": backend}) as client:
        begun = await client.responses.create(model="model", input="hi", background=True)
        assert begun.status == "queued"
        await wait_until(lambda: backend.opened)
        half = await client.responses.retrieve(begun.id)
        assert half.status == "in_progress"
        go_on.set()
        whole = half
        while whole.status == "in_progress":
            whole = await client.responses.retrieve(begun.id)
        assert (whole.status, whole.output_text) == ("completed", "Hello.")
        assert whole.id == begun.id
        assert whole.background


async def test_a_response_in_the_background_is_cancelled() -> None:
    """S11: this closes the model's stream; the response has its status and the text so far."""
    backend = ScriptedBackend(["Hel", asyncio.Event()])
    async with serve_to_client({"model": backend}) as client:
        begun = await client.responses.create(model="model", input="hi", background=True)
        await wait_until(lambda: backend.opened)
        ended = await client.responses.cancel(begun.id)
        assert ended.status == "cancelled"
        assert backend.closed == 1
        assert (await client.responses.retrieve(begun.id)).status == "cancelled"
        assert (await client.responses.cancel(begun.id)).status == "cancelled"


async def test_a_reader_can_reconnect_after_each_event() -> None:
    """S10: it gets the following events, without a gap, and the text is the same."""
    async with serve_to_client(calculator()) as client:

        async def left_at(index: int) -> list[Any]:
            stream = await client.responses.create(
                model="calculator", input="21?", background=True, stream=True
            )
            read: list[Any] = []
            async for event in stream:
                read.append(event)
                if len(read) > index:
                    break
            await stream.close()
            name = read[0].response.id
            rest = await client.responses.retrieve(
                name, stream=True, starting_after=read[-1].sequence_number
            )
            return [*read, *[event async for event in rest]]

        length = len(await left_at(0))
        for index in range(length):
            events = await left_at(index)
            assert [event.sequence_number for event in events] == list(range(length))
            texts = [e.delta for e in events if e.type == "response.output_text.delta"]
            assert "".join(texts) == "Let me see.It is 42."
            assert events[-1].response.output_text == "Let me see.It is 42."


texts = st.text(st.characters(codec="utf-8", exclude_categories=["Cs"]), min_size=1, max_size=12)


@settings(max_examples=example_count(10, 100))
@given(reply=st.lists(texts, min_size=1, max_size=5), lefts=st.lists(st.integers(0, 12)))
async def test_a_reader_can_reconnect_any_number_of_times(
    reply: list[str], lefts: list[int]
) -> None:
    """S10: for any texts and any moments, while the run continues."""
    gates = [asyncio.Event() for _ in reply]
    steps = [step for pair in zip(gates, reply, strict=True) for step in pair]
    backend = ScriptedBackend([*steps, *deltas("!")], size=None)
    async with serve_to_client({"model": backend}) as client:
        stream = await client.responses.create(
            model="model", input="hi", background=True, stream=True
        )
        read: list[Any] = []

        async def read_on(stream: Any, most: int) -> bool:
            """Read some events; a gate opens for each, so that the run continues."""
            came = 0
            async for event in stream:
                read.append(event)
                came += 1
                opened = next((gate for gate in gates if not gate.is_set()), None)
                if opened is not None and event.sequence_number:
                    opened.set()
                if came == most:
                    await stream.close()
                    return False
            return True

        ended = await read_on(stream, 2)
        for most in [*lefts, 10_000]:
            if ended:
                break
            stream = await client.responses.retrieve(
                read[0].response.id, stream=True, starting_after=read[-1].sequence_number
            )
            ended = await read_on(stream, most + 1)
    assert [event.sequence_number for event in read] == list(range(len(read)))
    said = "".join(e.delta for e in read if e.type == "response.output_text.delta")
    assert said == "".join(reply) + "!"
    assert read[-1].response.output_text == said


async def test_a_failed_response_has_its_wires_format() -> None:
    """S9: streamed or complete, it has the status "failed"."""
    backend = ScriptedBackend(otherwise=["Hel", RuntimeError("the secret is 42")])
    async with serve_to_client({"model": backend}) as client:
        whole = await client.responses.create(model="model", input="hi")
        assert whole.status == "failed"
        assert whole.error is not None
        told = f"The run failed (id {whole.id[5:]}). See the server log."
        assert (whole.error.code, whole.error.message) == ("server_error", told)
        stream = await client.responses.create(model="model", input="hi", stream=True)
        *_, last = [event async for event in stream]
        assert last.type == "response.failed"


async def test_a_response_that_is_not_stored_is_not_found() -> None:
    """S17: `store=False` is obeyed, and refused for background responses, which must be stored."""
    backend = ScriptedBackend(otherwise="Hello.")
    async with serve_to_client({"model": backend}) as client:
        kept = await client.responses.create(model="model", input="hi")
        assert (await client.responses.retrieve(kept.id)).output_text == "Hello."
        unkept = await client.responses.create(model="model", input="hi", store=False)
        with pytest.raises(NotFoundError):
            await client.responses.retrieve(unkept.id)
        with pytest.raises(BadRequestError, match="store"):
            await client.responses.create(model="model", input="hi", store=False, background=True)
        with pytest.raises(NotFoundError):
            await client.responses.retrieve("resp_nothing")
        with pytest.raises(BadRequestError, match="include"):
            await client.responses.retrieve(kept.id, include=["message.output_text.logprobs"])


@pytest.mark.parametrize("ends", [True, False], ids=["ended", "running"])
@pytest.mark.parametrize("kept", [True, False], ids=["journal", "memory"])
async def test_a_response_is_deleted(tmp_path: Path, ends: bool, kept: bool) -> None:
    """S9: an open run is stopped first; no restart restores it."""
    backend = ScriptedBackend(otherwise=["Hel", *([] if ends else [asyncio.Event()])])
    journal = tmp_path / "runs.db" if kept else None
    async with serve_to_client({"model": backend}, journal=journal) as client:
        other = await client.responses.create(model="model", input="hi", background=True)
        begun = await client.responses.create(model="model", input="hi", background=True)
        await wait_until(lambda: (backend.closed if ends else backend.opened) == 2)
        await client.responses.delete(begun.id)
        assert backend.closed == (2 if ends else 1)
        for gone in (client.responses.retrieve, client.responses.delete):
            with pytest.raises(NotFoundError):
                await gone(begun.id)
        assert (await client.responses.retrieve(other.id)).id == other.id
    if journal is not None:
        async with Journal(journal) as file:
            assert [row.run_id for row in await file.runs()] == [f"serve/{other.id[5:]}"]


async def test_the_input_of_a_response_is_not_stored() -> None:
    """S17: a client that requests it is refused by name."""
    async with serve_to_client({"model": ScriptedBackend(otherwise="Hello.")}) as client:
        made = await client.responses.create(model="model", input="hi")
        with pytest.raises(BadRequestError, match="input_items"):
            await client.responses.input_items.list(made.id)
        with pytest.raises(NotFoundError):
            await client.responses.input_items.list("resp_nothing")
