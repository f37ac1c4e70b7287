"""Figures of tools: inline if the terminal supports that, and their paths otherwise.

Supported are kitty's graphics protocol and iTerm2's inline images, with PNG files that the terminal
decodes itself. Sixel is not: it needs decoded pixels, and no library for them is both typed and
free of queries to the terminal, whose replies would be taken for keys.
"""

from __future__ import annotations

import base64
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Literal

from ...handlers.legible import legible
from ...tools import ToolResult

__all__ = ["VARIABLE", "Protocol", "figures", "inline", "protocol"]

Protocol = Literal["kitty", "iterm2"]

VARIABLE = "ANABRANCH_IMAGES"
"""This environment variable overrides the detection: "kitty", "iterm2" or "none"."""

MAX_FIGURE_BYTES = 4_000_000
MAX_FIGURE_PIXELS = 50_000_000
_PIXELS_OF_COLUMN = 8  # at least, in any terminal; so figures are not enlarged
_CHUNK = 4096  # characters, kitty's limit

_PROGRAMS: Mapping[str, Protocol] = {
    "kitty": "kitty",
    "ghostty": "kitty",
    "iTerm.app": "iterm2",
    "WezTerm": "iterm2",
}


def protocol(environ: Mapping[str, str]) -> Protocol | None:
    """Return the image protocol of the terminal, None if none is certain.

    It is None inside of tmux and screen, which pass images on only sometimes, and draw over them.
    """
    match environ.get(VARIABLE):
        case "kitty" | "iterm2" as chosen:
            return chosen
        case "none":
            return None
        case _:
            pass
    term = environ.get("TERM", "")
    if "TMUX" in environ or "STY" in environ or term.startswith(("tmux", "screen", "dumb")):
        return None
    program = environ.get("TERM_PROGRAM") or environ.get("LC_TERMINAL")
    if program:  # the other variables may be inherited from another terminal
        return "iterm2" if program == "iTerm2" else _PROGRAMS.get(program)
    kitty = term in ("xterm-kitty", "xterm-ghostty") or "KITTY_WINDOW_ID" in environ
    return "kitty" if kitty else None


def inline(png: bytes, way: Protocol, columns: int, lines: int) -> str | None:
    """Return the sequence that shows a PNG at the cursor, in its size or smaller.

    The image takes at most so many columns, and lines if a character is twice as high as wide.
    Returns None for a file that is too large or not a PNG. The terminal does not reply.
    """
    size = _size(png)
    if size is None or columns < 1 or lines < 1:
        return None
    width, height = size
    fits = min(columns, width // _PIXELS_OF_COLUMN, lines * 2 * width // height)
    data, fits = base64.b64encode(png).decode(), max(fits, 1)
    if way == "iterm2":
        head = f"inline=1;size={len(png)};width={fits};preserveAspectRatio=1"
        return f"\x1b]1337;File={head}:{data}\x07"
    chunks = [data[at : at + _CHUNK] for at in range(0, len(data), _CHUNK)]
    heads = [f"a=T,f=100,q=2,c={fits},", *[""] * (len(chunks) - 1)]
    more = [1] * (len(chunks) - 1) + [0]
    return "".join(
        f"\x1b_G{head}m={left};{chunk}\x1b\\"
        for head, left, chunk in zip(heads, more, chunks, strict=True)
    )


def figures(
    result: ToolResult, way: Protocol | None, columns: int = 80, lines: int = 20
) -> Iterator[str]:
    """Yield the lines and the images that show the figures of a call, without line ends.

    The path of a file is shown even if the file cannot be read. Images that were not saved are
    shown by the protocol `way`, or counted.
    """
    for path in result.files:
        png = _read(path) if way else None
        if way and png and (image := inline(png, way, columns, lines)):
            yield image
        yield f"saved: {legible(path).replace(chr(10), chr(0xFFFD))}"
    unseen = 0
    for part in () if result.files else result.parts:
        small = part.media_type == "image/png" and (part.size or 0) <= MAX_FIGURE_BYTES
        png = part.data if way and small else None
        image = inline(png, way, columns, lines) if way and png else None
        if image:
            yield image
        unseen += image is None and part.kind == "image"
    if unseen:
        yield f"({unseen} image{'s' if unseen > 1 else ''}, not saved)"


def _size(png: bytes) -> tuple[int, int] | None:
    """Return the size of a PNG in pixels, None for another file and for a too large image."""
    if len(png) > MAX_FIGURE_BYTES or png[:8] != b"\x89PNG\r\n\x1a\n" or png[12:16] != b"IHDR":
        return None
    width, height = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
    return (width, height) if 0 < width * height <= MAX_FIGURE_PIXELS else None


def _read(path: str) -> bytes | None:
    """Return the content of a file, None if it is too large or cannot be read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))  # a pipe would block
        with os.fdopen(descriptor, "rb") as file:
            regular = stat.S_ISREG(os.fstat(descriptor).st_mode)
            found = file.read(MAX_FIGURE_BYTES + 1) if regular else b""
    except (OSError, ValueError):
        return None
    return found if len(found) <= MAX_FIGURE_BYTES else None
