"""Read the body of a request, of any size and shape, as JSON that the server can use safely.

Bytes, number of values, depth and reading time are bounded. All numbers are finite, and all texts
can be encoded.
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

# A body must arrive within this time.
BODY_SECONDS = 60.0
# The most levels of nested lists and objects.
MAX_LEVELS = 100
NOT_JSON = "the body must be valid JSON"
_TOO_DEEP = f"the body must have at most {MAX_LEVELS} levels"
# The most JSON values of a request: `MAX_VALUES`, and some for each message that it may have. The
# JSON reader blocks the event loop: 10 MB of empty lists would take half a second.
MAX_VALUES = 100_000
VALUES_PER_MESSAGE = 10
# Larger levels are searched after other tasks have run.
VALUES_PER_STEP = 1000
# The most digits of a number in a row.
MAX_DIGITS = 1000
_TO_ZERO = bytes.maketrans(b"123456789", b"0" * 9)
_TOO_MANY_DIGITS = b"0" * (MAX_DIGITS + 1)
# An escaped character: a pair of surrogates, one without the other (`half`), or any other.
_ESCAPED_CHARACTER = re.compile(
    rb"\\(?:u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}"
    rb"|(?P<half>u[dD][89a-fA-F][0-9a-fA-F]{2})|.)",
    re.DOTALL,
)
_CHECKED_TYPES = frozenset({dict, list, float})
# After an unread body the connection cannot carry another request.
CLOSE_HEADERS = {"Connection": "close"}


async def read_body(server: Server, request: Request) -> dict[str, Any]:
    """Read a JSON object; refuse other and too large bodies.

    Raises `Refusal`. It stops reading at `max_body` bytes, and counts the values before it parses.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise Refusal(415, "the Content-Type must be application/json")
    coding = request.headers.get("content-encoding", "").strip().lower()
    if coding not in ("", "identity"):
        text = f"the Content-Encoding must be identity, not {coding!r:.100}"
        raise Refusal(415, text, headers={**CLOSE_HEADERS, "Accept-Encoding": "identity"})
    body = bytearray()
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for piece in request.stream():
                body += piece
                if len(body) > server.max_body:
                    text = f"a request must have at most {server.max_body} bytes"
                    raise Refusal(413, text, headers=CLOSE_HEADERS)
    except TimeoutError:
        text = f"a request must arrive within {BODY_SECONDS:.0f} seconds"
        raise Refusal(408, text, headers=CLOSE_HEADERS) from None
    most = MAX_VALUES + VALUES_PER_MESSAGE * server.max_messages
    complete = bytes(body)
    if await _has_more_values(complete, most):
        text = f"a request must have at most {server.max_messages} messages and {most} JSON values"
        raise Refusal(413, text)
    return await _parse(complete)


async def _has_more_values(body: bytes, most: int) -> bool:
    """Return whether JSON text has more values than `most`; empty lists and objects count twice.

    Each step is one pass over the text. Other tasks run between slow steps.
    """
    marks = (b",", b"[", b"{")
    if sum(map(body.count, marks)) <= most:
        return False
    # Marks inside strings do not count.
    outside = await _outside_strings(body, 4 * most)  # two quotes for a name and two for its value
    return outside is None or sum(map(outside.count, marks)) > most


async def _outside_strings(body: bytes, most: int) -> bytes | None:
    """Return JSON text without its strings; None if there are more than `most` quotes."""
    await asyncio.sleep(0)
    # First escaped backslashes, then escaped quotes: the quotes that are left delimit strings.
    body = body.replace(b"\\\\", b"")
    await asyncio.sleep(0)
    body = body.replace(b'\\"', b"")
    if body.count(b'"') > most:
        return None
    await asyncio.sleep(0)
    return b"".join(body.split(b'"')[::2])


async def _has_long_numbers(body: bytes) -> bool:
    """Return whether JSON text has a number of more digits in a row than `MAX_DIGITS`.

    The time to read a number grows with the square of its length.
    """
    await asyncio.sleep(0)
    if _TOO_MANY_DIGITS not in body.translate(_TO_ZERO):
        return False
    outside = await _outside_strings(body, len(body))
    return outside is not None and _TOO_MANY_DIGITS in outside.translate(_TO_ZERO)


async def _parse(body: bytes) -> dict[str, Any]:
    if await _has_long_numbers(body):
        raise Refusal(400, f"a number must have at most {MAX_DIGITS} digits in a row")
    await asyncio.sleep(0)
    try:
        found = _read(body)
    except ValueError:
        if b"\\ud" not in body and b"\\uD" not in body:
            raise Refusal(400, NOT_JSON) from None
        # The reader refuses single surrogates. Some clients cut a text within a pair.
        body = await _without_halves(body)
        await asyncio.sleep(0)
        try:
            found = _read(body)
        except ValueError:
            raise Refusal(400, NOT_JSON) from None
    await asyncio.sleep(0)
    levels = await _count_levels(found)
    if not isinstance(found, dict):
        raise Refusal(400, "the body must be a JSON object")
    if levels > MAX_LEVELS:
        raise Refusal(400, _TOO_DEEP)
    return cast("dict[str, Any]", found)


def _read(body: bytes) -> Any:
    try:
        return from_json(body, allow_inf_nan=False)  # blocks the loop far shorter than `json`
    except ValueError as error:
        if "recursion limit" in str(error):  # its limit is 200 levels
            raise Refusal(400, _TOO_DEEP) from None
        raise


async def _without_halves(body: bytes) -> bytes:
    """Replace each escaped surrogate without its partner by U+FFFD."""
    clean, end = bytearray(), 0
    for count, escape in enumerate(_ESCAPED_CHARACTER.finditer(body)):
        if count % VALUES_PER_STEP == 0:
            await asyncio.sleep(0)
        if escape.lastgroup == "half":
            clean += body[end : escape.start()] + b"\\ufffd"
            end = escape.end()
    return bytes(clean + body[end:])


async def _count_levels(found: object) -> int:
    """Return the number of levels of nested lists and objects; refuse infinite numbers."""
    levels, level = -1, [cast("Any", [found])]
    while level:
        if len(level) > VALUES_PER_STEP:
            await asyncio.sleep(0)
        checked = [
            each
            for values in level
            for each in (values.values() if values.__class__ is dict else values)
            if each.__class__ in _CHECKED_TYPES
        ]
        level = [each for each in checked if each.__class__ is not float]
        if len(level) < len(checked) and (math.inf in checked or -math.inf in checked):
            raise Refusal(400, NOT_JSON)  # such as 1e999
        levels += 1
    return levels
