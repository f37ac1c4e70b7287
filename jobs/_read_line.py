"""Read a line from the standard input without holding up the loop or the program's end."""

from __future__ import annotations

import asyncio
import sys
import threading

__all__ = ["read_line"]


async def read_line() -> str | None:
    """Return the next line without its end, None at the end of the input.

    Cancelled, it leaves a thread behind that waits for the next line and swallows it; that thread
    does not keep the program alive.
    """
    loop = asyncio.get_running_loop()
    line: asyncio.Future[str] = loop.create_future()

    def settle(text: str | BaseException) -> None:
        if line.done():
            return
        if isinstance(text, BaseException):
            line.set_exception(text)
        else:
            line.set_result(text)

    def read() -> None:
        try:
            text: str | BaseException = sys.stdin.readline()
        except (OSError, ValueError) as error:  # closed, or not text
            text = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(settle, text)

    # A thread of our own: a pool's would be waited for at the program's end.
    threading.Thread(target=read, name="read_line", daemon=True).start()
    text = await line
    return text.rstrip("\n") if text else None
