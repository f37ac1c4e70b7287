"""A scripted server, and backends of the chat-completions protocol that connect to it."""

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
from support.clock import install_clock
from support.scripted_server import ScriptedServer, text

__all__ = ["ASK", "KEY", "WireBackends", "backend_error", "make_request", "read_all", "wire"]

KEY = "sk-secret-0123456789/+="
ASK = Request([Message(role="user", content="Hello?")])
AT_ONCE = Retries(backoff=0.0)


def make_request(**options: Any) -> Request:
    return Request(ASK.messages, options=options)


@dataclass
class WireBackends:
    """A server, and a function that makes backends for it."""

    server: ScriptedServer
    kind: str
    made: list[Backend]

    def connect(self, path: str = "", **settings: Any) -> Backend:
        """Return a backend for the server. By default it retries without a pause."""
        settings = {"retries": AT_ONCE, "api_key": KEY} | settings
        address = self.server.url + path
        if self.kind == "http":
            backend = connect(address, model="tiny", **settings)
        else:
            backend = connect("openai:tiny", base_url=address, **settings)
        self.made.append(backend)
        return backend


@pytest.fixture(params=["http", "openai"])
async def wire(request: pytest.FixtureRequest) -> AsyncIterator[WireBackends]:
    """Run a test with the http and the openai backend, on a clock that it can advance."""
    install_clock()
    async with ScriptedServer(text("Hi")) as server, asyncio.timeout(200):
        wire = WireBackends(server, request.param, [])
        yield wire
        for backend in wire.made:
            await backend.aclose()


async def read_all(backend: Backend, request: Request = ASK) -> list[Delta]:
    async with aclosing(backend.stream(request)) as deltas:
        return [delta async for delta in deltas]


async def backend_error(backend: Backend) -> BackendError:
    """Return the error of a request, which must fail."""
    with pytest.raises(BackendError) as caught:
        await read_all(backend)
    return caught.value
