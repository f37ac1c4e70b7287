"""A server by itself, on uvicorn: which addresses it binds to, and how it ends."""

from __future__ import annotations

import asyncio
import ipaddress
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from ..commander.errors import ConfigurationError

if TYPE_CHECKING:
    from ._app import Server

__all__ = ["run_server"]

# Seconds that connections get to close after the runs have ended.
LAST = 3


def run_server(server: Server, host: str, port: int, drain: float) -> None:
    """Serve until SIGINT or SIGTERM, then let what runs end for `drain` seconds at most.

    What still runs then is cancelled, and its streams end with their wire's own error. A second
    signal ends all at once. Raises `ConfigurationError` for an address beyond this machine where
    anybody may ask, and `OSError` if it cannot be had.
    """
    if not server.has_auth and not _is_loopback(host):
        raise ConfigurationError(
            f"{host} can be reached from other machines, and anybody may ask: give auth= (a token),"
            " or bind to 127.0.0.1"
        )
    config = uvicorn.Config(
        server, host=host, port=port, log_level="warning", timeout_graceful_shutdown=LAST
    )
    _Uvicorn(config, server, drain).run()


def _is_loopback(host: str) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


class _Uvicorn(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, server: Server, drain: float) -> None:
        super().__init__(config)
        self._server = server
        self._drain = drain
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Drain at the first signal, end at the second; called by Python between two steps."""
        if self._draining is None and self.started:
            asyncio.get_running_loop().call_soon_threadsafe(self._begin_to_drain, sig, frame)
        else:
            super().handle_exit(sig, frame)

    def _begin_to_drain(self, sig: int, frame: FrameType | None) -> None:
        async def drain() -> None:
            await self._server.runs.drain(self._drain)
            uvicorn.Server.handle_exit(self, sig, frame)

        self._draining = asyncio.ensure_future(drain())
