"""Replies in the forms of common servers: all are read the same."""

from __future__ import annotations

from typing import Any

import pytest
from support.scripted_server import DONE, Reply, ScriptedServer, event

from anabranch.backends import connect
from anabranch.messages import Message, Request

pytestmark = pytest.mark.contract("B1")

ASK = Request([Message(role="user", content="Hello?")])
_SPENT = {"prompt_tokens": 4, "completion_tokens": 2, "total_tokens": 6}
_TIMINGS = {"prompt_n": 4, "prompt_ms": 9.5, "predicted_n": 2, "predicted_per_second": 50.1}


def _piece(index: int | None, name: str | None, arguments: Any, call_id: str = "") -> Any:
    function = {"name": name, "arguments": arguments}
    piece = {"index": index, "id": call_id, "type": "function", "function": function}
    return {key: value for key, value in piece.items() if value not in (None, "")}


def _vllm(*deltas: Any, finish: str) -> list[bytes]:
    """Unset fields are null; usage has its own chunk."""
    unset = {"reasoning": None, "reasoning_content": None}
    choices = [{"index": 0, "delta": {**unset, **d}, "logprobs": None} for d in deltas]
    end = {"delta": {"content": ""}, "index": 0, "finish_reason": finish, "stop_reason": None}
    first = {"delta": {"role": "assistant", "content": ""}, "index": 0, "finish_reason": None}
    chunks = [{"choices": [each], "usage": None} for each in (first, *choices, end)]
    return [*map(event, [*chunks, {"choices": [], "usage": _SPENT}]), DONE]


def _llama_server(*deltas: Any, finish: str) -> list[bytes]:
    """The first content is null; timings are beside the choices, and usage may be too."""
    first = {"role": "assistant", "content": None}
    choices = [{"finish_reason": None, "index": 0, "delta": d} for d in (first, *deltas)]
    end = {"finish_reason": finish, "index": 0, "delta": {}}
    last = {"choices": [end], "usage": _SPENT, "timings": _TIMINGS}
    return [*(event({"choices": [c], "timings": _TIMINGS}) for c in choices), event(last), DONE]


def _ollama(*deltas: Any, finish: str) -> list[bytes]:
    """Each chunk has the role; a reply with calls may end as one of text."""
    said = [{"index": 0, "delta": {"role": "assistant", "content": "", **d}} for d in deltas]
    end = {"index": 0, "delta": {"role": "assistant", "content": ""}, "finish_reason": finish}
    chunks = [{"choices": [each]} for each in (*said, end)]
    return [*map(event, [*chunks, {"choices": [], "usage": _SPENT}]), DONE]


def _lmdeploy(*deltas: Any, finish: str) -> list[bytes]:
    """Lists of calls are empty, not omitted; each piece of a call has another id."""
    unset = {"role": "assistant", "reasoning_content": None, "gen_tokens": None, "tool_calls": []}
    for number, piece in enumerate(p for d in deltas for p in d.get("tool_calls", ())):
        piece["id"] = f"chatcmpl-tool-{number}"
    choices = [{"index": 0, "delta": {**unset, "content": None, **d}} for d in deltas]
    end = {"index": 0, "delta": {**unset, "content": ""}, "finish_reason": finish}
    chunks = [{"choices": [each], "usage": None} for each in (*choices, end)]
    return [*map(event, [*chunks, {"choices": [], "usage": _SPENT}]), DONE]


_CUT = [
    _piece(0, "add", "", "call_a"),
    _piece(0, None, '{"a": 1, '),
    _piece(0, None, '"b": 2}'),
    _piece(1, "now", "", "call_b"),
    _piece(1, None, "{}"),
]
_WHOLE = [_piece(0, "add", '{"a": 1, "b": 2}', "call_a"), _piece(1, "now", "{}", "call_b")]
_NO_INDEX = [{**piece, "index": None} for piece in _WHOLE]
_SAME_INDEX = [{**piece, "index": 0} for piece in _WHOLE]


def _each(pieces: list[Any]) -> list[Any]:
    return [{"tool_calls": [dict(piece)]} for piece in pieces]


_SAID = [{"content": "Hi"}, {"content": " there"}]
TEXTS = {
    "vllm serve": _vllm(*_SAID, finish="stop"),
    "llama-server": _llama_server(*_SAID, finish="stop"),
    "Ollama": _ollama(*_SAID, finish="stop"),
    "LMDeploy": _lmdeploy(*_SAID, finish="stop"),
}
CALLS = {
    "vllm serve": _vllm(*_each(_CUT), finish="tool_calls"),
    "llama-server": _llama_server(*_each(_CUT), finish="tool_calls"),
    "Ollama": _ollama({"tool_calls": _WHOLE}, finish="tool_calls"),
    "Ollama, no index": _ollama({"tool_calls": _NO_INDEX}, finish="stop"),
    "Ollama, one index": _ollama(*_each(_SAME_INDEX), finish="stop"),
    "LMDeploy": _lmdeploy(*_each(_CUT), finish="tool_calls"),
}


async def _read(steps: list[bytes]) -> Message:
    async with ScriptedServer(Reply(steps)) as server, connect(server.url, model="m") as backend:
        return await backend.complete(ASK)


@pytest.mark.parametrize("server", TEXTS)
async def test_text_of_every_server_is_read(server: str) -> None:
    """With its usage."""
    message = await _read(TEXTS[server])

    assert (message.content, message.finish_reason) == ("Hi there", "stop")
    assert message.usage is not None
    assert (message.usage.input_tokens, message.usage.output_tokens) == (4, 2)


@pytest.mark.parametrize("server", CALLS)
async def test_calls_of_every_server_are_read(server: str) -> None:
    """In pieces or complete, each with an id."""
    message = await _read(CALLS[server])

    assert [(call.name, call.arguments) for call in message.tool_calls] == [
        ("add", {"a": 1, "b": 2}),
        ("now", {}),
    ]
    assert len({call.id for call in message.tool_calls}) == 2
    assert not message.content


@pytest.mark.parametrize("status", [400, 404])
async def test_a_refusal_without_an_envelope_is_read(status: int) -> None:
    """LMDeploy and older vLLM send these."""
    said = {"message": "no such thing", "type": "invalid", "code": status, "object": "error"}
    refusal = Reply([event(said).removeprefix(b"data: ")], status, content_type="application/json")
    async with ScriptedServer(refusal) as server, connect(server.url, model="m") as backend:
        with pytest.raises(Exception, match=rf"no such thing \({status}\)$"):
            await backend.complete(ASK)
