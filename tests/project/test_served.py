"""The servers of the tests close all connections, at whatever moment they end."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import Callable
from urllib.parse import urlsplit

import pytest
from support.byte_server import ByteServer
from support.scripted_server import ScriptedServer, text
from support.waiting import run_turns
from support.web_server import WebServer

Server = ByteServer | ScriptedServer | WebServer
SERVERS: dict[str, Callable[[], Server]] = {
    "raw": lambda: ByteServer(lambda _: []),
    "scripted": lambda: ScriptedServer(text("a")),
    "web": WebServer,
}


@pytest.mark.parametrize("name", SERVERS)
@pytest.mark.parametrize("moment", range(10))
def test_a_server_that_ends_while_somebody_connects_closes_the_connection(name: str, moment: int):
    """Otherwise the leaked connection would fail a later test."""

    async def connect_and_end() -> None:
        async with SERVERS[name]() as server:
            address = urlsplit(server.url)
            client.setblocking(False)
            client.connect_ex((address.hostname, address.port))
            await run_turns(moment)

    with socket.socket() as client:
        asyncio.run(connect_and_end())
    gc.collect()
