"""Serve an aiohttp application on a free loopback port, without leaving connections open."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from aiohttp import web

from support.waiting import run_turns

__all__ = ["serve_app", "stop_accepting"]


@asynccontextmanager
async def serve_app(app: web.Application) -> AsyncGenerator[str]:
    """Serve for the block and give the address; a client's disconnect cancels its handler."""
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    listening = socket.create_server(("127.0.0.1", 0))
    await web.SockSite(runner, listening).start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        await stop_accepting(listening.fileno())
        await runner.cleanup()


async def stop_accepting(listening: int) -> None:
    """Stop accepting connections, and finish those that are being accepted.

    Call it before you close a server: asyncio needs three turns to accept a connection, and leaves
    it open if the server closes during these turns.
    """
    asyncio.get_running_loop().remove_reader(listening)
    await run_turns(4)
