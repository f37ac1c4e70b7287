"""What a web page says, read in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any, Literal

from anyio import CapacityLimiter
from anyio.lowlevel import RunVar

from ..commander.errors import MissingExtra, ToolError
from ..commander.process import end_process, start_process
from ._web_fetch import Fetched

__all__ = ["read_page"]

FRONT = 10_000  # characters that an article may have more than its page: its address, its title
MAIN = Path(__file__).with_name("_web_main.py")
# How many pages of one loop's are read at once: each may take `_web_main.MEMORY`.
AT_ONCE = max(4, os.cpu_count() or 1)
_places: RunVar[CapacityLimiter] = RunVar("pages_read_at_once")


async def read_page(
    page: Fetched, wanted: Literal["text", "article", "hits"], timeout: float, **options: Any
) -> Any:
    """Return what `_web_main` finds in the page.

    Decoding and parsing happen there, because some pages take minutes or all memory: after
    `timeout` seconds it is a `ToolError`. Cancelled or late, the process is killed at once. A page
    that comes when many are being read waits for its turn, within its time.
    """
    request = {"wanted": wanted, "url": page.url, "codec": page.codec, "seconds": timeout}
    head = json.dumps(request | {"most": len(page.body) + FRONT} | options).encode() + b"\n"
    try:
        places = _places.get()
    except LookupError:
        _places.set(places := CapacityLimiter(AT_ONCE))
    try:
        async with asyncio.timeout(timeout), places:
            process = await start_process(
                *(sys.executable, "-P", str(MAIN)),
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                answer = json.loads((await process.communicate(head + page.body))[0])
            finally:
                await end_process(process)
    except TimeoutError:
        raise ToolError(f"reading the page took more than {timeout:g} s") from None
    except (OSError, ValueError):
        raise ToolError("the page cannot be read: it may be too large or malformed") from None
    if "missing" in answer:
        raise MissingExtra("the web tools", "web") from ImportError(answer["missing"])
    return answer["found"]
