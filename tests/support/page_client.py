"""A server in this process, and a client that speaks the protocol of the chat page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx

from anabranch import Agent
from anabranch.serve import serve
from anabranch.testing import ScriptedBackend
from support.waiting import POLL_SECONDS

__all__ = ["GREETING", "entry_kinds", "serve_in_process", "wait_for_status", "writer_agent"]

GREETING = {"model": "writer", "input": "hi"}


@asynccontextmanager
async def serve_in_process(*things: Any, **options: Any) -> AsyncGenerator[httpx.AsyncClient]:
    """Serve agents and jobs, and give an HTTP client for them."""
    server = serve(*things, **options)
    transport = httpx.ASGITransport(app=server)
    async with (
        server.running(),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client


async def wait_for_status(client: httpx.AsyncClient, run: str, *wanted: str) -> str:
    """Wait until a run has one of the wanted statuses; return it."""
    found = ""
    async with asyncio.timeout(6):
        while found not in wanted:
            assert found in ("", "running"), found
            found = (await client.get(f"/runs/{run}")).json().get("status", "unknown")
            await asyncio.sleep(POLL_SECONDS)
    return found


async def entry_kinds(client: httpx.AsyncClient, run: str) -> list[str]:
    """Return the kinds of all entries of a run that has ended."""
    lines = (await client.get(f"/runs/{run}/events")).text.splitlines()
    return [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]


def writer_agent(*replies: Any, **options: Any) -> Agent[Any]:
    """Return an agent with scripted replies."""
    return Agent(ScriptedBackend(*replies, otherwise="Hello you."), name="writer", **options)
