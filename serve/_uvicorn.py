"""`Server.run`: a uvicorn server that opens its socket, handles signals and drains at its end."""

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

# When the runs have ended, connections must close within this time. Then those of clients that do
# not read are aborted.
CLOSE_SECONDS = 3
# When all runs are cancelled, the process must end within this time. Then it is killed.
EXIT_SECONDS = 15.0


def run_server(
    server: Server, host: str, port: int, drain: float, on_start: Callable[[str], None] | None
) -> None:
    """Serve until SIGINT or SIGTERM, then let the runs end for at most `drain` seconds.

    Then it cancels the runs that have not ended, and their streams end with an error. A second
    signal cancels them at once, and a third kills the process. The process is also killed if a run
    ignores its cancel for `EXIT_SECONDS`. Returns after SIGINT; after SIGTERM the process ends by
    that signal, like a process without a handler. `Server.run` describes `on_start` and the errors.
    """
    if not server.has_auth and not is_local(host):
        raise ConfigurationError(
            f"other machines can reach {host}, and this server has no auth: give auth= (a token),"
            " or bind to 127.0.0.1"
        )
    config = uvicorn.Config(
        server,
        host=host,
        port=port,
        log_level="warning",
        timeout_graceful_shutdown=CLOSE_SECONDS + 2,  # all connections are closed by then
        ws="none",
        server_header=False,
        lifespan="off",  # uvicorn would log an error there instead of raising it
    )
    # A SIGINT may arrive before uvicorn handles signals.
    with suppress(KeyboardInterrupt), _listen(host, port) as listening:

        def on_listening() -> None:
            if on_start is not None:
                name = f"[{host}]" if ":" in host else host
                on_start(f"http://{name}:{listening.getsockname()[1]}")

        running = _Uvicorn(config, server, drain, on_listening)
        try:
            running.run([listening])
        finally:
            running.hurry(None)


def _listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens; clients can connect from now on, and wait for their answers."""
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
    """Drains at the first signal, cancels the runs at the second, is killed by the third."""

    def __init__(
        self, config: uvicorn.Config, server: Server, drain: float, on_listening: Callable[[], None]
    ) -> None:
        super().__init__(config)
        self._server = server
        self._drain = drain
        # Seconds for tool calls to end, so that the journal has their results.
        self._grace = 0.0 if server.journal is None else server.journal.grace
        self._on_listening = on_listening
        self._signals = 0
        self._draining: asyncio.Task[None] | None = None
        self._last: threading.Timer | None = None

    async def serve(self, sockets: list[socket.socket] | None = None) -> None:
        """Serve, and handle signals until the end."""
        with super().capture_signals():
            async with self._server.running():
                self._on_listening()
                await super().serve(sockets)

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        """Do nothing: uvicorn's `serve` calls this, and the `serve` above has captured them."""
        yield

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal. It may interrupt any code of the main thread, so it defers the rest."""
        self._signals += 1
        if self._signals > 2:
            signal.signal(sig, signal.SIG_DFL)
            signal.raise_signal(sig)
        elif not self.started:
            super().handle_exit(sig, frame)
        else:
            timeout = self._drain if self._signals == 1 else 0
            self.hurry(timeout + self._grace + EXIT_SECONDS)
            loop = asyncio.get_running_loop()
            loop.call_soon_threadsafe(self._begin_to_drain, timeout, sig, frame)

    def hurry(self, seconds: float | None) -> None:
        """Kill this process after some seconds, whatever its loop does; None cancels that."""
        if self._last is not None:
            self._last.cancel()
        if seconds is not None:
            self._last = threading.Timer(seconds, _end)
            self._last.daemon = True
            self._last.start()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close all connections; abort those whose clients do not read."""

        def cut() -> None:
            for connection in [*self.server_state.connections]:
                connection.transport.abort()

        timer = asyncio.get_running_loop().call_later(CLOSE_SECONDS, cut)
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
    logger.error("a run ignores its cancel, so the process ends without waiting for it")
    for each in (sys.stdout, sys.stderr):
        each.flush()
    os._exit(1)
