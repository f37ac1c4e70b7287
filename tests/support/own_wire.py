"""A server in this process, and a client of the page's wire."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import httpx2 as httpx

from anabranch import Agent
from anabranch.serve import serve
from anabranch.testing import ScriptedBackend
from support.until import LOOK

__all__ = ["HI", "entries", "served", "status", "writer"]

HI = {"model": "writer", "input": "hi"}


@asynccontextmanager
async def served(*things: Any, **options: Any) -> AsyncGenerator[httpx.AsyncClient]:
    """Serve things, and give a client of the page's wire."""
    server = serve(*things, **options)
    transport = httpx.ASGITransport(app=server)
    async with (
        server.running(),
        httpx.AsyncClient(transport=transport, base_url="http://localhost") as client,
    ):
        yield client


async def status(client: httpx.AsyncClient, run: str, *wanted: str) -> str:
    """Return how a run stands, once it stands as wanted."""
    found = ""
    async with asyncio.timeout(6):
        while found not in wanted:
            assert found in ("", "running"), found
            found = (await client.get(f"/runs/{run}")).json().get("status", "unknown")
            await asyncio.sleep(LOOK)
    return found


async def entries(client: httpx.AsyncClient, run: str) -> list[str]:
    """Return the kinds of all entries of a run that is over."""
    lines = (await client.get(f"/runs/{run}/events")).text.splitlines()
    return [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]


def writer(*replies: Any, **options: Any) -> Agent[Any]:
    """Make an agent that says what is written down."""
    return Agent(ScriptedBackend(*replies, otherwise="Hello you."), name="writer", **options)
