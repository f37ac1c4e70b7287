"""An application served on a free port of loopback, which leaves no connection open."""

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
    """Give the address; handlers are cancelled when their client leaves."""
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
    """Accept no new connection, and let those come up that are being accepted.

    To be called before a server is closed: asyncio takes three turns to accept, and leaves a
    connection open whose server was closed meanwhile.
    """
    asyncio.get_running_loop().remove_reader(listening)
    await run_turns(4)
