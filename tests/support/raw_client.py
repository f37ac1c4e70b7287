"""Serve an application with a real uvicorn in the test's loop, and connect with raw sockets."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn

from support.waiting import wait_until

__all__ = ["RawConnection", "chat_request", "http_request", "on_uvicorn"]


@asynccontextmanager
async def on_uvicorn(app: Any, **options: Any) -> AsyncGenerator[int]:
    """Serve for the block and give the port; close open connections at the end."""
    listening = socket.create_server(("127.0.0.1", 0), backlog=1000)
    settings: dict[str, Any] = {
        "log_config": None,
        "log_level": "warning",
        "timeout_graceful_shutdown": 5,
    }
    config = uvicorn.Config(app, **{**settings, **options})
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign]
    serving = asyncio.ensure_future(server.serve([listening]))
    try:
        await wait_until(lambda: server.started or serving.done())
        yield listening.getsockname()[1]
    finally:
        server.should_exit = True
        await serving


def http_request(path: str, body: Any = None) -> bytes:
    """Return the bytes of a GET request, or with a body of a POST request."""
    content = b"" if body is None else json.dumps(body).encode()
    method = "GET" if body is None else "POST"
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(content)}\r\n\r\n".encode() + content


def chat_request(text: str = "hi", *, model: str = "writer", stream: bool = True) -> bytes:
    """Return the bytes of a chat-completions request."""
    said = [{"role": "user", "content": text}]
    return http_request(
        "/v1/chat/completions", {"model": model, "messages": said, "stream": stream}
    )


class RawConnection:
    """A raw connection, whose responses the caller parses line by line."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @classmethod
    async def connect(cls, port: int, sent: bytes, *, buffer: int | None = None) -> RawConnection:
        """Connect and send; `buffer` is the size of the receive buffer in bytes."""
        sock = socket.socket()
        if buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        sock.setblocking(False)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", port))
        limit = 2**16 if buffer is None else buffer
        self = cls(*await asyncio.open_connection(sock=sock, limit=limit))
        self.writer.write(sent)
        await self.writer.drain()
        return self

    async def head(self) -> bytes:
        """Read the head of the response."""
        return await self.reader.readuntil(b"\r\n\r\n")

    async def data(self) -> Any:
        """Return the next event's data; None at the end of the stream."""
        while line := await self.reader.readline():
            if line.startswith(b"data: "):
                said = line[6:].strip()
                return "[DONE]" if said == b"[DONE]" else json.loads(said)
        return None

    async def rest(self) -> bytes:
        """Return all bytes until the end of the connection."""
        return await self.reader.read()

    async def close(self) -> None:
        """Close the connection normally."""
        self.writer.close()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    async def reset(self) -> None:
        """Close the connection with a reset, which refuses the server's next packet."""
        sock: Any = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        self.writer.transport.abort()
        with contextlib.suppress(ConnectionError):
            await self.writer.wait_closed()

    def half_close(self) -> None:
        """Close the sending direction; reading still works."""
        self.writer.write_eof()
