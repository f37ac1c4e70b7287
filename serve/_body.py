"""Reading the body of a request, of whatever size and shape: what comes out is sound JSON.

It is bounded in bytes, in values, in depth and in the time it takes; every number in it is finite,
and every text can be sent on.
"""

from __future__ import annotations

import asyncio
import math
import re
from typing import TYPE_CHECKING, Any, cast

from pydantic_core import from_json
from starlette.requests import Request

from ._http import Refusal

if TYPE_CHECKING:
    from ._app import Server

__all__ = ["read_body"]

# Seconds in which a body has to come.
PATIENCE = 60.0
# How many lists and objects may stand in one another.
DEPTH = 100
_TOO_DEEP = f"the body has more than {DEPTH} levels"
# How many JSON values a request may have, and how many more for each message that it may have. The
# JSON reader holds the event loop until it is done: 10 MB of empty lists would take half a second.
MAX_VALUES = 100_000
VALUES_PER_MESSAGE = 10
# Lists and objects whose depth is found without a turn of the event loop between.
SLICE = 1000
# Digits that a number may have in a row.
DIGITS = 1000
_TO_ZERO = bytes.maketrans(b"123456789", b"0" * 9)
_LONG = b"0" * (DIGITS + 1)
# An escaped character, which may be a pair of halves, or a half without the other.
_ESCAPE = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
_PICKED = frozenset({dict, list, float})
# What of a request is not read stays in the connection, so that ends.
CLOSE = {"Connection": "close"}


async def read_body(server: Server, request: Request) -> dict[str, Any]:
    """Read a JSON object; refuse what is none, or too large, before it is kept."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, "a request is application/json")
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        text = f"this server does not read bodies with Content-Encoding {coding!r:.100}"
        raise Refusal(415, text, headers={**CLOSE, "Accept-Encoding": "identity"})
    body = bytearray()
    try:
        async with asyncio.timeout(PATIENCE):
            async for piece in request.stream():
                body += piece
                if len(body) > server.max_body:
                    what = f"a request has at most {server.max_body} bytes"
                    raise Refusal(413, what, headers=CLOSE)
    except TimeoutError:
        raise Refusal(408, "the request came too slowly", headers=CLOSE) from None
    most = MAX_VALUES + VALUES_PER_MESSAGE * server.max_messages
    whole = bytes(body)
    if await _has_more_values(whole, most):
        what = f"a request has at most {server.max_messages} messages and {most} JSON values"
        raise Refusal(413, what)
    return await _parse(whole)


async def _has_more_values(body: bytes, most: int) -> bool:
    """Whether JSON text has more values than `most`; an empty list or object counts twice.

    Each step is one pass over the text. Other tasks run between the slow ones.
    """
    marks = (b",", b"[", b"{")
    if sum(map(body.count, marks)) <= most:
        return False
    # The marks inside strings do not count.
    outside = await _outside_strings(body, 4 * most)  # two quotes for a name and two for its value
    return outside is None or sum(map(outside.count, marks)) > most


async def _outside_strings(body: bytes, most: int) -> bytes | None:
    """Return JSON text without its strings; None if there are more than `most` quotes."""
    await asyncio.sleep(0)
    body = body.replace(b"\\\\", b"")  # what is escaped goes first, and then the strings
    await asyncio.sleep(0)
    body = body.replace(b'\\"', b"")
    if body.count(b'"') > most:
        return None
    await asyncio.sleep(0)
    return b"".join(body.split(b'"')[::2])


async def _has_long_numbers(body: bytes) -> bool:
    """Say whether JSON text has a number of more digits in a row than `DIGITS`.

    The time to read a number grows with the square of its length.
    """
    await asyncio.sleep(0)
    if _LONG not in body.translate(_TO_ZERO):
        return False
    outside = await _outside_strings(body, len(body))
    return outside is not None and _LONG in outside.translate(_TO_ZERO)


async def _parse(body: bytes) -> dict[str, Any]:
    if await _has_long_numbers(body):
        raise Refusal(400, f"a number has at most {DIGITS} digits in a row")
    await asyncio.sleep(0)
    try:
        found = _read(body)
    except ValueError:
        if b"\\ud" not in body and b"\\uD" not in body:
            raise Refusal(400, "the body is no JSON") from None
        # It refuses half a character, which some clients cut a text at.
        body = await _without_halves(body)
        await asyncio.sleep(0)
        try:
            found = _read(body)
        except ValueError:
            raise Refusal(400, "the body is no JSON") from None
    await asyncio.sleep(0)
    depth = await _depth(found)
    if not isinstance(found, dict):
        raise Refusal(400, "the body is no JSON object")
    if depth > DEPTH:
        raise Refusal(400, _TOO_DEEP)
    return cast("dict[str, Any]", found)


def _read(body: bytes) -> Any:
    try:
        return from_json(body, allow_inf_nan=False)  # holds the loop far shorter than `json`
    except ValueError as error:
        if "recursion limit" in str(error):  # of 200 levels
            raise Refusal(400, _TOO_DEEP) from None
        raise


async def _without_halves(body: bytes) -> bytes:
    """Put U+FFFD for each escaped half of a character that is alone."""
    clean, end = bytearray(), 0
    for count, escape in enumerate(_ESCAPE.finditer(body)):
        if count % SLICE == 0:
            await asyncio.sleep(0)
        if escape.lastgroup == "half":
            clean += body[end : escape.start()] + b"\\ufffd"
            end = escape.end()
    return bytes(clean + body[end:])


async def _depth(found: object) -> int:
    """Return how many lists and objects stand in one another; refuse an infinite number."""
    depth, level = -1, [cast("Any", [found])]
    while level:
        if len(level) > SLICE:
            await asyncio.sleep(0)
        picked = [
            each
            for values in level
            for each in (values.values() if values.__class__ is dict else values)
            if each.__class__ in _PICKED
        ]
        level = [each for each in picked if each.__class__ is not float]
        if len(level) < len(picked) and (math.inf in picked or -math.inf in picked):
            raise Refusal(400, "the body is no JSON")  # such as 1e999
        depth += 1
    return depth
