"""A client of an Anabranch server: its address, its key, its events."""

from __future__ import annotations

import json
import os
from collections.abc import AsyncGenerator, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, NamedTuple, cast
from urllib.parse import urlsplit

from ..commander import AnabranchError, ConfigurationError, MissingExtra
from ..messages.mask import mask
from ._terminal import in_line

if TYPE_CHECKING:
    import aiohttp

__all__ = [
    "SILENCE",
    "BadServer",
    "ServerEvent",
    "address_of",
    "open_client",
    "read_events",
    "read_object",
    "require_ok",
]

TOKEN = "ANABRANCH_TOKEN"  # noqa: S105 - the variable's name
MAX_BYTES = 16_000_000  # of one event, and of another answer
MAX_ERROR_CHARS = 300
SILENCE = 60  # seconds; a server that works sends something sooner


class BadServer(AnabranchError):
    """A server refuses a request or fails; the message says why. `status` is the HTTP status."""

    status = 0


class ServerEvent(NamedTuple):
    """One server-sent event."""

    kind: str
    data: str


def address_of(url: str) -> str:
    """Return an HTTP address without its query and a slash at its end.

    Raises `ConfigurationError` for another text, and `MissingExtra` without an HTTP client.
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
        raise ConfigurationError(f"a key does not belong into an address: set {TOKEN} to it")
    if not sound:
        raise ConfigurationError(f"{in_line(url, 200)!r} is no http address")
    return parts._replace(query="", fragment="").geturl().rstrip("/")


def open_client() -> aiohttp.ClientSession:
    """Open a client that sends the key in `ANABRANCH_TOKEN`."""
    import aiohttp

    key = os.environ.get(TOKEN, "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigurationError(f"{TOKEN} has characters that no key has")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    timeout = aiohttp.ClientTimeout(total=None, sock_connect=30, sock_read=SILENCE)
    return aiohttp.ClientSession(headers=headers, timeout=timeout)


async def require_ok(answer: aiohttp.ClientResponse, what: str) -> None:
    """Raise `BadServer` for a refusal, or a redirect: the key is for this address alone."""
    what = in_line(what, 200)
    if answer.status < 300:
        return
    if answer.status == 401:
        raise BadServer(f"{what} asks for a key: set {TOKEN} to one that is right")
    if answer.status < 400:
        where = mask(answer.headers.get("Location", "elsewhere"))
        raise BadServer(f"{what} sends on to {in_line(where, 200)}: give that address instead")
    try:
        said = str((await read_object(answer))["error"]["message"])
    except (ValueError, KeyError, TypeError):  # it may be any server
        said = f"status {answer.status}; is it a server of anabranch's?"
    if key := os.environ.get(TOKEN, "").strip():
        said = said.replace(key, "********")
    error = BadServer(f"{what}: {in_line(mask(said), MAX_ERROR_CHARS)}")
    error.status = answer.status
    raise error


async def read_object(answer: aiohttp.ClientResponse) -> Mapping[str, Any]:
    """Read a JSON object of limited size; raise `ValueError` for another answer."""
    body = bytearray()
    async for piece in answer.content.iter_any():
        body += piece
        if len(body) > MAX_BYTES:
            raise ValueError("an answer without end")
    try:
        found: Any = json.loads(body)
    except RecursionError:
        raise ValueError("too many levels") from None
    if not isinstance(found, dict):
        raise ValueError("no object")
    return cast("dict[str, Any]", found)


async def read_events(content: aiohttp.StreamReader) -> AsyncGenerator[ServerEvent]:
    """Yield server-sent events as they come, without an incomplete one at the end.

    Raises `ValueError` for an event that is too long, or is no UTF-8.
    """
    kind, lines, size = "", list[str](), 0
    line = bytearray()
    async for piece in content.iter_any():
        start = 0
        while (end := piece.find(b"\n", start)) >= 0:
            line += piece[start:end]
            start = end + 1
            size += len(line)
            if size > MAX_BYTES:
                raise ValueError("an event without end")
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
        if size + len(line) > MAX_BYTES:
            raise ValueError("a line without end")
