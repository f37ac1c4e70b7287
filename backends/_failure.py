"""Turn refusals of servers and errors of HTTP libraries into backend errors."""

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
from ._address import CHAT_PATH, EMBEDDINGS_PATH, hide_secrets
from ._sse import BOM

__all__ = [
    "MAX_SILENT_BYTES",
    "failure_from_library",
    "failure_from_response",
    "has_reply",
    "raise_refusal",
    "read_json_body",
    "read_reply",
]

MAX_SILENT_BYTES = 8 * 2**20  # bytes of a stream without a delta, and of a reply in one piece
_MAX_REFUSAL_BYTES = 65_536  # the rest of an error's body is not read
_REFUSAL_SECONDS = 5.0  # for reading such a body; without it, the status counts
# The first bytes of a stream of events are one of these.
_EVENT_STARTS = (b"data:", b"event:", b"error:", b"retry:", b"id:", b":")
_MAX_EVENT_START_BYTES = max(map(len, _EVENT_STARTS))
_VERSION = re.compile(r"/v\d")
_BODILESS_STATUSES = frozenset({204, 205, 206})  # no content, or part of it
# the request did not run, or conflicted with another
_RETRYABLE_STATUSES = frozenset({408, 409, 425})
_WRONG_ADDRESS_STATUSES = frozenset({404, 405})  # unless the model is unknown
_MAX_EXCERPT_CHARS = 300  # of a body that is not an error object
_MAX_MESSAGE_CHARS = 2_000  # of an error object's text


def has_reply(status: int) -> bool:
    """Return whether a response with this status has a reply. Some servers answer with 201."""
    return 200 <= status < 300 and status not in _BODILESS_STATUSES


async def raise_refusal(
    status: int, headers: Mapping[str, str], pieces: AsyncGenerator[bytes, None], where: str
) -> NoReturn:
    """Raise the error for a response without a reply."""
    body = bytearray()
    async with aclosing(pieces):
        with suppress(Exception):  # the connection broke, or the body is slow
            async with asyncio.timeout(_REFUSAL_SECONDS):
                async for piece in pieces:
                    body += piece
                    if len(body) >= _MAX_REFUSAL_BYTES:
                        break
    raise failure_from_response(status, headers, bytes(body[:_MAX_REFUSAL_BYTES]), where)


async def read_json_body(
    status: int,
    headers: Mapping[str, str],
    pieces: AsyncGenerator[bytes, None],
    where: str,
    *,
    longest: int = MAX_SILENT_BYTES,
) -> AsyncGenerator[bytes, None]:
    """Yield the body of a response that must be JSON, in one piece; close `pieces`.

    Raises the error of a refusal, and `BadResponse` for other content or more than `longest` bytes.
    """
    if not has_reply(status):
        await raise_refusal(status, headers, pieces, where)
    async with aclosing(pieces):
        if "json" not in headers.get("content-type", "").lower():
            raise _wrong_content_type(headers, where, "JSON")
        yield await _read_all(pieces, b"", where, longest)


async def read_reply(
    status: int, headers: Mapping[str, str], pieces: AsyncGenerator[bytes, None], where: str
) -> AsyncGenerator[bytes, None]:
    """Yield the events of a response that is not declared as a stream, but may be one.

    Closes `pieces`. The first bytes decide, whatever the content type. A reply in one piece is
    yielded as events. Raises the error of a refusal, and `BadResponse` for anything else.
    """
    if not has_reply(status):
        await raise_refusal(status, headers, pieces, where)
    begun = b""
    async with aclosing(pieces):
        async for piece in pieces:
            begun += piece
            start = begun.removeprefix(BOM).lstrip()[:_MAX_EVENT_START_BYTES]
            if start.startswith(_EVENT_STARTS):
                yield begun
                async for piece in pieces:
                    yield piece
                return
            if len(begun) > MAX_SILENT_BYTES or not any(
                mark.startswith(start) for mark in _EVENT_STARTS
            ):
                break
        start = begun.removeprefix(BOM).lstrip()
        if start and not start.startswith((b"{", b"[")):
            raise _wrong_content_type(headers, where, "events")
        yield _events_of(await _read_all(pieces, start, where, MAX_SILENT_BYTES), where)


async def _read_all(
    pieces: AsyncGenerator[bytes, None], begun: bytes, where: str, longest: int
) -> bytes:
    body = bytearray(begun)
    async for piece in pieces:
        body += piece
        if len(body) > longest:
            raise BadResponse(f"{where} sent more than {longest} bytes in one piece")
    return bytes(body)


def _wrong_content_type(headers: Mapping[str, str], where: str, wanted: str) -> BadResponse:
    kind = _shorten(headers.get("content-type", ""), _MAX_EXCERPT_CHARS) or "no content type"
    return BadResponse(_name_address(f"{where} sent {kind}, not {wanted}", where))


def _events_of(body: bytes, where: str) -> bytes:
    """Return a reply in one piece as events. Raises `BadResponse`."""
    try:
        value: Any = json.loads(body) if body.strip() else {}
    except (ValueError, RecursionError):
        value = None  # the reader of the event raises for it
    if isinstance(value, list) and value:
        body = json.dumps(value := cast("list[Any]", value)[0]).encode()
    if isinstance(value, dict):
        fields = cast("dict[str, Any]", value)
        if not (fields.get("choices") or fields.get("error") or fields.get("object") == "error"):
            text = _shorten(" ".join(body.decode("utf-8", "replace").split()), _MAX_EXCERPT_CHARS)
            raise BadResponse(f"{where} sent {text or 'an empty body'}, not a reply")
    return b"data: " + b" ".join(body.splitlines()) + b"\n\ndata: [DONE]\n\n"


def failure_from_response(
    status: int, headers: Mapping[str, str], body: bytes, where: str
) -> BackendError:
    """Return the error for a response with this status. `where` is the address of the request."""
    plain = _shorten(" ".join(body.decode("utf-8", "replace").split()), _MAX_EXCERPT_CHARS)
    location = headers.get("location", "")
    if 300 <= status < 400 and location:
        target = hide_secrets(location)
        plain = f"{where} redirects to {target!r}; use that as base_url"
    elif not plain or plain.startswith("<"):
        plain = f"{where} answered with status {status}"
    details: object = None
    with suppress(ValueError, RecursionError):
        value: Any = json.loads(body)
        if isinstance(value, list) and value:
            value = cast("list[Any]", value)[0]
        if isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            details = fields.get("error") or fields.get("detail")
            details = details or (fields if "message" in fields else None)
    try:
        error = error_from_wire(details or plain, status)
    except Exception:  # noqa: BLE001 - an error object with anything in it: the status counts
        error = error_from_wire(plain, status)
    text = f"{_shorten(str(error), _MAX_MESSAGE_CHARS)} ({status})"
    if status in _WRONG_ADDRESS_STATUSES and "model" not in text.lower():
        text = _name_address(text, where)
    if status < 300:
        return BadResponse(text, status=status)
    if status == 413 or isinstance(error, ContextTooLong):
        return ContextTooLong(text, status=status)
    if status in _RETRYABLE_STATUSES:
        return BackendUnavailable(text, status=status)
    if isinstance(error, RateLimited):
        return RateLimited(text, status=status, retry_after=_retry_after(headers))
    error.args = (text,)
    return error


def _name_address(text: str, where: str) -> str:
    """Add the address that may be wrong to a text, and suggest one with `/v1`."""
    base = where.removesuffix(CHAT_PATH).removesuffix(EMBEDDINGS_PATH)
    if base not in text:
        text = f"{base}: {text}"
    path = urlsplit(base).path
    if path.count("/") < 2 and not _VERSION.search(path):
        text += f". Did you mean {base}/v1?"
    return text


def failure_from_library(error: BaseException, where: str) -> BackendError:
    """Return the error for an exception of an HTTP library: no connection, or no HTTP.

    The libraries wrap each other's errors. The first known one in the chain decides, else the
    innermost.
    """
    import aiohttp

    innermost = error
    for each in _causes(error):
        innermost = each
        if isinstance(each, aiohttp.ClientHttpProxyError):
            text = _shorten(f"the proxy refused: {each.message}", _MAX_EXCERPT_CHARS).encode()
            return failure_from_response(each.status, each.headers or {}, text, where)
        if isinstance(each, aiohttp.ClientResponseError):
            text = _shorten(" ".join(each.message.split()), _MAX_EXCERPT_CHARS)
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


def _shorten(text: str, longest: int) -> str:
    return text if len(text) <= longest else text[:longest] + "..."


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Return the seconds to wait, from a number or a date; None if there is neither."""
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
        # Use the server's clock if it sent the time: the clock of this machine may differ.
        now = _date(headers.get("date", "")) or datetime.now(UTC)
        return max(0.0, (moment - now).total_seconds())
    except OverflowError:  # from a time zone that leads out of the calendar
        return None


def _date(text: str) -> datetime | None:
    try:
        moment = parsedate_to_datetime(text)
    except Exception:  # noqa: BLE001 - other text fails in many ways
        return None
    return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)


def describe(error: BaseException) -> str:
    """Return an error's text, or its type if it has none."""
    if isinstance(error, TimeoutError):
        return "the connection timed out"
    # aiohttp invents this status
    text = " ".join(str(error).split()).removeprefix("400, message: ")
    return _shorten(text, _MAX_EXCERPT_CHARS) or type(error).__name__
