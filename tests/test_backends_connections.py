"""Connections that nobody closes are closed with their loop."""

from __future__ import annotations

import asyncio
import gc
import warnings
from typing import Any

import pytest
from _server import ScriptedServer, text

from anabranch.agents import Agent
from anabranch.backends import Backend, connect
from anabranch.messages import Message, Request

HELLO = Request([Message(role="user", content="hi")])


def open_backend(kind: str, server: ScriptedServer) -> Backend:
    if kind == "http":
        return connect(server.url, model="m")
    return connect("openai:m", base_url=server.url, api_key="k")


@pytest.fixture
def no_complaints(caplog: pytest.LogCaptureFixture) -> Any:
    """Fail for what asyncio, aiohttp or the collector say about something left open."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
        gc.collect()
    assert "Unclosed" not in caplog.text


@pytest.mark.usefixtures("no_complaints")
@pytest.mark.parametrize("kind", ["http", "openai"])
async def test_a_backend_that_is_not_closed_leaves_no_connection_behind(kind: str) -> None:
    """`asyncio.run` in another thread, and an agent that blocks; the server stays."""

    def in_a_loop_of_its_own(backend: Backend) -> str | None:
        return asyncio.run(backend.complete(HELLO)).content

    async with asyncio.timeout(60), ScriptedServer(text("river")) as server:
        backend = open_backend(kind, server)
        agent = Agent(open_backend(kind, server))
        for _ in range(2):
            assert await asyncio.to_thread(in_a_loop_of_its_own, backend) == "river"
            assert (await asyncio.to_thread(agent.run_sync, "hi")).content == "river"
