"""The servers of `serve.py`: each sends the same answer, one event every `pause` seconds."""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any

import uvicorn
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from anabranch import Agent
from anabranch.backends import ModelBackend
from anabranch.messages import Delta
from anabranch.messages import Request as ModelRequest
from anabranch.serve import serve

__all__ = ["DELTAS", "LAST", "SERVERS", "ask", "serve_one"]

DELTAS = 200
WORD = "word "


def _bare(pause: float) -> Starlette:
    """Write chat chunks by hand, with nothing between the source and the socket."""

    async def events() -> AsyncGenerator[str]:
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "w"}
        for number in range(DELTAS + 1):
            await asyncio.sleep(pause)
            delta = {"content": WORD} if number < DELTAS else {}
            finish = None if number < DELTAS else "stop"
            choice = {"index": 0, "delta": delta, "finish_reason": finish, "logprobs": None}
            yield f"data: {json.dumps({**head, 'choices': [choice]})}\n\n"
        yield "data: [DONE]\n\n"

    async def chat(request: Request) -> Response:
        await request.json()
        return StreamingResponse(events(), media_type="text/event-stream")

    return Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])


class _Paced(ModelBackend):
    """A model that sleeps like the bare server, with the same overhead as a real model."""

    provider = "paced"

    def __init__(self, pause: float) -> None:
        super().__init__("paced")
        self._pause = pause

    async def attempt(self, request: ModelRequest) -> AsyncGenerator[Delta, None]:
        for _ in range(DELTAS):
            await asyncio.sleep(self._pause)
            yield Delta(text=WORD)
        await asyncio.sleep(self._pause)
        yield Delta(finish_reason="stop", done=True)


def _agent(pause: float) -> ASGIApp:
    """Serve an agent."""
    agent = Agent(_Paced(pause), "You answer.", name="writer")
    return serve(agent, max_runs=10_000, keep=5)


def _model(pause: float) -> ASGIApp:
    """Serve a model without an agent."""
    return serve({"writer": _Paced(pause)}, max_runs=10_000, keep=5)


CHAT = ("/v1/chat/completions", {"messages": [{"role": "user", "content": "hi"}]})
RESPONSES = ("/v1/responses", {"input": "hi"})
# By name: the served object and the kind of request.
SERVERS: dict[str, tuple[Callable[[float], ASGIApp], tuple[str, dict[str, Any]]]] = {
    "bare Starlette": (_bare, CHAT),
    "chat, a model": (_model, CHAT),
    "chat, an agent": (_agent, CHAT),
    "responses, an agent": (_agent, RESPONSES),
}
LAST = {CHAT[0]: b"data: [DONE]", RESPONSES[0]: b"event: response.completed"}


def ask(name: str) -> tuple[bytes, bytes]:
    """Return the request, and the start of the last event of its answer."""
    path, body = SERVERS[name][1]
    content = json.dumps({"model": "writer", "stream": True, **body}).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content, LAST[path]


def serve_one(name: str, port: Any, pause: float, loop: str, http: Any) -> None:
    """Serve in this process; write the port into the pipe `port`; `/cpu` returns the CPU time."""
    served = SERVERS[name][0](pause)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("path") == "/cpu":
            await PlainTextResponse(f"{time.process_time()}")(scope, receive, send)
        else:
            await served(scope, receive, send)

    listening = socket.create_server(("127.0.0.1", 0), backlog=4096)
    port.send(listening.getsockname()[1])
    config = uvicorn.Config(
        app, log_level="error", access_log=False, loop=loop, http=http, backlog=4096
    )
    uvicorn.Server(config).run([listening])
