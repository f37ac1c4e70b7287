"""Clients get the model's reasoning, separate from the answer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from openai import BadRequestError
from support.openai_client import serve_to_client
from support.page_client import GREETING, serve_in_process

from anabranch import Agent, Message, ToolCall, tool
from anabranch.serve._run_log import RunLog
from anabranch.store import Durable, Journal
from anabranch.testing import ScriptedBackend

ASK: Any = [{"role": "user", "content": "hi"}]


@tool(read_only=True)
async def double(number: int) -> int:
    """Double a number."""
    return 2 * number


def thinker() -> ScriptedBackend:
    """Make an agent that reasons before a call and before the answer."""
    call = ToolCall(id="c", name="double", arguments={"number": 2})
    first = Message(role="assistant", reasoning="I double. ", tool_calls=[call])
    last = Message(role="assistant", reasoning="That is it.", content="It is 4.")
    return ScriptedBackend(*[first, last] * 20, size=3)


def agent() -> Agent[Any]:
    return Agent(thinker(), name="thinker", tools=[double])


async def test_chat_completions_have_it_streamed_and_complete() -> None:
    """In `reasoning_content`, where clients expect it, before the answer and separate from it."""
    async with serve_to_client(agent()) as client:
        whole = await client.chat.completions.create(model="thinker", messages=ASK)
        message: Any = whole.choices[0].message
        assert (message.content, message.reasoning_content) == ("It is 4.", "I double. That is it.")
        stream = await client.chat.completions.create(model="thinker", messages=ASK, stream=True)
        deltas: list[Any] = [chunk.choices[0].delta async for chunk in stream]
        thoughts = [getattr(each, "reasoning_content", None) or "" for each in deltas]
        assert "".join(thoughts) == message.reasoning_content
        assert "".join(each.content or "" for each in deltas) == message.content
        last = max(place for place, thought in enumerate(thoughts) if thought)
        assert last < min(place for place, each in enumerate(deltas) if each.content)


async def test_responses_have_it_as_items_streamed_and_complete() -> None:
    """An item for each reply, in order; clients may add the output to their input."""
    async with serve_to_client(agent()) as client:
        whole = await client.responses.create(model="thinker", input="hi")
        kinds = ["reasoning", "mcp_call", "reasoning", "message"]
        assert [item.type for item in whole.output] == kinds
        thoughts: list[Any] = [item for item in whole.output if item.type == "reasoning"]
        assert [each.summary[0].text for each in thoughts] == ["I double. ", "That is it."]
        assert whole.output_text == "It is 4."
        async with client.responses.stream(model="thinker", input="hi") as stream:
            events = [event async for event in stream]
            final = await stream.get_final_response()
        assert [event.sequence_number for event in events] == list(range(len(events)))
        assert [item.type for item in final.output] == kinds
        said: Any = [
            event.delta for event in events if event.type == "response.reasoning_summary_text.delta"
        ]
        assert "".join(said) == "I double. That is it."
        listed: list[Any] = [*ASK, *whole.output, *ASK]
        again = await client.responses.create(model="thinker", input=listed)
        assert again.output_text == "It is 4."


async def test_a_request_may_include_encrypted_content() -> None:
    """Clients send that by default; other values of `include` are refused."""
    wanted: Any = {"include": ["reasoning.encrypted_content"], "reasoning": {"summary": "auto"}}
    async with serve_to_client(agent()) as client:
        response = await client.responses.create(model="thinker", input="hi", **wanted)
        assert response.output[0].type == "reasoning"
        others: list[Any] = [["file_search_call.results"], "all", [*wanted["include"] * 2], 5, [{}]]
        for other in [
            *({"include": each} for each in others),
            {"reasoning": {"summary": "concise"}},
        ]:
            with pytest.raises(BadRequestError, match="not supported here"):
                await client.responses.create(model="thinker", input="hi", **other)


async def test_the_reasoning_of_agents_below_is_not_sent() -> None:
    """As for their texts: a client gets only the served agent's."""
    inner = agent()

    @tool
    async def ask(question: str) -> str:
        """Ask another agent."""
        return (await inner(question)).text

    call = ToolCall(id="c", name="ask", arguments={"question": "2?"})
    replies = [Message(role="assistant", tool_calls=[call], reasoning="I ask."), "Four."]
    outer = Agent(ScriptedBackend(*replies), name="outer", tools=[ask])
    async with serve_to_client(outer) as client:
        whole = await client.chat.completions.create(model="outer", messages=ASK)
    message: Any = whole.choices[0].message
    assert (message.content, message.reasoning_content) == ("Four.", "I ask.")


async def test_a_journal_has_it_for_clients_that_reconnect(tmp_path: Path) -> None:
    """The entries are the same before and after a restart."""
    path = tmp_path / "runs.db"
    async with serve_in_process(agent(), journal=path) as client:
        run = (await client.post("/runs", json={**GREETING, "model": "thinker"})).json()["id"]
        before = (await client.get(f"/runs/{run}/events")).text  # until the end of the run
    events = [each.splitlines() for each in before.split("\n\n") if "event: reasoning" in each]
    said = [json.loads(lines[-1].removeprefix("data: "))["text"] for lines in events]
    assert "".join(said) == "I double. That is it."
    async with serve_in_process(agent(), journal=path) as client:
        assert (await client.get(f"/runs/{run}/events")).text == before


class Nothing(Durable[None]):
    """A run of another program."""

    async def task(self) -> None:
        pass


@settings(max_examples=30)
@given(st.text("ab", max_size=8), st.data())
async def test_logged_reasoning_is_not_repeated(text: str, data: st.DataObject) -> None:
    """A later execution produces it again in other pieces; only new text is added."""

    def add(log: RunLog, said: str, speech: str) -> None:
        while said:
            size = data.draw(st.integers(1, len(said)))
            log.append("reasoning", text=said[:size], speech=speech)
            said = said[size:]

    async with Journal(":memory:") as journal:
        await journal.start(Nothing(), run_id="serve/r")
        first = RunLog(journal=journal, run_id="serve/r")
        add(first, text[: data.draw(st.integers(0, len(text)))], "4")
        await first.flush()
        again = await RunLog.open(journal, "serve/r")
        add(again, text, "9")
        again.append("called", call="1", id="c", name="f", arguments="{}")
        await again.flush()
        told = [each.data["text"] for each in again.entries() if each.kind == "reasoning"]
        assert "".join(told) == text
