"""A client of an Anabranch server: the address, the key, responses and events."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import urlsplit

from ..commander import AnabranchError, ConfigurationError, MissingExtra
from ..messages.mask import mask
from ._output import one_line

if TYPE_CHECKING:
    import aiohttp

__all__ = [
    "SILENCE_SECONDS",
    "BadServer",
    "ServerEvent",
    "address_of",
    "open_client",
    "read_events",
    "read_object",
    "require_ok",
]

TOKEN_VARIABLE = "ANABRANCH_TOKEN"  # noqa: S105 - the variable's name
MAX_RESPONSE_BYTES = 16_000_000  # of one event, or of a JSON response
MAX_ERROR_CHARS = 300
SILENCE_SECONDS = 60  # a working server sends events or keep-alives more often


class BadServer(AnabranchError):
    """A server refused a request or failed. `status` is the HTTP status, 0 if there was none."""

    status = 0


class ServerEvent(NamedTuple):
    """One server-sent event."""

    kind: str
    data: str


def address_of(url: str) -> str:
    """Return an HTTP address without query and final slash.

    Raises `ConfigurationError` for an invalid address, and `MissingExtra` if aiohttp is missing.
    """
    if find_spec("aiohttp") is None:
        raise MissingExtra("talking to a server", "http")
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        sound = False
        parts = urlsplit("")
    if parts.password is not None or parts.username is not None:
        raise ConfigurationError(
            f"the address must not contain a key: set {TOKEN_VARIABLE} instead"
        )
    if not sound:
        raise ConfigurationError(f"{one_line(url, 200)!r} is not an http address")
    return parts._replace(query="", fragment="").geturl().rstrip("/")


def open_client() -> aiohttp.ClientSession:
    """Open a client that sends the key in `ANABRANCH_TOKEN`."""
    import aiohttp

    key = os.environ.get(TOKEN_VARIABLE, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigurationError(f"{TOKEN_VARIABLE} must contain printable ASCII characters only")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=SILENCE_SECONDS)
    return aiohttp.ClientSession(headers=headers, timeout=timeout)


async def require_ok(answer: aiohttp.ClientResponse, label: str) -> None:
    """Raise `BadServer` unless the request succeeded.

    Redirects fail too, since the key must be sent to this address only.
    """
    label = one_line(label, 200)
    if answer.status < 300:
        return
    if answer.status == 401:
        raise BadServer(f"{label} requires a valid key: set {TOKEN_VARIABLE}")
    if answer.status < 400:
        where = mask(answer.headers.get("Location", "another address"))
        raise BadServer(f"{label} redirects to {one_line(where, 200)}: use that address")
    try:
        message = str((await read_object(answer))["error"]["message"])
    except (ValueError, KeyError, TypeError):  # it may be any server
        message = f"HTTP status {answer.status}. Is it an Anabranch server?"
    if key := os.environ.get(TOKEN_VARIABLE, "").strip():
        message = message.replace(key, "********")
    error = BadServer(f"{label}: {one_line(mask(message), MAX_ERROR_CHARS)}")
    error.status = answer.status
    raise error


async def read_object(answer: aiohttp.ClientResponse) -> Mapping[str, Any]:
    """Read a JSON object; raise `ValueError` if it is too large or something else."""
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > MAX_RESPONSE_BYTES:
            raise ValueError("the response is too large")
    try:
        found: Any = json.loads(body)
    except RecursionError:
        raise ValueError("the JSON is nested too deeply") from None
    if not isinstance(found, dict):
        raise ValueError("the response is not a JSON object")
    return cast("dict[str, Any]", found)


async def read_events(content: aiohttp.StreamReader) -> AsyncGenerator[ServerEvent]:
    """Yield server-sent events as they arrive; drop an incomplete event at the end.

    Raises `ValueError` for an event that is too large or is not UTF-8.
    """
    kind, lines, size = "", list[str](), 0
    line = bytearray()
    async for piece in content.iter_any():
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            line += piece[start:end]
            start = end + 1
            size += len(line)
            if size > MAX_RESPONSE_BYTES:
                raise ValueError("an event is too large")
            text = line.removesuffix(b"\r").decode()
            line.clear()
            name, _, value = text.partition(":")
            value = value.removeprefix(" ")
            if name == "data":
                lines.append(value)
            elif name == "event":
                kind = value
            elif not text:
                if lines:
                    yield ServerEvent(kind, "\n".join(lines))
                kind, lines, size = "", [], 0
        line += piece[start:]
        if size + len(line) > MAX_RESPONSE_BYTES:
            raise ValueError("a line is too long")
