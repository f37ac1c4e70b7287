"""A server in a thread that sends fixed bytes, so that only the client's work runs in the loop."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

__all__ = ["Answer", "ThreadedByteServer"]

Answer = tuple[bytes, bytes]
"""What is sent once, and what is sent after it for as long as somebody reads."""


class ThreadedByteServer:
    """A server that answers `/name` with `answers[name]`; `asked` are the request heads."""

    def __init__(self, answers: Mapping[str, Answer]) -> None:
        self.answers = answers
        self.asked: list[bytes] = []
        self.url = ""

    def __enter__(self) -> ThreadedByteServer:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._call(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        self._call(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _call(self, coroutine: Any) -> None:
        asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(30)

    async def _start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _stop(self) -> None:
        self._server.close()
        serving = asyncio.all_tasks() - {asyncio.current_task()}
        for task in serving:
            task.cancel()
        await asyncio.gather(*serving, return_exceptions=True)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            head = await reader.readuntil(b"\r\n\r\n")
            self.asked.append(head)
            name = head.split()[1].decode("latin-1").lstrip("/")
            once, forever = self.answers.get(name, (b"", b""))
            writer.write(once)
            await writer.drain()
            while forever:
                writer.write(forever)
                await writer.drain()
        writer.close()
        with suppress(OSError, asyncio.CancelledError):
            await writer.wait_closed()
