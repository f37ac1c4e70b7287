"""A loopback server that answers chat-completions requests with scripted replies."""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

from aiohttp import web

from support.aiohttp_server import serve_app

__all__ = [
    "DONE",
    "Received",
    "Reply",
    "ScriptedServer",
    "Step",
    "calls",
    "chunk",
    "event",
    "text",
    "vectors",
]


class Step(Enum):
    """The steps of a reply besides bytes and events to wait for."""

    DROP = "cut the connection"
    HANG = "say nothing more until the client leaves"


Played: TypeAlias = bytes | asyncio.Event | Callable[[], object] | Step
DONE = b"data: [DONE]\n\n"


def event(value: Any) -> bytes:
    """Return one server-sent event as bytes."""
    return b"data: " + json.dumps(value).encode() + b"\n\n"


def chunk(delta: dict[str, Any] | None = None, finish: str | None = None, **more: Any) -> bytes:
    """Return one chunk of a reply as an event."""
    choice = {"index": 0, "delta": delta or {}, "finish_reason": finish}
    return event({"id": "c-1", "object": "chat.completion.chunk", "choices": [choice], **more})


@dataclass
class Reply:
    """One scripted answer, with steps that are sent, awaited, called or performed in order."""

    steps: Sequence[Played] = ()
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    content_type: str = "text/event-stream"

    @classmethod
    def error(cls, status: int, error: Any, **headers: str) -> Reply:
        """Return a refusal with an error object."""
        body = json.dumps({"error": error}).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        return cls([body], status, names, "application/json")


Scripted: TypeAlias = Reply | Callable[[dict[str, Any]], Reply]


def text(*pieces: str, usage: tuple[int, int] = (5, 7)) -> Reply:
    """Return a reply with text in these pieces."""
    spent = {"prompt_tokens": usage[0], "completion_tokens": usage[1]}
    steps = [chunk({"role": "assistant", "content": ""}), *(chunk({"content": p}) for p in pieces)]
    return Reply([*steps, chunk(finish="stop"), event({"choices": [], "usage": spent}), DONE])


def calls(*made: tuple[str, str], cut: int = 3) -> Reply:
    """Return a reply with tool calls (name, arguments), the arguments in pieces of `cut`."""
    steps: list[bytes] = []
    for index, (name, arguments) in enumerate(made):
        function = {"name": name, "arguments": ""}
        first = {"index": index, "id": f"call_{index}", "type": "function", "function": function}
        steps.append(chunk({"tool_calls": [first]}))
        for at in range(0, len(arguments), cut):
            piece = {"index": index, "function": {"arguments": arguments[at : at + cut]}}
            steps.append(chunk({"tool_calls": [piece]}))
    return Reply([*steps, chunk(finish="tool_calls"), DONE])


def vectors(*texts: str, usage: int = 5) -> Reply:
    """Return a reply with an embedding (length, 1) for each text, in reverse order."""
    data: list[dict[str, Any]] = [
        {"object": "embedding", "index": index, "embedding": [len(text), 1.0]}
        for index, text in enumerate(texts)
    ]
    spent = {"prompt_tokens": usage, "total_tokens": usage}
    answer = {"object": "list", "data": data[::-1], "model": "tiny", "usage": spent}
    return Reply([json.dumps(answer).encode()], content_type="application/json")


@dataclass
class Received:
    """One received request."""

    path: str
    headers: dict[str, str]
    body: dict[str, Any]


class ScriptedServer:
    """A server that sends its scripted replies in order, and repeats the last one.

    A function in the place of a reply makes the reply for the body of each request.
    With `embeds` it answers requests for embeddings without using the script. It lists `models`,
    or refuses to list them for None.

    `requests` are the received requests. The first one sets `asked`. A client that disconnects
    before the end of its reply sets `gone`.
    """

    def __init__(self, *replies: Scripted) -> None:
        self.requests: list[Received] = []
        self.asked = asyncio.Event()
        self.gone = asyncio.Event()
        self._replies = deque(replies)
        self._stack = AsyncExitStack()
        self.url = ""
        self.embeds = False
        self.models: list[Any] | None = None

    def script(self, *replies: Scripted) -> None:
        """Replace the replies."""
        self._replies = deque(replies)

    async def __aenter__(self) -> ScriptedServer:
        app = web.Application()
        app.router.add_post("/{path:.*}", self._answer)
        app.router.add_get("/{path:.*}", self._list)
        self.url = await self._stack.enter_async_context(serve_app(app)) + "/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._stack.aclose()

    async def _list(self, request: web.Request) -> web.Response:
        if request.path != "/v1/models":
            raise web.HTTPNotFound
        if self.models is None:
            raise web.HTTPMethodNotAllowed("GET", ["POST"])
        data = [{"id": each, "object": "model"} for each in self.models]
        return web.json_response({"object": "list", "data": data})

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        body = json.loads(await request.read())
        self.requests.append(Received(request.path, _headers(request), body))
        self.asked.set()
        if self.embeds and request.path.endswith("/embeddings"):
            reply = vectors(*body["input"])
        else:
            reply = self._replies.popleft() if len(self._replies) > 1 else self._replies[0]
            reply = reply if isinstance(reply, Reply) else reply(body)
        response = web.StreamResponse(status=reply.status, headers=reply.headers)
        response.content_type = reply.content_type
        await response.prepare(request)
        try:
            await self._play(reply.steps, request, response)
        except (asyncio.CancelledError, ConnectionError):
            self.gone.set()
            raise
        return response

    async def _play(
        self,
        steps: Iterable[Played],
        request: web.Request,
        response: web.StreamResponse,
    ) -> None:
        for step in steps:
            if isinstance(step, bytes):
                await response.write(step)
            elif isinstance(step, asyncio.Event):
                await step.wait()
            elif callable(step):
                step()
            elif step is Step.HANG:
                await asyncio.Event().wait()
            else:
                assert request.transport is not None
                request.transport.close()
                return


def _headers(request: web.Request) -> dict[str, str]:
    """Return the client's headers, with the client's address and port as `Peer`."""
    assert request.transport is not None
    return {**request.headers, "Peer": str(request.transport.get_extra_info("peername"))}
