"""The transports to an MCP server: they bound each message, and keep addresses out of logs."""

from __future__ import annotations

import codecs
import re
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import IO, TYPE_CHECKING, Any, cast

import httpx2
import mcp
from mcp.client.streamable_http import streamable_http_client

if TYPE_CHECKING:
    from ._mcp import McpServer

__all__ = ["MAX_MESSAGE_BYTES", "open_client"]

MAX_MESSAGE_BYTES = 16 * 2**20
CODEC_NAME = "anabranch_lines"
# The start of a response, and the response that replaces one that is too long.
RESPONSE_START = re.compile(rb'\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*(\d+)\s*,')
TOO_LONG = (
    b'{"jsonrpc": "2.0", "id": %s, "error": '
    b'{"code": -32000, "message": "the answer has more than %d bytes"}}'
)


async def open_client(server: McpServer, stack: AsyncExitStack, log: IO[bytes]) -> mcp.Client:
    """Return a client of `server`, entered into `stack`.

    `log` gets the standard error of a server that is started. Requests to an address ignore the
    proxies of the environment and ask for uncompressed answers, because a small compressed one may
    expand to fill the memory.
    """
    if server.url is None:
        program = mcp.StdioServerParameters(
            command=server.command[0],
            args=server.command[1:],
            env=server.env,
            cwd=server.cwd,
            encoding=CODEC_NAME,
        )
        wire = mcp.stdio_client(program, errlog=cast("Any", log))
    else:
        target = httpx2.URL(server.url)
        http = httpx2.AsyncClient(
            headers={"Accept-Encoding": "identity", **server.headers},
            timeout=httpx2.Timeout(30, read=300),
            transport=_Transport(target),
            auth=httpx2.BasicAuth(target.username, target.password) if target.userinfo else None,
        )
        await stack.enter_async_context(http)
        wire = streamable_http_client(str(_without_path(target)), http_client=http)
    return await stack.enter_async_context(mcp.Client(wire))


def _without_path(url: httpx2.URL) -> httpx2.URL:
    """Return the part of an address that may be logged: its path and query may be keys."""
    return httpx2.URL(scheme=url.scheme, host=url.host, port=url.port, path="/")


class _Transport(httpx2.AsyncHTTPTransport):
    """Sends requests to the full address; the SDK and httpx, which log addresses, see a part."""

    def __init__(self, target: httpx2.URL) -> None:
        super().__init__()
        self._shown = _without_path(target)
        self._target = target.copy_with(userinfo=b"")

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request and bound the answer, except event streams, which the SDK bounds."""
        sent = httpx2.Request(
            request.method,
            self._target if request.url == self._shown else request.url,
            headers=request.headers,
            stream=request.stream,
            extensions=request.extensions,
        )
        response = await super().handle_async_request(sent)
        if response.headers.get("Content-Encoding", "identity").lower() != "identity":
            await response.aclose()
            raise httpx2.DecodingError("the server compressed its answer, which was not requested")
        events = response.headers.get("Content-Type", "").startswith("text/event-stream")
        if not (events and response.is_success):
            response.stream = _BoundedStream(cast("httpx2.AsyncByteStream", response.stream))
        return response


class _BoundedStream(httpx2.AsyncByteStream):
    """A response body that fails when it is longer than `MAX_MESSAGE_BYTES`."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            if (size := size + len(piece)) > MAX_MESSAGE_BYTES:
                raise httpx2.ReadError(f"the answer has more than {MAX_MESSAGE_BYTES} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class _LineDecoder(codecs.IncrementalDecoder):
    """Decodes UTF-8 in complete lines; replaces a response that is too long by an error response.

    The SDK keeps an unfinished line of any length, and copies it for each new piece. The codec is
    the only part of its pipe that it lets callers choose.
    """

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._pieces: list[bytes] = []
        self._size = 0  # of the unfinished line, also after it was dropped

    def decode(self, input: Any, final: bool = False) -> str:  # noqa: A002 - the base class's name
        """Return the lines that this piece completes."""
        done = bytearray()
        lines, newline, rest = bytes(input).rpartition(b"\n")
        if newline:
            first, newline, others = lines.partition(b"\n")
            self._add(first)
            done += b"".join([*self._pieces, b"\n", others, newline])
            self._pieces, self._size = [], 0
        self._add(rest)
        return done.decode("utf-8", self.errors)

    def _add(self, piece: bytes) -> None:
        before, self._size = self._size, self._size + len(piece)
        if self._size <= MAX_MESSAGE_BYTES:
            self._pieces.append(piece)
        elif before <= MAX_MESSAGE_BYTES:
            response = RESPONSE_START.match(b"".join([*self._pieces, piece])[:100])
            self._pieces = [TOO_LONG % (response[1], MAX_MESSAGE_BYTES)] if response else []


_CODEC = codecs.CodecInfo(
    codecs.utf_8_encode, codecs.utf_8_decode, incrementaldecoder=_LineDecoder, name=CODEC_NAME
)
codecs.register(lambda name: _CODEC if name == CODEC_NAME else None)
