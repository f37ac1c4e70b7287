"""What all wires do over HTTP: read a body, find who asks, stream a run, say what is wrong."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, cast
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from ._log import Entry, Gone
from ._run import Run
from ._runs import Busy

if TYPE_CHECKING:
    from ._app import Server

__all__ = ["NO_RETRY", "Refusal", "frame", "read_body", "route", "stream", "stream_run"]

# Seconds without a word after which a comment shows that the connection lives.
HEARTBEAT = 15.0
# For a run that has failed: OpenAI's clients would ask again by themselves, and tools run again.
NO_RETRY = {"x-should-retry": "false"}


class Refusal(Exception):
    """An answer that is an error, with a status of HTTP's; `code` is for programs."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str | None = None,
        field: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.code = code
        self.field = field
        self.headers = headers or {}

    def response(self) -> JSONResponse:
        """Return it as OpenAI's wire has errors."""
        kind = "invalid_request_error" if self.status < 500 else "server_error"
        error = {"message": self.message, "type": kind, "param": self.field, "code": self.code}
        return JSONResponse({"error": error}, self.status, headers=self.headers)


Endpoint: TypeAlias = "Callable[[Server, Request, str], Awaitable[Response]]"


def route(server: Server, method: str, path: str, endpoint: Endpoint) -> Route:
    """Make a route: who asks is known, and may, before `endpoint` is called; refusals are told."""

    async def answer(request: Request) -> Response:
        try:
            _require_own_page(server, request)
            return await endpoint(server, request, await _who_asks(server, request))
        except Refusal as refusal:
            return refusal.response()
        except Busy as busy:
            headers = {"Retry-After": str(busy.retry_after)}
            return Refusal(busy.status, str(busy), code="rate_limit", headers=headers).response()

    return Route(path, answer, methods=[method])


def _require_own_page(server: Server, request: Request) -> None:
    """Refuse what a page of somebody else's asks in a browser of this machine's."""
    host = request.headers.get("host", "")
    origin = request.headers.get("origin")
    if origin is not None and urlsplit(origin).netloc != host:
        raise Refusal(403, "pages from elsewhere may not ask here", code="origin")
    name = urlsplit(f"//{host}").hostname or ""
    # A name of somebody else's that leads to this machine would have the same origin.
    if not server.has_auth and name not in server.hosts:
        raise Refusal(403, "without auth= this server is for its own machine", code="host")
    if request.method == "POST" and int(request.headers.get("content-length", "1") or 1):
        kind = request.headers.get("content-type", "").partition(";")[0].strip()
        if kind != "application/json":
            raise Refusal(415, "a request is application/json")


async def _who_asks(server: Server, request: Request) -> str:
    """Return who asks; refuse whom nobody knows."""
    user = await server.user_of(request)
    if user is None:
        headers = {"WWW-Authenticate": "Bearer"}
        raise Refusal(401, "the token is not known", code="invalid_api_key", headers=headers)
    return user


async def read_body(server: Server, request: Request) -> dict[str, Any]:
    """Read a JSON object; refuse what is none, or too large, before it is kept."""
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > server.max_body:
            raise Refusal(413, f"a request has at most {server.max_body} bytes")
    try:
        found = json.loads(bytes(body))
    except (ValueError, RecursionError):
        raise Refusal(400, "the body is no JSON") from None
    if not isinstance(found, dict):
        raise Refusal(400, "the body is no JSON object")
    return cast("dict[str, Any]", found)


def stream_run(
    run: Run,
    encode: Callable[[Entry], Iterable[str]],
    *,
    after: int = 0,
    before: Iterable[str] = (),
    too_late: Callable[[], Iterable[str]] = tuple,
    at_end: Iterable[str] = (),
) -> StreamingResponse:
    """Stream a run behind the entry `after`; `encode` makes the frames of each, perhaps none.

    Where the reader is slower than the log is long, `too_late` gives the last frames.
    """

    async def frames() -> AsyncGenerator[str]:
        async with run.reading(after) as entries:
            for frame in before:
                yield frame
            try:
                async for entry in entries:
                    for frame in encode(entry):
                        yield frame
            except Gone:
                for frame in too_late():
                    yield frame
            else:
                for frame in at_end:
                    yield frame

    return stream(frames())


def stream(frames: AsyncGenerator[str]) -> StreamingResponse:
    """Stream server-sent events; a comment now and then shows that the connection lives.

    However it ends, `frames` is closed before that: whoever reads there has left then.
    """

    async def with_heartbeats() -> AsyncGenerator[str]:
        coming: asyncio.Future[str] | None = None
        try:
            while True:
                coming = coming or asyncio.ensure_future(anext(frames))
                if not (await asyncio.wait((coming,), timeout=HEARTBEAT))[0]:
                    yield ": still here\n\n"
                    continue
                try:
                    frame = coming.result()
                except StopAsyncIteration:
                    return
                coming = None
                yield frame
        finally:
            if coming is not None and not coming.done():
                coming.cancel()
                await asyncio.wait((coming,))
            await frames.aclose()

    headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
    return StreamingResponse(with_heartbeats(), media_type="text/event-stream", headers=headers)


def frame(value: object, **fields: str) -> str:
    """Write one event of a stream; `fields` are `event` and `id`."""
    lines = "".join(f"{name}: {text}\n" for name, text in fields.items())
    data = json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    return f"{lines}data: {data}\n\n"
