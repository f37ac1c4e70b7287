"""An MCP server for tests: `python mcp_server.py stdio`, or `http`, which prints its port."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path

from mcp.server.mcpserver import Image, MCPServer
from mcp.types import ToolAnnotations

server = MCPServer("demo", log_level="CRITICAL")


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
def add(a: int, b: int = 1) -> int:
    """Add two numbers."""
    return a + b


@server.tool(name="odd.name/here", annotations=ToolAnnotations(idempotent_hint=True))
def odd() -> str:
    return "odd"


@server.tool(name="odd_name_here")
def other() -> str:
    return "other"


@server.tool()
def picture() -> Image:
    return Image(data=b"\x89PNG\r\n\x1a\n", format="png")


@server.tool()
def long() -> str:
    return "a" * 1000


@server.tool()
def environment(name: str) -> str:
    return os.environ.get(name, "unset")


@server.tool()
def fail() -> str:
    raise ValueError("sorry")


@server.tool()
def die() -> str:
    os._exit(3)


@server.tool()
async def hang(path: str = "") -> str:
    """Hang; say in files when it starts and when it is cancelled."""
    try:
        if path:
            _touch(path, "started")
        await asyncio.Event().wait()
    finally:
        if path:
            _touch(path, "cancelled")
    return ""


def _touch(folder: str, name: str) -> None:
    Path(folder, name).touch()


def serve_http() -> None:
    import uvicorn

    listening = socket.create_server(("127.0.0.1", 0))
    print(listening.getsockname()[1], flush=True)
    config = uvicorn.Config(server.streamable_http_app(), log_level="critical")
    uvicorn.Server(config).run(sockets=[listening])


if __name__ == "__main__":
    server.run("stdio") if sys.argv[1] == "stdio" else serve_http()
