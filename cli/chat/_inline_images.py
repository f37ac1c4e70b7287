"""Show the figures of tools: inline if the terminal supports images, otherwise by their paths.

Supports kitty's graphics protocol and iTerm2's inline images, with PNG files that the terminal
decodes. Sixel is not supported, since the libraries that decode pixels for it are untyped or query
the terminal, and the replies would be read as keys.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator, Mapping
from typing import Literal

from ...handlers.legible import legible
from ...tools import ToolResult
from ._attach import read_regular

__all__ = ["PROTOCOL_VARIABLE", "Protocol", "encode_image", "figure_lines", "find_protocol"]

Protocol = Literal["kitty", "iterm2"]

PROTOCOL_VARIABLE = "ANABRANCH_IMAGES"
"""This environment variable overrides the detection: "kitty", "iterm2" or "none"."""

MAX_FIGURE_BYTES = 4_000_000
MAX_FIGURE_PIXELS = 50_000_000
_PIXELS_OF_COLUMN = 8  # the smallest in any terminal, so that figures are not enlarged
_KITTY_CHUNK_CHARS = 4096  # kitty's limit

_PROGRAMS: Mapping[str, Protocol] = {
    "kitty": "kitty",
    "ghostty": "kitty",
    "iTerm.app": "iterm2",
    "WezTerm": "iterm2",
}


def find_protocol(environ: Mapping[str, str]) -> Protocol | None:
    """Return the image protocol of the terminal, None if it is unknown.

    Inside tmux and screen it is None, since these do not always forward images and draw over them.
    """
    match environ.get(PROTOCOL_VARIABLE):
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


def encode_image(png: bytes, way: Protocol, columns: int, lines: int) -> str | None:
    """Return the sequence that shows a PNG at the cursor, in its own size or smaller.

    The image fits the columns and lines, if a character is twice as high as wide. The sequence
    tells the terminal not to reply. Returns None for a file that is too large or not a PNG.
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
    chunks = [data[at : at + _KITTY_CHUNK_CHARS] for at in range(0, len(data), _KITTY_CHUNK_CHARS)]
    heads = [f"a=T,f=100,q=2,c={fits},", *[""] * (len(chunks) - 1)]
    more = [1] * (len(chunks) - 1) + [0]
    return "".join(
        f"\x1b_G{head}m={left};{chunk}\x1b\\"
        for head, left, chunk in zip(heads, more, chunks, strict=True)
    )


def figure_lines(
    result: ToolResult, way: Protocol | None, columns: int = 80, lines: int = 20
) -> Iterator[str]:
    """Yield the lines and images for the figures of a call, without line ends.

    The path of a file is shown even if the file cannot be read. Images without a file are shown
    through the protocol `way`; those that cannot be shown are counted.
    """
    for path in result.files:
        png = _read(path) if way else None
        if way and png and (image := encode_image(png, way, columns, lines)):
            yield image
        yield f"saved: {legible(path).replace(chr(10), chr(0xFFFD))}"
    unseen = 0
    for part in () if result.files else result.parts:
        small = part.media_type == "image/png" and (part.size or 0) <= MAX_FIGURE_BYTES
        png = part.data if way and small else None
        image = encode_image(png, way, columns, lines) if way and png else None
        if image:
            yield image
        unseen += image is None and part.kind == "image"
    if unseen:
        yield f"({unseen} image{'s' if unseen > 1 else ''}, not saved)"


def _size(png: bytes) -> tuple[int, int] | None:
    """Return the size of a PNG in pixels, None if it is too large or not a PNG."""
    if len(png) > MAX_FIGURE_BYTES or png[:8] != b"\x89PNG\r\n\x1a\n" or png[12:16] != b"IHDR":
        return None
    width, height = int.from_bytes(png[16:20], "big"), int.from_bytes(png[20:24], "big")
    return (width, height) if 0 < width * height <= MAX_FIGURE_PIXELS else None


def _read(path: str) -> bytes | None:
    """Return the content of a file, None if it is too large or cannot be read."""
    try:
        found = read_regular(path, MAX_FIGURE_BYTES)
    except (OSError, ValueError):
        return None
    return found if found is not None and len(found) <= MAX_FIGURE_BYTES else None
