"""The server of `loop.py`: answers every conversation alike, as cheaply as it can."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from typing import Any

__all__ = ["ANSWER", "serve"]

TOKENS = 200
ANSWER = " ".join(["word"] * TOKENS)


def _event(choices: list[dict[str, Any]], **more: Any) -> bytes:
    head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "tiny"}
    data = b"data: " + json.dumps({**head, "choices": choices, **more}).encode() + b"\n\n"
    return b"%x\r\n%s\r\n" % (len(data), data)


def _delta(delta: dict[str, Any], finish: str | None = None) -> bytes:
    return _event([{"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}])


def _end(finish: str) -> list[bytes]:
    usage = {"prompt_tokens": 50, "completion_tokens": TOKENS, "total_tokens": 50 + TOKENS}
    done = b"data: [DONE]\n\n"
    last = b"%x\r\n%s\r\n0\r\n\r\n" % (len(done), done)
    return [_delta({}, finish), _event([], usage=usage) + last]


def _call() -> list[bytes]:
    function = {"name": "get_weather", "arguments": ""}
    first = {"index": 0, "id": "call_1", "type": "function", "function": function}
    pieces = ['{"loc', 'ation"', ': "Pa', 'ris"}']
    rest = [{"index": 0, "function": {"arguments": piece}} for piece in pieces]
    head = _delta({"role": "assistant", "content": None})
    return [head, *(_delta({"tool_calls": [c]}) for c in (first, *rest)), *_end("tool_calls")]


def _text() -> list[bytes]:
    words = ANSWER.split(" ")
    pieces = [words[0], *(f" {word}" for word in words[1:])]
    head = _delta({"role": "assistant", "content": ""})
    return [head, *(_delta({"content": piece}) for piece in pieces), *_end("stop")]


_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
    b"Transfer-Encoding: chunked\r\nConnection: keep-alive\r\n\r\n"
)


async def _serve_one(
    pause: float, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> None:
    call, text = _call(), _text()
    try:
        while True:
            head = await reader.readuntil(b"\r\n\r\n")
            length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
            body = json.loads(await reader.readexactly(length))
            events = text if body["messages"][-1]["role"] == "tool" else call
            for piece in (_HEAD, *events) if pause else (_HEAD + b"".join(events),):
                writer.write(piece)
                await asyncio.sleep(pause)
    except (asyncio.IncompleteReadError, ConnectionError):
        writer.close()


def serve(port: Any, pause: float) -> None:
    async def run() -> None:
        answer = partial(_serve_one, pause)
        server = await asyncio.start_server(answer, "127.0.0.1", 0, backlog=1000)
        port.send(server.sockets[0].getsockname()[1])
        await server.serve_forever()

    asyncio.run(run())
