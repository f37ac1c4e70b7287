"""A loopback server that answers with raw bytes, valid HTTP or not."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from support.aiohttp_server import stop_accepting
from support.paths import DATA

__all__ = ["CORPUS", "QUIRKS", "ByteServer", "hostile_reply", "http_response", "reply_of"]

Answer = Callable[[bytes], Iterable[bytes]]
# More unread bytes than the socket buffers of any system hold.
MAX_BUFFERED_BYTES = 64 << 20


class ByteServer:
    """A server that sends the bytes of `answer(request)`, then closes the connection.

    `sent` counts the bytes that the client has read or that are in the socket buffers.
    """

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.sent = 0
        self.url = ""
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> ByteServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/v1"
        return self

    async def __aexit__(self, *_: object) -> None:
        await stop_accepting(self._server.sockets[0].fileno())
        self._server.close()
        for writer in self._writers:
            writer.transport.abort()
        while self._writers:  # noqa: ASYNC110 - each ends within a few turns
            await asyncio.sleep(0)
        await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            for piece in self.answer(await _request(reader)):
                writer.write(piece)
                await writer.drain()
                self.sent += len(piece)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()


async def _request(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readuntil(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            head += await reader.readexactly(int(line.partition(b":")[2]))
    return head


def http_response(
    body: bytes | str = b"",
    status: object = 200,
    kind: str = "text/event-stream",
    *headers: tuple[str, str],
    reason: str = "OK",
) -> bytes:
    """Return the bytes of a response whose body ends with the connection."""
    lines = [f"HTTP/1.1 {status} {reason}", f"Content-Type: {kind}", "Connection: close"]
    lines += [f"{name}: {value}" for name, value in headers]
    raw = body.encode("utf-8", "surrogatepass") if isinstance(body, str) else body
    return "\r\n".join((*lines, "", "")).encode("utf-8", "surrogateescape") + raw


def reply_of(entry: dict[str, Any]) -> bytes:
    """Return a corpus entry's reply as bytes: raw, or built from status, headers and body."""
    body = b"".join(
        part.encode("latin-1") if isinstance(part, str) else part[0].encode("latin-1") * part[1]
        for part in entry.get("body", [])
    )
    if "raw" in entry:
        return entry["raw"].encode("latin-1") + body
    headers = [(name, value) for name, value in entry.get("headers", [])]
    kind = entry.get("type", "text/event-stream")
    return http_response(body, entry.get("status", 200), kind, *headers)


def _read(name: str) -> list[dict[str, Any]]:
    return json.loads((DATA / name).read_text())


CORPUS: dict[str, bytes] = {e["name"]: reply_of(e) for e in _read("hostile_replies.json")}
QUIRKS = _read("server_quirks.json")


_ODD: list[Any] = [None, True, 0, -1, 7, 1.5, 10**40, "", "x", "\ud800", [], {}, [[]], {"a": {}}]
_TYPES = ["text/event-stream", "application/json", "text/html", "", "Application/JSON; charset=é"]
_HEADERS = [
    ("Retry-After", "1e999"),
    ("Retry-After", "nan"),
    ("Retry-After", "-1"),
    ("Retry-After", "9" * 400),
    ("Retry-After", "Fri, 31 Dec 9999 23:59:59 GMT"),
    ("Retry-After", "Fri, 31 Dec 9999 23:59:59 -9999"),
    ("Retry-After", "soon \x80"),
    ("Retry-After-Ms", "1e400"),
    ("Content-Encoding", "gzip"),
    ("Content-Encoding", "quark"),
    ("Transfer-Encoding", "chunked"),
    ("Content-Length", "3"),
    ("Content-Length", "99999999999"),
    ("Content-Length", "many"),
    ("Location", "http://[x"),
    ("Set-Cookie", "a b;=\x01"),
]
_STATUSES = [200] * 12 + [204, 206, 302, 400, 401, 404, 413, 418, 422, 429, 429, 500, 503, 599, 999]


def hostile_reply(random: Random) -> bytes:
    """Draw a reply that is valid, or has replaced values, or is cut, deep, huge or binary."""
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a": 1}'}}
    said: list[Any] = [
        {"choices": [{"index": 0, "delta": {"role": "assistant", "content": "a"}}]},
        {"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": None}]},
        {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]},
        {"choices": [], "usage": {"prompt_tokens": 1, "completion_tokens": 2}},
        {"error": {"message": "no", "type": "t", "code": "c"}},
        {"detail": [{"loc": ["body"], "msg": "no"}]},
    ]
    chosen = random.choices(said, k=random.randint(1, 4))
    for at in random.choices(range(len(chosen)), k=random.choice([0, 1, 1, 2])):
        chosen[at] = _changed(json.loads(json.dumps(chosen[at])), random)
    written = [json.dumps(each).encode() for each in chosen]
    if random.random() < 0.2:
        written.append(random.choice([b"[" * 100_000, b'{"a":' * 5_000, b"\x00\xff" * 40, b"NaN"]))
    plain = random.random() < 0.3
    body = b"".join(written) if plain else b"".join(b"data: " + each + b"\n\n" for each in written)
    body += random.choice([b"", b"data: [DONE]\n\n", b"data: [DON"])
    if random.random() < 0.3:
        body = body[: random.randrange(len(body))]
    headers = random.sample(_HEADERS, k=random.choice([0, 0, 1, 3]))
    return http_response(
        body, random.choice(_STATUSES), random.choice(_TYPES[:2] * 4 + _TYPES), *headers
    )


def _changed(value: Any, random: Random) -> Any:
    """Replace one part of a value by an invalid one."""
    if not value or not isinstance(value, list | dict) or random.random() < 0.1:
        return random.choice(_ODD)
    place = random.choice(list(value) if isinstance(value, dict) else range(len(value)))
    value[place] = _changed(value[place], random)
    return value
