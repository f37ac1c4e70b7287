"""A server by itself, on uvicorn: which addresses it binds to, and how it ends."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from types import FrameType
from typing import TYPE_CHECKING

import uvicorn

from ..commander.errors import ConfigurationError
from ._auth import is_local

if TYPE_CHECKING:
    from ._app import Server

__all__ = ["run_server"]

logger = logging.getLogger("anabranch.serve")

# Seconds that connections get to close after the runs have ended; then those are cut that do not
# read what they are sent.
LAST = 3
# Seconds after which a process is ended that does not end, when all was cancelled.
PATIENCE = 15.0


def run_server(
    server: Server, host: str, port: int, drain: float, on_start: Callable[[str], None] | None
) -> None:
    """Serve until SIGINT or SIGTERM, then let what runs end for `drain` seconds at most.

    What still runs then is cancelled, and its streams end with their wire's own error. A second
    signal cancels it at once, a third kills this process; so does what still goes on some time
    after it was cancelled. Returns after SIGINT; after SIGTERM the process ends by that signal, as
    if it had not been handled. `on_start` is told the address once
    clients can connect. Raises `ConfigurationError` for an address beyond this machine where
    anybody may ask, `JournalError` for a journal that cannot be opened, and `OSError` for an
    address that cannot be had.
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
        timeout_graceful_shutdown=LAST + 2,  # nobody is left by then
        ws="none",
        server_header=False,
        lifespan="off",  # what goes wrong there would be a traceback, and no error
    )
    # Also one that comes before uvicorn hears of it.
    with suppress(KeyboardInterrupt), _listen(host, port) as listening:

        def began() -> None:
            if on_start is not None:
                name = f"[{host}]" if ":" in host else host
                on_start(f"http://{name}:{listening.getsockname()[1]}")

        running = _Uvicorn(config, server, drain, began)
        try:
            running.run([listening])
        finally:
            running.hurry(None)


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

    def __init__(
        self, config: uvicorn.Config, server: Server, drain: float, began: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._server = server
        self._drain = drain
        # How long calls of tools get to end that are under way, where that is kept.
        self._grace = 0.0 if server.journal is None else server.journal.grace
        self._began = began
        self._signals = 0
        self._draining: asyncio.Task[None] | None = None
        self._last: threading.Timer | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve; signals are heard until all has ended."""
        with super().capture_signals():
            async with self._server.running():
                self._began()
                await super().serve(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Do nothing: uvicorn's own `serve` calls this, and ours has captured them before."""
        yield

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
            self.hurry(timeout + self._grace + PATIENCE)
            loop = asyncio.get_running_loop()
            loop.call_soon_threadsafe(self._begin_to_drain, timeout, sig, frame)

    def hurry(self, seconds: float | None) -> None:
        """End this process after some time, whatever its loop does; None: let it go on."""
        if self._last is not None:
            self._last.cancel()
        if seconds is not None:
            self._last = threading.Timer(seconds, _end)
            self._last.daemon = True
            self._last.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close all connections; those cut by force whose clients do not read."""

        def cut() -> None:
            for connection in [*self.server_state.connections]:
                connection.transport.abort()

        timer = asyncio.get_running_loop().call_later(LAST, cut)
        try:
            await super().shutdown(sockets)
        finally:
            timer.cancel()

    def _begin_to_drain(self, timeout: float, sig: int, frame: FrameType | None) -> None:
        async def drain() -> None:
            if not self.should_exit:
                await self._server.runs.drain(timeout, self._grace)
            uvicorn.Server.handle_exit(self, sig, frame)

        if self._draining is not None:
            self._draining.cancel()
        self._draining = asyncio.ensure_future(drain())


def _end() -> None:
    logger.error("something goes on though it was cancelled: the process ends without it")
    for each in (sys.stdout, sys.stderr):
        each.flush()
    os._exit(1)
