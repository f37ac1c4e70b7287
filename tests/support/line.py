"""A scripted server and the backends of the chat-completions wire that reach it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import pytest

from anabranch.backends import Backend, Retries, connect
from anabranch.commander import BackendError
from anabranch.messages import Delta, Message, Request
from support.clock import own_clock
from support.server import ScriptedServer, text

__all__ = ["ASK", "KEY", "Line", "ask", "failure_of", "line", "read_all"]

KEY = "sk-secret-0123456789/+="
ASK = Request([Message(role="user", content="Hello?")])
AT_ONCE = Retries(backoff=0.0)


def ask(**options: Any) -> Request:
    return Request(ASK.messages, options=options)


@dataclass
class Line:
    """A server, and what makes backends that reach it."""

    server: ScriptedServer
    kind: str
    made: list[Backend]

    def connect(self, path: str = "", **settings: Any) -> Backend:
        settings = {"retries": AT_ONCE, "api_key": KEY} | settings
        address = self.server.url + path
        if self.kind == "http":
            backend = connect(address, model="tiny", **settings)
        else:
            backend = connect("openai:tiny", base_url=address, **settings)
        self.made.append(backend)
        return backend


@pytest.fixture(params=["http", "openai"])
async def line(request: pytest.FixtureRequest) -> AsyncIterator[Line]:
    own_clock()
    async with ScriptedServer(text("Hi")) as server, asyncio.timeout(200):
        line = Line(server, request.param, [])
        yield line
        for backend in line.made:
            await backend.aclose()


async def read_all(backend: Backend, request: Request = ASK) -> list[Delta]:
    async with aclosing(backend.stream(request)) as deltas:
        return [delta async for delta in deltas]


async def failure_of(backend: Backend) -> BackendError:
    with pytest.raises(BackendError) as caught:
        await read_all(backend)
    return caught.value
