"""The wires to an MCP server: no endless message comes in, and no address gets into a log."""

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

__all__ = ["MESSAGE", "open_client"]

MESSAGE = 16 * 2**20  # bytes
LINES = "anabranch_lines"
# How an answer to a request begins, and what comes in place of one that is too long.
ASKED = re.compile(rb'\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*(\d+)\s*,')
TOO_LONG = (
    b'{"jsonrpc": "2.0", "id": %s, "error": '
    b'{"code": -32000, "message": "the answer has more than %d bytes"}}'
)


async def open_client(server: McpServer, stack: AsyncExitStack, log: IO[bytes]) -> mcp.Client:
    """Return a client of `server`, entered into `stack`.

    What a server that is started writes to standard error is in `log`. One that has an address is
    reached without the proxies of the environment, and no answer is decompressed, since a small
    one may unfold into all memory.
    """
    if server.url is None:
        program = mcp.StdioServerParameters(
            command=server.command[0],
            args=server.command[1:],
            env=server.env,
            cwd=server.cwd,
            encoding=LINES,
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
    """Return as much of an address as may be shown: its path may be a key as well as its query."""
    return httpx2.URL(scheme=url.scheme, host=url.host, port=url.port, path="/")


class _Transport(httpx2.AsyncHTTPTransport):
    """Sends to `target` what is addressed to its host alone, since httpx logs every address."""

    def __init__(self, target: httpx2.URL) -> None:
        super().__init__()
        self._shown = _without_path(target)
        self._target = target.copy_with(userinfo=b"")

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Send a request; bound the answer, unless it is a stream of events, which the SDK does."""
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
            raise httpx2.DecodingError("the answer is compressed, which was not asked for")
        events = response.headers.get("Content-Type", "").startswith("text/event-stream")
        if not (events and response.is_success):
            response.stream = _Bounded(cast("httpx2.AsyncByteStream", response.stream))
        return response


class _Bounded(httpx2.AsyncByteStream):
    """A body that fails when it is longer than a message may be."""

    def __init__(self, stream: httpx2.AsyncByteStream) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        size = 0
        async for piece in self._stream:
            if (size := size + len(piece)) > MESSAGE:
                raise httpx2.ReadError(f"the answer has more than {MESSAGE} bytes")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


class _Lines(codecs.IncrementalDecoder):
    """Decodes UTF-8 in whole lines; of one that is too long only the answer that it was is kept.

    The SDK keeps an unfinished line, however long, and joins it anew to each piece that comes. How
    its pipe is decoded is what it lets us say.
    """

    def __init__(self, errors: str = "strict") -> None:
        super().__init__(errors)
        self._kept: list[bytes] = []
        self._size = 0  # of the unfinished line, dropped or not

    def decode(self, input: Any, final: bool = False) -> str:  # noqa: A002 - the base class's name
        """Return the lines that this piece completes."""
        done = bytearray()
        lines, newline, rest = bytes(input).rpartition(b"\n")
        if newline:
            first, newline, others = lines.partition(b"\n")
            self._keep(first)
            done += b"".join([*self._kept, b"\n", others, newline])
            self._kept, self._size = [], 0
        self._keep(rest)
        return done.decode("utf-8", self.errors)

    def _keep(self, piece: bytes) -> None:
        before, self._size = self._size, self._size + len(piece)
        if self._size <= MESSAGE:
            self._kept.append(piece)
        elif before <= MESSAGE:
            asked = ASKED.match(b"".join([*self._kept, piece])[:100])
            self._kept = [TOO_LONG % (asked[1], MESSAGE)] if asked else []


_CODEC = codecs.CodecInfo(
    codecs.utf_8_encode, codecs.utf_8_decode, incrementaldecoder=_Lines, name=LINES
)
codecs.register(lambda name: _CODEC if name == LINES else None)
