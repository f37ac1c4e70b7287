"""Read a line from the standard input without holding up the loop or the program's end."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import suppress

__all__ = ["read_line"]


async def read_line() -> str | None:
    """Return the next line without its end, None at the end of the input or where there is none.

    Cancelled, it leaves a thread behind that waits for the next line and swallows it; that thread
    does not keep the program alive.
    """
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[None] = loop.create_future()
    text, failure = "", None

    def end() -> None:
        if not ended.done():
            ended.set_result(None)

    def read() -> None:
        nonlocal text, failure
        try:
            if sys.stdin is not None and not getattr(sys.stdin, "closed", False):
                text = sys.stdin.readline()
        except BaseException as error:  # noqa: BLE001 - it is raised in the loop
            failure = error
        with suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(end)

    # A thread of our own: a pool's would be waited for at the program's end.
    threading.Thread(target=read, name="read_line", daemon=True).start()
    await ended
    if failure is not None:
        raise failure
    return text.removesuffix("\n") if text else None
