"""Memory and work of a request grow linearly with its size, and the event loop stays free."""

from __future__ import annotations

import asyncio
import sys
import tracemalloc
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import from_json
from support.asgi_requests import Response, encode_body, is_refusal, send_request
from support.seeds import example_count

from anabranch import Agent, Job, Message
from anabranch.serve import Server, serve
from anabranch.testing import ScriptedBackend

CHAT, RESPONSES, RUNS = "/v1/chat/completions", "/v1/responses", "/runs"
USER = {"role": "user", "content": "hi"}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
IMAGE = {"type": "image_url", "image_url": {"url": "https://a.test/b.png"}}


class Count(Job[str]):
    """A job with fields that may be large."""

    text: str
    numbers: list[list[float]] | None = None
    anything: Any = None

    async def task(self) -> str:
        return f"{len(self.text)}"


@asynccontextmanager
async def _running(**options: Any) -> AsyncGenerator[Server]:
    backend = ScriptedBackend(otherwise="hello")
    server = serve(Agent(backend, name="writer"), {"model": backend}, Count, **options)
    async with server.running():
        yield server


async def _answer(server: Server, path: str, body: dict[str, Any]) -> Response:
    """Send a request, and wait until its run has ended."""
    answer = await send_request(server, "POST", path, encode_body(body))
    if path == RUNS and answer.status == 201:
        events = await send_request(server, "GET", f"/runs/{answer.json['id']}/events")
        assert b"event: completed" in events.body
    return answer


def _asked(path: str, model: str, said: list[Any], **more: Any) -> dict[str, Any]:
    return {"model": model, ("messages" if path == CHAT else "input"): said, **more}


# --- limits


@pytest.mark.parametrize("path", [CHAT, RESPONSES, RUNS])
@pytest.mark.parametrize("model", ["writer", "model", "Count"])
async def test_a_request_has_no_more_messages_than_allowed(path: str, model: str) -> None:
    """One more is 413 with the limit; the server still works."""
    async with _running(max_messages=10) as server:
        allowed = await _answer(server, path, _asked(path, model, [USER] * 10))
        assert allowed.status in (200, 201)
        refused = await _answer(server, path, _asked(path, model, [USER] * 11))
        assert (refused.status, is_refusal(refused)) == (413, True)
        assert refused.json["error"]["message"] == "a request must have at most 10 messages, not 11"
        again = await _answer(server, path, _asked(path, model, [USER]))
        assert again.status in (200, 201)


async def test_parts_calls_and_tools_are_bounded_too() -> None:
    """A message may have as many of them as a request may have messages."""
    parts = {"role": "user", "content": [{"type": "text", "text": "a"}] * 11}
    calls = {"role": "assistant", "content": None, "tool_calls": [CALL] * 11}
    tools = [{"type": "function", "function": {"name": f"f{n}"}} for n in range(11)]
    async with _running(max_messages=10) as server:
        for said, more, what in (
            ([parts], {}, "parts and tool calls"),
            ([USER, calls, USER], {}, "parts and tool calls"),
            ([USER], {"tools": tools}, "tools"),
        ):
            refused = await _answer(server, CHAT, _asked(CHAT, "model", said, **more))
            assert refused.status == 413
            assert what in refused.json["error"]["message"]
        answer = await _answer(server, CHAT, _asked(CHAT, "model", [USER], tools=tools[:10]))
        assert answer.status == 200


@pytest.mark.parametrize("path", [CHAT, RESPONSES, RUNS])
@pytest.mark.parametrize("joined", [True, False])
async def test_a_message_has_at_most_256_tool_calls(path: str, joined: bool) -> None:
    """In one item, or in several items of one message; several messages may have more."""

    def call(number: int) -> dict[str, Any]:
        if joined:
            return CALL | {"id": f"c{number}"}
        return {"type": "function_call", "call_id": f"c{number}", "name": "f", "arguments": "{}"}

    def said(count: int) -> list[dict[str, Any]]:
        calls = [call(number) for number in range(count)]
        if joined:
            calls = [{"role": "assistant", "content": None, "tool_calls": calls}]
        return [USER, *calls, USER]

    async with _running() as server:
        allowed = said(256) + said(200)
        answer = await _answer(server, path, _asked(path, "model", allowed))
        assert answer.status in (200, 201)
        refused = await _answer(server, path, _asked(path, "model", said(257)))
        assert refused.status == 413
        assert "a message must have at most 256 tool calls" in refused.json["error"]["message"]


@pytest.mark.parametrize(
    "many_values",
    ["[" + "[]," * 3_000_000 + "0]", "[" + "1," * 200_000 + "0]", '["' + '","' * 500_000 + '"]'],
    ids=["lists", "numbers", "texts"],
)
async def test_a_request_has_no_more_values_than_allowed(
    many_values: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are counted before parsing: 3 million lists would block the loop for long."""
    read: list[int] = []

    def counting(text: Any, **options: Any) -> Any:
        read.append(len(text))
        return from_json(text, **options)

    monkeypatch.setattr("anabranch.serve._request_body.from_json", counting)
    async with _running() as server:
        body = f'{{"model": "Count", "fields": {{"anything": {many_values}}}}}'
        answer = await send_request(server, "POST", RUNS, body.encode())
        assert answer.status == 413
        assert not read
        assert "JSON values" in answer.json["error"]["message"]


@pytest.mark.parametrize("text", [",[{" * 100_000, '\\"' * 300_000, '\\\\",' * 100_000, "\\" * 99])
async def test_characters_in_strings_are_not_counted_as_values(text: str) -> None:
    """Brackets, commas and escaped quotes inside strings do not count."""
    async with _running() as server:
        answer = await _answer(server, CHAT, _asked(CHAT, "Count", [{**USER, "content": text}]))
        assert answer.json["choices"][0]["message"]["content"] == str(len(text))


@pytest.mark.parametrize("path", [CHAT, RESPONSES, RUNS])
@pytest.mark.parametrize("model", ["writer", "model"])
async def test_other_tasks_run_while_a_long_conversation_is_read(
    path: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 64 messages are read in one step of the event loop."""
    in_this_turn = 0
    most = 0
    from_wire = Message.from_wire

    def counting(wire: Any) -> Message:
        nonlocal in_this_turn, most
        in_this_turn += 1
        most = max(most, in_this_turn)
        return from_wire(wire)

    async def turn() -> None:
        nonlocal in_this_turn
        while True:
            in_this_turn = 0
            await asyncio.sleep(0)

    monkeypatch.setattr(Message, "from_wire", counting)
    async with _running() as server:
        turning = asyncio.create_task(turn())
        answer = await _answer(server, path, _asked(path, model, [USER] * 2048))
        turning.cancel()
        assert answer.status in (200, 201)
        assert 32 <= most <= 64


# --- costs


def _requests(kind: str, size: int) -> tuple[str, dict[str, Any]]:
    """Return a request of this kind with `size` things."""
    turn = [USER, {"role": "assistant", "content": "yes"}]
    tools = [{"type": "function", "name": f"f{n}"} for n in range(size)]
    called = [
        {"type": "function_call", "call_id": "c", "name": "f", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "c", "output": "done"},
    ]
    part = {"type": "text", "text": "a"}
    long = {**USER, "content": "x" * 1000}
    match kind:
        case "a user":
            return CHAT, _asked(CHAT, "writer", [USER] * size)
        case "a user at length":
            return RESPONSES, _asked(RESPONSES, "writer", [long] * size)
        case "turns":
            return RUNS, _asked(RUNS, "writer", [*turn * size, USER])
        case "a model's turns":
            return CHAT, _asked(CHAT, "model", [*turn * size, USER])
        case "a model's user":
            return RUNS, _asked(RUNS, "model", [long] * size)
        case "a background":
            said = [*turn * size, USER]
            return RESPONSES, _asked(RESPONSES, "writer", said, background=True, stream=True)
        case "parts":
            return CHAT, _asked(CHAT, "writer", [{**USER, "content": [part] * size}])
        case "images":
            return CHAT, _asked(CHAT, "writer", [{**USER, "content": [IMAGE]}] * size)
        case "calls":
            return RESPONSES, _asked(RESPONSES, "model", [USER, *called * size])
        case "calls at once":
            said = [USER, *called[:1] * size, *called[1:] * size]
            return RESPONSES, _asked(RESPONSES, "model", said)
        case "tools":
            return RESPONSES, _asked(RESPONSES, "model", [USER], tools=tools)
        case "the same tools":
            return RESPONSES, _asked(RESPONSES, "model", [USER], tools=[*tools, tools[-1]])
        case "a job's text":
            return CHAT, _asked(CHAT, "Count", turn[:1] * size)
        case "a job's numbers":
            return RUNS, _asked(RUNS, "Count", [USER], fields={"numbers": [[1.5]] * size})
        case "stops":
            return CHAT, _asked(CHAT, "model", [USER], stop=["x"] * size)
        case _:
            halves = {**USER, "content": "a\ud800" * size}
            return CHAT, _asked(CHAT, "writer", [halves])


KINDS = [
    *("a user", "a user at length", "turns", "a model's turns", "a model's user", "a background"),
    *("parts", "images", "calls", "calls at once", "tools", "the same tools", "a job's text"),
    *("a job's numbers", "stops", "halves of characters"),
]


def _count_calls(kind: str, size: int, **options: Any) -> int:
    """Return the number of function calls for a request."""
    calls = 0

    def count(_: object, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    async def check() -> None:
        path, body = _requests(kind, size)
        async with _running(max_messages=10_000, **options) as server:
            await _answer(server, path, _requests(kind, 1)[1])  # work that is done only once
            sys.setprofile(count)
            try:
                await _answer(server, path, body)
            finally:
                sys.setprofile(None)

    asyncio.run(check())
    return calls


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=example_count(1, 20))
@given(size=st.integers(40, 80))
def test_the_work_of_a_request_is_linear_in_its_size(kind: str, size: int) -> None:
    """For each kind: twice the size needs at most twice the function calls, and a few."""
    assert _count_calls(kind, 2 * size) <= 2.1 * _count_calls(kind, size) + 3000


@pytest.mark.parametrize("kind", ["turns", "a model's user", "a background"])
def test_the_work_of_a_durable_request_is_linear_in_its_size(kind: str, tmp_path: Path) -> None:
    """The journal writes and reads the run too."""
    small, large = (_count_calls(kind, n, journal=tmp_path / f"{n}.db") for n in (60, 120))
    assert large <= 2.1 * small + 3000


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=example_count(1, 20))
@given(size=st.integers(200, 300))
def test_the_memory_of_a_request_is_linear_in_its_size(kind: str, size: int) -> None:
    """At most some kB for each thing in it, and some copies of its text."""

    async def check() -> None:
        path, body = _requests(kind, size)
        async with _running() as server:
            await _answer(server, path, _requests(kind, 1)[1])
            tracemalloc.start()
            try:
                await _answer(server, path, body)
                peak = tracemalloc.get_traced_memory()[1]
            finally:
                tracemalloc.stop()
        assert peak <= 20 * len(encode_body(body)) + 12_000 * size + 1_000_000

    asyncio.run(check())
