"""A model's refusal is a refusal on OpenAI's wire, not content: complete, streamed and resumed."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest
from support.openai_client import on_uvicorn, open_client, serve_to_client

from anabranch import Agent
from anabranch.backends import Backend
from anabranch.messages import Delta, Request
from anabranch.serve import serve

NO = "I cannot help with that."
ASKED: list[Any] = [{"role": "user", "content": "how?"}]


class Refuses(Backend):
    """A backend that refuses in several deltas, after a text if it has one."""

    provider = "refuses"

    def __init__(self, text: str = "") -> None:
        super().__init__("model")
        self._text = text
        self.requests: list[Request] = []

    async def stream(self, request: Request) -> AsyncGenerator[Delta]:
        self.requests.append(request)
        if self._text:
            yield Delta(self._text)
        for word in NO.split(" "):
            yield Delta(refusal=word if word == "I" else f" {word}")
        yield Delta(finish_reason="stop", done=True)


def _thing(kind: str, text: str = "") -> Agent | Backend:
    return Refuses(text) if kind == "model" else Agent(Refuses(text), name="model")


@pytest.mark.parametrize("kind", ["model", "agent"])
@pytest.mark.parametrize("text", ["", "Well."])
async def test_a_completion_has_the_refusal_in_its_own_field(kind: str, text: str) -> None:
    """The content is null, or the text before the refusal. The chunks have the same."""
    async with serve_to_client(_thing(kind, text)) as client:
        made = await client.chat.completions.create(model="model", messages=ASKED)
        async with client.chat.completions.stream(model="model", messages=ASKED) as stream:
            streamed = await stream.get_final_completion()
        deltas = [
            chunk.choices[0].delta
            async for chunk in await client.chat.completions.create(
                model="model", messages=ASKED, stream=True
            )
        ]

    message = made.choices[0].message
    assert (message.content, message.refusal) == (text or None, NO)
    assert made.choices[0].finish_reason == "stop"
    assert streamed.choices[0].message.refusal == NO
    assert (streamed.choices[0].message.content or "") == text
    assert [each.refusal for each in deltas if each.refusal] == [
        "I",
        " cannot",
        " help",
        " with",
        " that.",
    ]
    assert "".join(each.content or "" for each in deltas) == text


@pytest.mark.parametrize("kind", ["model", "agent"])
@pytest.mark.parametrize("text", ["", "Well."])
async def test_a_response_has_the_refusal_as_a_part(kind: str, text: str) -> None:
    """It has the events of a refusal, and the SDK assembles the same response."""
    async with serve_to_client(_thing(kind, text)) as client:
        made = await client.responses.create(model="model", input="how?")
        async with client.responses.stream(model="model", input="how?") as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_response()

    for response in (made, streamed):
        parts = [part for item in response.output for part in getattr(item, "content", [])]
        assert [part.type for part in parts] == (["output_text"] if text else []) + ["refusal"]
        assert parts[-1].refusal == NO
        assert response.output_text == text
    assert kinds.count("response.refusal.delta") == 5
    assert kinds.count("response.refusal.done") == 1


async def test_a_returned_refusal_reaches_the_model() -> None:
    """A client returns the message, or the output of the response, unchanged."""
    model = Refuses()
    async with serve_to_client(model) as client:
        made = await client.chat.completions.create(model="model", messages=ASKED)
        back: Any = made.choices[0].message.model_dump()
        await client.chat.completions.create(model="model", messages=[*ASKED, back, *ASKED])
        response = await client.responses.create(model="model", input="how?")
        items: Any = [*ASKED, *(item.model_dump() for item in response.output), *ASKED]
        await client.responses.create(model="model", input=items)

    for request in model.requests[1::2]:
        assert [each.refusal for each in request.messages] == [None, NO, None]


async def test_a_journal_stores_a_refusal(tmp_path: Any) -> None:
    """A restarted server has the same response."""
    file = str(tmp_path / "runs.db")
    async with on_uvicorn(serve(Refuses("Well."), journal=file)) as url, open_client(url) as client:
        begun = await client.responses.create(model="model", input="how?", background=True)
        stream = await client.responses.retrieve(begun.id, stream=True)
        events: list[Any] = [event async for event in stream]
        before = events[-1].response
    async with on_uvicorn(serve(Refuses("Well."), journal=file)) as url, open_client(url) as client:
        after = await client.responses.retrieve(begun.id)

    after_output: list[Any] = [*after.output]
    assert after_output == before.output
    assert [part.type for item in after_output for part in item.content] == [
        "output_text",
        "refusal",
    ]
