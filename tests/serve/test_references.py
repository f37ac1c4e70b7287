"""References to items of earlier responses, which the Vercel AI SDK sends instead of the items."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import NotFoundError
from support.asgi_requests import encode_body, send_request
from support.openai_client import serve_to_client
from support.seeds import example_count

from anabranch import Agent, tool
from anabranch.messages import Message, ToolCall
from anabranch.serve import Server, serve
from anabranch.testing import ScriptedBackend

WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    "strict": True,
}


def answer(request: Any) -> Message:
    """Call the client's tool after a question, and answer after its result."""
    last = request.messages[-1]
    if last.role == "tool":
        return Message(role="assistant", content=f"It is {last.content}.")
    number = len(request.messages)
    call = ToolCall(id=f"c{number}", name="weather", arguments={"city": last.content})
    return Message(role="assistant", content="Let me see.", tool_calls=[call])


def reference(item: Any, *, typed: bool = True) -> dict[str, Any]:
    return {"type": "item_reference", "id": item.id} if typed else {"id": item.id}


@asynccontextmanager
async def running(*things: Any, **options: Any) -> AsyncGenerator[Server]:
    server = serve(*things, **options)
    async with server.running():
        yield server


async def respond(server: Server, said: Any, key: str = "", **more: Any) -> Any:
    """Request a response without a client library; return status and JSON."""
    headers = {"authorization": f"Bearer {key}"} if key else {}
    body = encode_body({"model": "model", "input": said, **more})
    got = await send_request(server, "POST", "/v1/responses", body, headers)
    return got.status, got.json


@settings(max_examples=example_count(15, 150))
@given(
    cities=st.lists(st.text("ab", min_size=1, max_size=3), min_size=1, max_size=3),
    forms=st.lists(st.sampled_from(["item", "reference", "bare"]), min_size=9, max_size=9),
)
async def test_a_reference_stands_for_its_item(cities: list[str], forms: list[str]) -> None:
    """For any item of any earlier response, with or without the type of a reference."""
    backend = ScriptedBackend(otherwise=answer)
    whole: list[Any] = []
    sent: list[Any] = []
    form = iter(forms)

    def take(items: list[Any]) -> None:
        for item in items:
            kind = next(form)
            whole.append(item)
            sent.append(item if kind == "item" else reference(item, typed=kind == "reference"))

    async with serve_to_client({"model": backend}) as client:
        for city in cities:
            for said in (whole, sent):
                said.append({"role": "user", "content": city})
            made: Any = await client.responses.create(model="model", input=sent, tools=[WEATHER])
            call = made.output[-1]
            result = {"type": "function_call_output", "call_id": call.call_id, "output": "warm"}
            take(made.output)
            for said in (whole, sent):
                said.append(result)
            made = await client.responses.create(model="model", input=sent, tools=[WEATHER])
            take(made.output)
        referring = backend.requests[-1].messages
        await client.responses.create(model="model", input=whole[:-1], tools=[WEATHER])
        assert backend.requests[-1].messages == referring
    assert [each.role for each in referring[-3:]] == ["user", "assistant", "tool"]
    assert [each.name for each in referring[-2].tool_calls] == ["weather"]


async def test_calls_that_ran_on_the_server_may_be_referred_to() -> None:
    """They are ignored, like the items themselves."""

    @tool
    def double(number: int) -> int:
        """Double a number."""
        return 2 * number

    call = ToolCall(id="c0", name="double", arguments={"number": 21})
    backend = ScriptedBackend(Message(role="assistant", tool_calls=[call]), "It is 42.", "Bye.")
    async with serve_to_client(Agent(backend, name="calculator", tools=[double])) as client:
        said: list[Any] = [{"role": "user", "content": "21?"}]
        made = await client.responses.create(model="calculator", input=said)
        assert [item.type for item in made.output] == ["mcp_call", "message"]
        said += [*map(reference, made.output), {"role": "user", "content": "Thanks."}]
        await client.responses.create(model="calculator", input=said)
    heard = [(each.role, each.content) for each in backend.requests[-1].messages]
    assert heard == [("user", "21?"), ("assistant", "It is 42."), ("user", "Thanks.")]


async def test_a_reference_to_a_missing_item_is_refused_by_name() -> None:
    """Deleted, not stored, unknown, or with a number beyond the response's items."""
    backend = ScriptedBackend(otherwise="Hello.")
    async with serve_to_client({"model": backend}) as client:
        deleted = await client.responses.create(model="model", input="hi")
        await client.responses.delete(deleted.id)
        unkept = await client.responses.create(model="model", input="hi", store=False)
        kept = await client.responses.create(model="model", input="hi")
        names = [deleted.output[0].id, unkept.output[0].id, f"{kept.output[0].id}1", "msg_1", ""]
        for name in names:
            said: Any = [{"role": "user", "content": "hi"}, {"type": "item_reference", "id": name}]
            with pytest.raises(NotFoundError, match="store: false") as refused:
                await client.responses.create(model="model", input=said)
            assert refused.value.param == "input[1]"
    assert len(backend.requests) == 3


async def test_a_reference_to_another_users_response_is_refused() -> None:
    """S14: like one to an unknown response."""
    async with running({"model": ScriptedBackend(otherwise="Hello.")}, auth=["one", "two"]) as app:
        _, made = await respond(app, "hi", "one")
        said = [{"type": "item_reference", "id": made["output"][0]["id"]}]
        said += [{"role": "user", "content": "hi"}]
        assert (await respond(app, said, "one"))[0] == 200
        assert (await respond(app, said, "two"))[0] == 404


async def test_a_stopped_response_may_be_referred_to() -> None:
    """The model gets the text until the stop."""
    backend, name = ScriptedBackend(["Hel", asyncio.Event()], "Bye."), ""
    async with serve_to_client({"model": backend}) as client:
        stream = await client.responses.create(model="model", input="hi", stream=True)
        async for event in stream:
            if event.type == "response.output_text.delta":
                name = event.item_id
                break
        await stream.close()
        said: Any = [{"type": "item_reference", "id": name}, {"role": "user", "content": "Go on."}]
        assert (await client.responses.create(model="model", input=said)).output_text == "Bye."
    assert [each.content for each in backend.requests[-1].messages] == ["Hel", "Go on."]


async def test_a_reference_renews_its_response() -> None:
    """So a conversation may last longer than `keep`, if its pauses are shorter."""
    async with running({"model": ScriptedBackend(otherwise="Hello.")}, keep=1000) as app:
        _, first = await respond(app, "hi")
        _, second = await respond(app, "hi")
        kept = app.runs._ended_runs
        before = {name: timer.when() for name, (timer, _) in kept.items()}
        assert [*before] == [first["id"][5:], second["id"][5:]]
        said = [{"type": "item_reference", "id": first["output"][0]["id"]}]
        await respond(app, [*said, {"role": "user", "content": "hi"}])
        after = {name: timer.when() for name, (timer, _) in kept.items()}
        assert after[first["id"][5:]] > before[first["id"][5:]]
        assert after[second["id"][5:]] == before[second["id"][5:]]
        assert [*after][:2] == [second["id"][5:], first["id"][5:]]
        assert app.runs._ended_chars == sum(size for _, size in kept.values())


async def test_references_cannot_grow_a_request_beyond_its_bound() -> None:
    """Each reference counts with the size of its item."""
    long = "x" * 3000
    model = {"model": ScriptedBackend(otherwise=long)}
    async with running(model, max_body=10_000) as app:
        _, made = await respond(app, "hi")
        one = {"type": "item_reference", "id": made["output"][0]["id"]}
        last = {"role": "user", "content": "hi"}
        assert (await respond(app, [one, one, last]))[0] == 200
        status, refused = await respond(app, [one, one, one, one, last])
        assert (status, refused["error"]["param"]) == (413, "input[3]")
