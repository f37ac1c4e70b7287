"""Send requests straight to an ASGI application, in forms that no real client produces."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

__all__ = ["Response", "encode_body", "is_refusal", "send_request"]

HOST = {"host": "localhost:8000"}
JSON = {"content-type": "application/json"}


class Response(NamedTuple):
    """The status, headers and body of a response."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.body)


def encode_body(value: object) -> bytes:
    """Return a JSON body like a JavaScript client's, with lone surrogates as escapes."""
    return json.dumps(value).encode()


async def send_request(
    app: Any,
    method: str,
    path: str,
    body: bytes | Sequence[bytes] = b"",
    headers: Mapping[str, str | bytes] | Iterable[tuple[str, str | bytes]] = (),
    *,
    client: tuple[str, int] | None = ("127.0.0.1", 1),
    host: str | None = "localhost:8000",
    leaves: bool = False,
) -> Response:
    """Send a request and return the complete response.

    The body may be sent in pieces. With `leaves` the client disconnects after them.
    """
    given = [*(headers.items() if isinstance(headers, Mapping) else headers)]
    sent = [*([("host", host)] if host is not None else []), *given]
    if (method == "POST" and body) and not any(name == "content-type" for name, _ in given):
        sent.append(("content-type", "application/json"))
    raw = [
        (name.encode(), value if isinstance(value, bytes) else value.encode("latin-1"))
        for name, value in sent
    ]
    target, _, query = path.partition("?")
    scope: dict[str, Any] = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": method,
        "scheme": "http",
        "path": target,
        "raw_path": target.encode("utf-8", "replace"),
        "query_string": query.encode(),
        "root_path": "",
        "headers": raw,
        "client": client,
        "server": ("127.0.0.1", 8000),
    }
    pieces = [body] if isinstance(body, bytes) else [*body]
    coming: list[dict[str, Any]] = [
        {"type": "http.request", "body": piece, "more_body": leaves or place < len(pieces) - 1}
        for place, piece in enumerate(pieces)
    ]
    if leaves:
        coming.append({"type": "http.disconnect"})
    ended = asyncio.Event()
    got: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if coming:
            return coming.pop(0)
        await ended.wait()
        return {"type": "http.disconnect"}

    async def send(message: dict[str, Any]) -> None:
        got.append(message)

    async with asyncio.timeout(30):
        await app(scope, receive, send)
    ended.set()
    found = {name.decode(): value.decode("latin-1") for name, value in got[0]["headers"]}
    return Response(got[0]["status"], found, b"".join(each.get("body", b"") for each in got[1:]))


def is_refusal(answer: Response) -> bool:
    """Return whether a response is a client error in OpenAI's format."""
    said = answer.json
    error = said["error"]
    return (
        400 <= answer.status < 500
        and [*said] == ["error"]
        and sorted(error) == ["code", "message", "param", "type"]
        and isinstance(error["message"], str)
        and len(error["message"]) < 2000
    )
