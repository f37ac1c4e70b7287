"""The text of a web page, extracted in a process of its own."""

from __future__ import annotations

import asyncio
import sys
from importlib.util import find_spec
from pathlib import Path

from ..commander._errors import MissingExtra, ToolError
from ..commander._observe import outlast

__all__ = ["extract_text"]

MAIN = Path(__file__).with_name("_web_main.py")


async def extract_text(html: str, url: str, timeout: float) -> str:
    """Return the page's main text as Markdown, empty if it has none.

    Some pages take minutes: after `timeout` seconds it is a `ToolError`. Cancelled or late, the
    process is killed at once.
    """
    if find_spec("trafilatura") is None:
        raise MissingExtra("the web tools", "web")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-P", str(MAIN), url),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
    )
    try:
        async with asyncio.timeout(timeout):
            text, _ = await process.communicate(html.encode("utf-8", "replace"))
    except TimeoutError:
        raise ToolError(f"reading the page took more than {timeout:g} s") from None
    finally:
        if process.returncode is None:
            process.kill()
        await outlast(asyncio.ensure_future(process.wait()))
    if process.returncode:
        raise ToolError("the page cannot be read: it may be too large or malformed")
    return text.decode()
