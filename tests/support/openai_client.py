"""Serve agents and jobs with uvicorn on a free loopback port, and open OpenAI's client for them."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, nullcontext
from typing import Any

import uvicorn
from openai import AsyncOpenAI, DefaultAsyncHttpxClient

from anabranch.serve import Server, serve
from support.aiohttp_server import stop_accepting

__all__ = ["on_uvicorn", "open_client", "serve_to_client"]


@asynccontextmanager
async def on_uvicorn(server: Server) -> AsyncGenerator[str]:
    """Serve for the block and give the address; close all connections at the end."""
    config = uvicorn.Config(server, log_level="warning", timeout_graceful_shutdown=1)
    running = uvicorn.Server(config)
    running.capture_signals = nullcontext  # type: ignore[method-assign]  # pytest handles signals
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    began = asyncio.create_task(running.serve([listening]))
    try:
        while not running.started:
            await asyncio.sleep(0)
            if began.done():
                await began
        yield f"http://127.0.0.1:{port}"
    finally:
        await stop_accepting(listening.fileno())
        running.should_exit = True
        await began
        listening.close()


@asynccontextmanager
async def open_client(url: str, key: str = "none") -> AsyncGenerator[AsyncOpenAI]:
    """Give OpenAI's client for a server."""
    # No certificates, because loading them takes longer than most tests.
    http = DefaultAsyncHttpxClient(verify=False)
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key=key, http_client=http) as client:
        yield client


@asynccontextmanager
async def serve_to_client(*things: Any, **options: Any) -> AsyncGenerator[AsyncOpenAI]:
    """Serve things, and give OpenAI's client for them."""
    async with on_uvicorn(serve(*things, **options)) as url, open_client(url) as client:
        yield client
