"""The guard that keeps tests off the network."""

from __future__ import annotations

import asyncio
import socket

import pytest


def test_a_connection_beyond_loopback_is_refused() -> None:
    """Before a packet is sent, with a message that says what to do."""
    with socket.socket() as made, pytest.raises(Exception, match="only this machine"):
        made.connect(("192.0.2.1", 80))
    with pytest.raises(Exception, match="only this machine"):
        socket.getaddrinfo("example.com", 80)
    with (
        socket.socket(type=socket.SOCK_DGRAM) as made,
        pytest.raises(Exception, match="only this machine"),
    ):
        made.sendto(b"", ("192.0.2.1", 53))


async def test_the_event_loop_is_guarded_too() -> None:
    """asyncio opens connections itself and resolves names in threads."""
    for host in "192.0.2.1", "example.com":
        with pytest.raises(Exception, match="only this machine"):
            await asyncio.open_connection(host, 80)


async def test_loopback_is_open() -> None:
    """Servers of the tests can be reached."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await reader.read() == b""
        writer.close()
        await writer.wait_closed()
