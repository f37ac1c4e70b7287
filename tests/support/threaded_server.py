"""Serve an application on a free loopback port in a separate thread, for tests in a browser."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import Any

import uvicorn

from support.waiting import wait_until

__all__ = ["ThreadedServer", "serve_in_thread"]


class ThreadedServer:
    """A server in a thread: its address, and calls into its loop."""

    def __init__(self, url: str, app: Any, loop: asyncio.AbstractEventLoop) -> None:
        self.url = url
        self.app = app
        self.server: Any = None
        self._loop = loop

    def do(self, what: Callable[[], Any]) -> Any:
        """Call a function in the server's loop; return its result, awaited if it is awaitable."""

        async def call() -> Any:
            given = what()
            return await given if isinstance(given, Awaitable) else given

        return asyncio.run_coroutine_threadsafe(call(), self._loop).result(20)

    def cut(self) -> None:
        """Abort all open connections."""

        def close() -> None:
            for connection in list(self.server.server_state.connections):
                connection.transport.abort()

        self.do(close)


@contextmanager
def serve_in_thread(app: Any) -> Generator[ThreadedServer]:
    """Serve an application until the block ends, then cancel unfinished requests."""
    listening = socket.create_server(("127.0.0.1", 0))
    url = f"http://127.0.0.1:{listening.getsockname()[1]}/"
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    loop = asyncio.new_event_loop()
    begun = threading.Event()

    async def run() -> None:
        serve = asyncio.create_task(server.serve(sockets=[listening]))
        await wait_until(lambda: server.started)
        begun.set()
        await serve

    def main() -> None:
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            runner.run(run())

    thread = threading.Thread(target=main, name="server")
    thread.start()
    try:
        assert begun.wait(20)
        served = ThreadedServer(url, app, loop)
        served.server = server
        yield served
    finally:
        server.should_exit = True
        thread.join(20)
        listening.close()
