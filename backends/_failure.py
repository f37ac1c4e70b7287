"""What went wrong on the wire: a refusal, or what a library says, becomes a backend error."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any, NoReturn, cast
from urllib.parse import urlsplit

from ..commander.errors import (
    BackendError,
    BackendUnavailable,
    BadResponse,
    ContextTooLong,
    RateLimited,
)
from ..messages import error_from_wire
from ._address import CHAT, EMBEDDINGS, hide_secrets
from ._sse import BOM

__all__ = [
    "LONGEST",
    "any_reply",
    "failure_from_library",
    "failure_from_response",
    "has_reply",
    "refuse",
    "whole_body",
]

LONGEST = 8 * 2**20  # bytes that a server may send without a delta, and of a reply in one piece
_LONGEST_REFUSAL = 65_536  # bytes read of a body that refuses
_REFUSAL = 5.0  # seconds that such a body may take: the status counts without it
# How a stream of events begins.
_MARKS = (b"data:", b"event:", b"error:", b"retry:", b"id:", b":")
_LONGEST_MARK = max(map(len, _MARKS))
_VERSION = re.compile(r"/v\d")
_NO_REPLY = frozenset({204, 205, 206})  # no content, or a part of it
_TRY_AGAIN = frozenset({408, 409, 425})  # the request never ran, or ran into another
_NO_SUCH_ADDRESS = frozenset({404, 405})  # unless it is the model that is unknown
_LONGEST_EXCERPT = 300  # characters of a body that is no error object
_LONGEST_MESSAGE = 2_000  # characters of what an error object says


def has_reply(status: int) -> bool:
    """Say whether a response with this status has a reply. Some frameworks answer a POST by 201."""
    return 200 <= status < 300 and status not in _NO_REPLY


async def refuse(
    status: int, headers: Mapping[str, str], pieces: AsyncGenerator[bytes, None], where: str
) -> NoReturn:
    """Raise the error that a response without a reply stands for."""
    body = bytearray()
    async with aclosing(pieces):
        with suppress(Exception):  # it broke off, or takes too long
            async with asyncio.timeout(_REFUSAL):
                async for piece in pieces:
                    body += piece
                    if len(body) >= _LONGEST_REFUSAL:
                        break
    raise failure_from_response(status, headers, bytes(body[:_LONGEST_REFUSAL]), where)


async def whole_body(
    status: int,
    headers: Mapping[str, str],
    pieces: AsyncGenerator[bytes, None],
    where: str,
    *,
    longest: int = LONGEST,
) -> AsyncGenerator[bytes, None]:
    """Pass on what should be JSON in one piece, of at most `longest` bytes; closes `pieces`.

    Raises the error that a refusal stands for, and `BadResponse` for what is no JSON.
    """
    if not has_reply(status):
        await refuse(status, headers, pieces, where)
    async with aclosing(pieces):
        if "json" not in headers.get("content-type", "").lower():
            raise _not(headers, where, "JSON")
        yield await _all_of(pieces, b"", where, longest)


async def any_reply(
    status: int, headers: Mapping[str, str], pieces: AsyncGenerator[bytes, None], where: str
) -> AsyncGenerator[bytes, None]:
    """Pass on a reply that is not declared as a stream of events, but may be one; closes `pieces`.

    How it begins counts, whatever its type. One in one piece is passed on as the events it stands
    for. Raises the error that a refusal stands for, and `BadResponse` for what is not the protocol.
    """
    if not has_reply(status):
        await refuse(status, headers, pieces, where)
    begun = b""
    async with aclosing(pieces):
        async for piece in pieces:
            begun += piece
            start = begun.removeprefix(BOM).lstrip()[:_LONGEST_MARK]
            if start.startswith(_MARKS):
                yield begun
                async for piece in pieces:
                    yield piece
                return
            if len(begun) > LONGEST or not any(mark.startswith(start) for mark in _MARKS):
                break
        start = begun.removeprefix(BOM).lstrip()
        if start and not start.startswith((b"{", b"[")):
            raise _not(headers, where, "events")
        yield _events_of(await _all_of(pieces, start, where, LONGEST), where)


async def _all_of(
    pieces: AsyncGenerator[bytes, None], begun: bytes, where: str, longest: int
) -> bytes:
    body = bytearray(begun)
    async for piece in pieces:
        body += piece
        if len(body) > longest:
            raise BadResponse(f"{where} answered with more than {longest} bytes in one piece")
    return bytes(body)


def _not(headers: Mapping[str, str], where: str, wanted: str) -> BadResponse:
    kind = _cut(headers.get("content-type", ""), _LONGEST_EXCERPT) or "nothing known"
    return BadResponse(_name_address(f"{where} answered {kind}, not {wanted}", where))


def _events_of(body: bytes, where: str) -> bytes:
    """Write a reply in one piece as the events it stands for. Raises `BadResponse`."""
    try:
        value: Any = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError):
        value = None  # whoever reads it says what it is
    if isinstance(value, list) and value:
        body = json.dumps(value := cast("list[Any]", value)[0]).encode()
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if not (fields.get("choices") or fields.get("error") or fields.get("object") == "error"):
            text = _cut(" ".join(body.decode("utf-8", "replace").split()), _LONGEST_EXCERPT)
            raise BadResponse(f"{where} answered {text or 'nothing'}, not a reply")
    return b"data: " + b" ".join(body.splitlines()) + b"\n\ndata: [DONE]\n\n"


def failure_from_response(
    status: int, headers: Mapping[str, str], body: bytes, where: str
) -> BackendError:
    """Make the error that a response with this status stands for; `where` is the address asked."""
    plain = _cut(" ".join(body.decode("utf-8", "replace").split()), _LONGEST_EXCERPT)
    location = headers.get("location", "")
    if 300 <= status < 400 and location:
        there = hide_secrets(location)
        plain = f"{where} redirects to {there!r}: give that as base_url"
    elif not plain or plain.startswith("<"):
        plain = f"{where} answered with status {status}"
    said: object = None
    with suppress(ValueError, RecursionError):
        value: Any = json.loads(body)
        if isinstance(value, list) and value:
            value = cast("list[Any]", value)[0]
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            said = fields.get("error") or fields.get("detail")
            said = said or (fields if "message" in fields else None)
    try:
        made = error_from_wire(said or plain, status)
    except Exception:  # noqa: BLE001 - an error object with anything in it: the status counts
        made = error_from_wire(plain, status)
    text = f"{_cut(str(made), _LONGEST_MESSAGE)} ({status})"
    if status in _NO_SUCH_ADDRESS and "model" not in text.lower():
        text = _name_address(text, where)
    if status < 300:
        return BadResponse(text, status=status)
    if status == 413 or isinstance(made, ContextTooLong):
        return ContextTooLong(text, status=status)
    if status in _TRY_AGAIN:
        return BackendUnavailable(text, status=status)
    if isinstance(made, RateLimited):
        return RateLimited(text, status=status, retry_after=_retry_after(headers))
    made.args = (text,)
    return made


def _name_address(text: str, where: str) -> str:
    """Name the address that is perhaps wrong, and the one that may be meant."""
    base = where.removesuffix(CHAT).removesuffix(EMBEDDINGS)
    if base not in text:
        text = f"{base}: {text}"
    path = urlsplit(base).path
    if path.count("/") < 2 and not _VERSION.search(path):
        text += f"; should the address be {base}/v1?"
    return text


def failure_from_library(error: BaseException, where: str) -> BackendError:
    """Make the error for what a library raised below a request: no connection, or no HTTP.

    The libraries wrap each other's errors: the first in the chain that is known counts, else the
    innermost.
    """
    import aiohttp

    innermost = error
    for each in _causes(error):
        innermost = each
        if isinstance(each, aiohttp.ClientHttpProxyError):
            text = _cut(f"the proxy refused: {each.message}", _LONGEST_EXCERPT).encode()
            return failure_from_response(each.status, each.headers or {}, text, where)
        if isinstance(each, aiohttp.ClientResponseError):
            text = _cut(" ".join(each.message.split()), _LONGEST_EXCERPT)
            return BadResponse(f"{where}: {text}")
        if isinstance(each, aiohttp.ClientPayloadError) and "content-encoding" not in str(each):
            return BackendUnavailable(
                f"{where}: the server closed the connection in the middle of the reply"
            )
        if isinstance(each, aiohttp.ServerDisconnectedError | ConnectionResetError):
            return BackendUnavailable(
                f"{where}: the server closed the connection before it answered"
            )
    return BackendUnavailable(f"{where}: {describe(innermost)}")


def _causes(error: BaseException | None) -> Iterator[BaseException]:
    while error is not None:
        yield error
        error = error.__cause__


def _cut(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[:longest] + "..."


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Read how long to wait, in seconds: a number, or a date; None if it is neither."""
    for name, divisor in ("retry-after-ms", 1000), ("retry-after", 1):
        try:
            seconds = float(headers.get(name, "")) / divisor
        except ValueError:
            continue
        if 0 <= seconds < float("inf"):
            return seconds
    try:
        moment = _date(headers.get("retry-after", ""))
        if moment is None:
            return None
        # The server's own clock, if it says what that shows: ours may be set otherwise.
        now = _date(headers.get("date", "")) or datetime.now(UTC)
        return max(0.0, (moment - now).total_seconds())
    except OverflowError:  # a zone that leads beyond the calendar
        return None


def _date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except Exception:  # noqa: BLE001 - what is no date fails in many ways
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def describe(error: BaseException) -> str:
    """Say what happened in words; the library's own are sometimes none."""
    if isinstance(error, TimeoutError):
        return "no connection in time"
    text = " ".join(str(error).split()).removeprefix("400, message: ")  # aiohttp's own status
    return _cut(text, _LONGEST_EXCERPT) or type(error).__name__
