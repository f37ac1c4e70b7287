"""A server by itself, on uvicorn: which addresses it binds to, and how it ends."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import signal
import socket
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from ..commander.errors import ConfigurationError
from ._local import is_local

if TYPE_CHECKING:
    from ._app import Server

__all__ = ["run_server"]

# Seconds that connections get to close after the runs have ended.
LAST = 3


def run_server(
    server: Server, host: str, port: int, drain: float, on_start: Callable[[str], None] | None
) -> None:
    """Serve until SIGINT or SIGTERM, then let what runs end for `drain` seconds at most.

    What still runs then is cancelled, and its streams end with their wire's own error. A second
    signal cancels it at once, a third kills this process. Returns after SIGINT; after SIGTERM the
    process ends by that signal, as if it had not been handled. `on_start` is told the address once
    clients can connect. Raises `ConfigurationError` for an address beyond this machine where
    anybody may ask, and `OSError` if it cannot be had.
    """
    if not server.has_auth and not is_local(host):
        raise ConfigurationError(
            f"{host} can be reached from other machines, and anybody may ask: give auth= (a token),"
            " or bind to 127.0.0.1"
        )
    config = uvicorn.Config(
        server,
        host=host,
        port=port,
        log_level="warning",
        timeout_graceful_shutdown=LAST,
        ws="none",
        server_header=False,
    )
    # Also one that comes before uvicorn hears of it.
    with suppress(KeyboardInterrupt), _listen(host, port) as listening:
        if on_start is not None:
            name = f"[{host}]" if ":" in host else host
            on_start(f"http://{name}:{listening.getsockname()[1]}")
        _Uvicorn(config, server, drain).run([listening])


def _listen(host: str, port: int) -> socket.socket:
    """Listen at an address; clients wait from now on until they are answered."""
    name = host.strip("[]").lower()
    with suppress(ValueError):  # an IPv4 address in an IPv6 one
        name = str(getattr(ipaddress.ip_address(name), "ipv4_mapped", None) or name)
    try:
        family, _, _, _, address = socket.getaddrinfo(name, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except OSError as error:
        why = error.strerror
        if error.errno is not None and not isinstance(error, socket.gaierror):
            why = os.strerror(error.errno)
        raise OSError(f"cannot serve at {host}, port {port}: {why}") from error


class _Uvicorn(uvicorn.Server):
    """At the first signal it drains, at the second it cancels what runs, at the third it dies."""

    def __init__(self, config: uvicorn.Config, server: Server, drain: float) -> None:
        super().__init__(config)
        self._server = server
        self._drain = drain
        self._signals = 0
        self._draining: asyncio.Task[None] | None = None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal; called by Python between two steps."""
        self._signals += 1
        if self._signals > 2:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        elif not self.started:
            super().handle_exit(sig, frame)
        else:
            timeout = self._drain if self._signals == 1 else 0
            loop = asyncio.get_running_loop()
            loop.call_soon_threadsafe(self._begin_to_drain, timeout, sig, frame)

    def _begin_to_drain(self, timeout: float, sig: int, frame: FrameType | None) -> None:
        async def drain() -> None:
            if not self.should_exit:
                await self._server.runs.drain(timeout)
            uvicorn.Server.handle_exit(self, sig, frame)

        if self._draining is not None:
            self._draining.cancel()
        self._draining = asyncio.ensure_future(drain())
